//! Maps between the ids that a layer stores and the ids that the mount shows.

use std::fmt;

/// What an id without a mapping is shown or stored as (the kernel's default overflow id).
pub const OVERFLOW_ID: u32 = 65_534;

/// Most ranges that one map may have, as in a user namespace.
pub const ID_RANGES_MAX: usize = 340;

/// A run of ids: `layer..layer+len` in the layers is `mount..mount+len` in the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdRange {
    /// First id as the layers store it.
    pub layer: u32,
    /// First id as the mount shows it.
    pub mount: u32,
    /// Number of ids, at least 1.
    pub len: u32,
}

/// A bijection between ids in the layers and ids in the mount. An empty map changes nothing; in any other, ids
/// outside of every range become [`OVERFLOW_ID`], in both directions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMap {
    /// Sorted by `layer`.
    ranges: Box<[IdRange]>,
}

/// Why a text or a list of ranges is no map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdMapError {
    /// The number of fields is not a multiple of three, or there are none.
    NotTriples,
    /// A field is no number from 0 to 4294967295.
    NotANumber,
    /// A range of length 0, or one that leaves the 32 bits of an id.
    BadLength,
    /// Two ranges share ids on one side.
    Overlap,
    /// More than [`ID_RANGES_MAX`] ranges.
    TooMany,
}

impl IdMap {
    /// Makes a map of ranges in any order.
    pub fn new(mut ranges: Vec<IdRange>) -> Result<Self, IdMapError> {
        if ranges.len() > ID_RANGES_MAX {
            return Err(IdMapError::TooMany);
        }
        for range in &ranges {
            if range.len == 0
                || range.layer.checked_add(range.len - 1).is_none()
                || range.mount.checked_add(range.len - 1).is_none()
            {
                return Err(IdMapError::BadLength);
            }
        }
        for side in [|r: &IdRange| r.mount, |r: &IdRange| r.layer] {
            ranges.sort_unstable_by_key(side);
            let overlapping = ranges.windows(2).any(|pair| match pair {
                [a, b] => side(b) - side(a) < a.len,
                _ => false,
            });
            if overlapping {
                return Err(IdMapError::Overlap);
            }
        }
        Ok(Self { ranges: ranges.into() })
    }

    /// Reads `LAYER:MOUNT:LEN[:LAYER:MOUNT:LEN...]`, the form in which container engines pass `uidmapping=`. Empty
    /// fields (engines write a leading colon) are skipped; a comma separates as a colon does.
    pub fn parse(text: &str) -> Result<Self, IdMapError> {
        let mut fields = text.split([':', ',']).filter(|field| !field.is_empty());
        let mut ranges = Vec::new();
        while let Some(layer) = fields.next() {
            let (Some(mount), Some(len)) = (fields.next(), fields.next()) else {
                return Err(IdMapError::NotTriples);
            };
            if ranges.len() == ID_RANGES_MAX {
                return Err(IdMapError::TooMany);
            }
            ranges.push(IdRange { layer: number(layer)?, mount: number(mount)?, len: number(len)? });
        }
        if ranges.is_empty() {
            return Err(IdMapError::NotTriples);
        }
        Self::new(ranges)
    }

    /// Whether the map changes nothing.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, ordered by their ids in the layers.
    #[must_use]
    pub fn ranges(&self) -> &[IdRange] {
        &self.ranges
    }

    /// What the mount shows for an id in a layer.
    #[must_use]
    pub fn to_mount(&self, id: u32) -> u32 {
        if self.is_identity() {
            return id;
        }
        let after = self.ranges.partition_point(|range| range.layer <= id);
        match after.checked_sub(1).and_then(|at| self.ranges.get(at)) {
            Some(range) if id - range.layer < range.len => range.mount + (id - range.layer),
            _ => OVERFLOW_ID,
        }
    }

