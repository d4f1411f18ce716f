//! POSIX ACLs in the form that their extended attributes have, and what they do to modes.

use vellum_vfs::Errno;

pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const UNDEFINED_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

#[derive(Clone)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// The list in an attribute's value, not yet [checked](Self::check); None when it has no entries. EINVAL, or
    /// EOPNOTSUPP for a version that nobody knows.
    pub(crate) fn parse(value: &[u8]) -> Result<Option<Self>, Errno> {
        if value.is_empty() {
            return Ok(None);
        }
        let (version, rest) = value.split_first_chunk::<4>().ok_or(Errno::INVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::OPNOTSUPP);
        }
        let (chunks, left) = rest.as_chunks::<8>();
        if !left.is_empty() {
            return Err(Errno::INVAL);
        }
        let entries: Vec<Entry> = chunks
            .iter()
            .map(|&[t0, t1, p0, p1, i0, i1, i2, i3]| {
                let tag = u16::from_le_bytes([t0, t1]);
                let id = u32::from_le_bytes([i0, i1, i2, i3]);
                Entry {
                    tag,
                    perm: u16::from_le_bytes([p0, p1]),
                    id: if matches!(tag, USER | GROUP) { id } else { UNDEFINED_ID },
                }
            })
            .collect();
        if entries.is_empty() {
            return Ok(None);
        }
        let known = |entry: &Entry| match entry.tag {
            USER | GROUP => entry.id != UNDEFINED_ID,
            tag => matches!(tag, USER_OBJ | GROUP_OBJ | MASK | OTHER),
        };
        if entries.iter().all(known) { Ok(Some(Self(entries))) } else { Err(Errno::INVAL) }
    }

    /// Each class in its order, the three base entries once, a mask where there are named entries. EINVAL.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let sane = self.0.iter().all(|entry| entry.perm <= 7);
        let ordered = self.0.is_sorted_by_key(|entry| entry.tag);
        let base = [USER_OBJ, GROUP_OBJ, OTHER].into_iter().all(|tag| count(tag) == 1);
        let masked = count(MASK) == 1 || (count(MASK) == 0 && count(USER) + count(GROUP) == 0);
        if sane && ordered && base && masked { Ok(()) } else { Err(Errno::INVAL) }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            value.extend(entry.tag.to_le_bytes());
            value.extend(entry.perm.to_le_bytes());
            value.extend(entry.id.to_le_bytes());
        }
        value
    }

    /// Whether a mode says as much.
    pub(crate) fn is_minimal(&self) -> bool {
        self.0.iter().all(|entry| matches!(entry.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// The entry that the group bits of the mode stand for.
    fn group_class(&self) -> u16 {
        if self.0.iter().any(|entry| entry.tag == MASK) { MASK } else { GROUP_OBJ }
    }

    /// The permission bits that show this list.
    pub(crate) fn mode_bits(&self) -> u32 {
        let group = self.group_class();
        self.0.iter().fold(0, |mode, entry| {
            let perm = u32::from(entry.perm);
            match entry.tag {
                USER_OBJ => mode | perm << 6,
                OTHER => mode | perm,
                tag if tag == group => mode | perm << 3,
                _ => mode,
            }
        })
    }

    /// Changes the classes that a mode stands for.
    fn each_class(&mut self, mut change: impl FnMut(u16, u16) -> u16, mode: u32) {
        let group = self.group_class();
        for entry in &mut self.0 {
            let shift = match entry.tag {
                USER_OBJ => 6,
                OTHER => 0,
                tag if tag == group => 3,
                _ => continue,
            };
            entry.perm = change(entry.perm, ((mode >> shift) & 7) as u16);
        }
    }

    /// chmod.
    pub(crate) fn set_mode(&mut self, mode: u32) {
        self.each_class(|_, bits| bits, mode);
    }

    /// What an object created with `mode` gets from this default list.
    pub(crate) fn inherit(&self, mode: u32) -> Self {
        let mut child = self.clone();
        child.each_class(|perm, bits| perm & bits, mode);
        child
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        Acl(entries.iter().map(|&(tag, perm, id)| Entry { tag, perm, id }).collect()).encode()
    }

    #[test]
    fn only_well_formed_lists_are_taken() {
        assert!(Acl::parse(&[]).unwrap().is_none());
        assert_eq!(Acl::parse(&[1, 2]).err(), Some(Errno::INVAL));
        assert_eq!(Acl::parse(&[3, 0, 0, 0]).err(), Some(Errno::OPNOTSUPP));
        let named = [(USER_OBJ, 7, 0), (USER, 5, 1000), (GROUP_OBJ, 5, 0), (OTHER, 0, 0)];
        let unmasked = Acl::parse(&value(&named)).unwrap().unwrap();
        assert_eq!(unmasked.check(), Err(Errno::INVAL), "a mask is missing");
        assert_eq!(Acl::parse(&value(&[(3, 7, 0)])).err(), Some(Errno::INVAL), "no such tag");
        let good = [(USER_OBJ, 7, 0), (USER, 5, 1000), (GROUP_OBJ, 5, 0), (MASK, 4, 0), (OTHER, 0, 0)];
        let acl = Acl::parse(&value(&good)).unwrap().unwrap();
        assert_eq!(acl.check(), Ok(()));
        assert!(!acl.is_minimal());
        assert_eq!(acl.mode_bits(), 0o740);
        assert_eq!(acl.inherit(0o600).mode_bits(), 0o600);
    }
}
