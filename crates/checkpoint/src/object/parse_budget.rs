//! Lists and maps that somebody else has written, in bounded memory: some bytes there can be fifty times as many here.
//!
//! Who reads says how much may be taken ([`within`]); each element is charged before it is made, by its size and as lists grow.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

thread_local! {
    /// Bytes that may still be taken.
    static LEFT: Cell<usize> = const { Cell::new(0) };
}

/// Reads with at most so many bytes of memory for elements.
pub(super) fn within<T>(bytes: usize, read: impl FnOnce() -> T) -> T {
    let before = LEFT.replace(bytes);
    let done = read();
    LEFT.set(before);
    done
}

fn charge<E: Error>(bytes: usize) -> Result<(), E> {
    let left = LEFT.get().checked_sub(bytes).ok_or_else(|| E::custom("more than there is room for"))?;
    LEFT.set(left);
    Ok(())
}

struct List<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
    type Value = Vec<T>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(one) = all.next_element()? {
            // A list that grows has half as much again, which it gives back.
            charge(2 * size_of::<T>())?;
            list.push(one);
        }
        list.shrink_to_fit();
        Ok(list)
    }
}

pub(super) fn list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(List(PhantomData))
}

struct Map<K, V>(PhantomData<(K, V)>);

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Visitor<'de> for Map<K, V> {
    type Value = BTreeMap<K, V>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<BTreeMap<K, V>, A::Error> {
        let mut map = BTreeMap::new();
        while let Some((key, value)) = all.next_entry()? {
            // Nodes of the tree are half full at least.
            charge(2 * size_of::<(K, V)>())?;
            map.insert(key, value);
        }
        Ok(map)
    }
}

pub(super) fn map<'de, K, V, D>(from: D) -> Result<BTreeMap<K, V>, D::Error>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    from.deserialize_map(Map(PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Serialize;

    #[derive(Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
    struct Both {
        #[serde(deserialize_with = "list")]
        list: Vec<(Vec<u8>, Vec<u8>)>,
        #[serde(deserialize_with = "map")]
        map: BTreeMap<u64, u64>,
    }

    #[test]
    fn parsing_stays_within_its_memory_budget() {
        let both =
            Both { list: vec![Default::default(); 1000], map: (0..1000).map(|key| (key, 7)).collect() };
        let bytes = postcard::to_stdvec(&both).unwrap();
        let most = 2 * 1000 * (48 + 16);
        let read = |room| within(room, || postcard::from_bytes::<Both>(&bytes));
        assert_eq!(read(most).as_ref(), Ok(&both));
        assert!(read(most - 1).is_err() && read(0).is_err());
        // A claim alone takes nothing.
        let claim = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert!(within(most, || postcard::from_bytes::<Both>(&claim)).is_err());
    }
}