    /// What a layer stores for an id in the mount.
    #[must_use]
    pub fn to_layer(&self, id: u32) -> u32 {
        if self.is_identity() {
            return id;
        }
        self.ranges
            .iter()
            .find(|range| id >= range.mount && id - range.mount < range.len)
            .map_or(OVERFLOW_ID, |range| range.layer + (id - range.mount))
    }
}

fn number(field: &str) -> Result<u32, IdMapError> {
    // `parse` would take a plus sign.
    if !field.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(IdMapError::NotANumber);
    }
    field.parse().map_err(|_| IdMapError::NotANumber)
}

impl fmt::Display for IdMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, IdRange { layer, mount, len }) in self.ranges.iter().enumerate() {
            let colon = if at == 0 { "" } else { ":" };
            write!(f, "{colon}{layer}:{mount}:{len}")?;
        }
        Ok(())
    }
}

impl fmt::Display for IdMapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotTriples => "not triples of LAYER:MOUNT:LEN",
            Self::NotANumber => "a field is not a number from 0 to 4294967295",
            Self::BadLength => "a range is empty or goes beyond 4294967295",
            Self::Overlap => "two ranges overlap",
            Self::TooMany => "more than 340 ranges",
        })
    }
}

impl std::error::Error for IdMapError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_maps_of_engines_parse() {
        let map = IdMap::parse(":0:100000:65536").unwrap();
        assert_eq!(
            (map.to_mount(0), map.to_mount(65_535), map.to_mount(65_536)),
            (100_000, 165_535, OVERFLOW_ID)
        );
        assert_eq!(
            (map.to_layer(100_000), map.to_layer(0), map.to_layer(165_536)),
            (0, OVERFLOW_ID, OVERFLOW_ID)
        );
        let keep_id = IdMap::parse(":0:1:1001:1001:0:1:1002:1002:64535").unwrap();
        assert_eq!((keep_id.to_mount(1001), keep_id.to_layer(0), keep_id.to_mount(0)), (0, 1001, 1));
        assert_eq!(keep_id.to_string(), "0:1:1001:1001:0:1:1002:1002:64535");
    }

    #[test]
    fn an_empty_map_changes_nothing() {
        let map = IdMap::default();
        assert!(map.is_identity());
        assert_eq!((map.to_mount(7), map.to_layer(u32::MAX)), (7, u32::MAX));
    }

    #[test]
    fn malformed_id_maps_are_refused() {
        for (text, why) in [
            ("", IdMapError::NotTriples),
            (":", IdMapError::NotTriples),
            ("0:100000", IdMapError::NotTriples),
            ("0:1:1:5", IdMapError::NotTriples),
            ("x:1:1", IdMapError::NotANumber),
            ("+1:1:1", IdMapError::NotANumber),
            ("-1:1:1", IdMapError::NotANumber),
            ("4294967296:1:1", IdMapError::NotANumber),
            ("0:1:0", IdMapError::BadLength),
            ("4294967295:1:2", IdMapError::BadLength),
            ("0:4294967295:2", IdMapError::BadLength),
            ("0:10:5:4:20:5", IdMapError::Overlap),
            ("0:10:5:5:14:5", IdMapError::Overlap),
        ] {
            assert_eq!(IdMap::parse(text), Err(why), "{text:?}");
        }
        let many = (0..=ID_RANGES_MAX).map(|n| format!(":{n}:{n}:1")).collect::<String>();
        assert_eq!(IdMap::parse(&many), Err(IdMapError::TooMany));
    }

    #[test]
    fn the_two_directions_are_inverse() {
        let map = IdMap::parse("0:1000:1:1:110000:65536:70000:5:3:4294967291:0:5").unwrap();
        for range in map.ranges() {
            for step in [0, range.len / 2, range.len - 1] {
                assert_eq!(map.to_mount(range.layer + step), range.mount + step);
                assert_eq!(map.to_layer(range.mount + step), range.layer + step);
            }
        }
        assert_eq!(IdMap::parse(&map.to_string()).unwrap(), map);
    }
}
