//! Attributes that a program wants to change over its ring.

use vellum_ring::files::{
    ACCESSED_NOW, FOLLOW, MODIFIED_NOW, SET_ACCESSED, SET_GROUP, SET_MODE, SET_MODIFIED, SET_OWNER,
};
use vellum_vfs::{SetAttr, SetTime, Timestamp};

const SECOND: i64 = 1_000_000_000;

/// What is to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetAttrCall {
    pub(crate) set: SetAttr,
    /// Of a symbolic link that is meant which it leads to.
    pub(crate) follows: bool,
}

impl SetAttrCall {
    /// As a request has it. None: of another form.
    pub(crate) fn new(args: &[u64; 5]) -> Option<Self> {
        const KNOWN: u64 = SET_MODE
            | SET_OWNER
            | SET_GROUP
            | SET_ACCESSED
            | SET_MODIFIED
            | ACCESSED_NOW
            | MODIFIED_NOW
            | FOLLOW;
        let [_, which, owners, accessed, modified] = *args;
        let (mode, bits) = ((which >> 32) as u32, which & u64::from(u32::MAX));
        if bits & !KNOWN != 0 || mode & !0o7777 != 0 {
            return None;
        }
        let has = |bit| bits & bit != 0;
        let time = |set, now, nanos: u64| {
            let nanos = nanos.cast_signed();
            let at = Timestamp {
                secs: nanos.div_euclid(SECOND),
                nanos: u32::try_from(nanos.rem_euclid(SECOND)).unwrap_or_default(),
            };
            has(set).then_some(if has(now) { SetTime::Now } else { SetTime::At(at) })
        };
        let set = SetAttr {
            mode: has(SET_MODE).then_some(mode),
            uid: has(SET_OWNER).then_some(owners as u32),
            gid: has(SET_GROUP).then_some((owners >> 32) as u32),
            atime: time(SET_ACCESSED, ACCESSED_NOW, accessed),
            mtime: time(SET_MODIFIED, MODIFIED_NOW, modified),
            ..SetAttr::default()
        };
        Some(Self { set, follows: has(FOLLOW) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_attribute_calls_decode_as_encoded() {
        let before = (-1_i64).cast_unsigned();
        let which = SET_MODE | SET_GROUP | SET_ACCESSED | SET_MODIFIED | ACCESSED_NOW | 0o755 << 32;
        let read = SetAttrCall::new(&[7, which, 5 << 32 | 9, 3, before]).unwrap();
        let expected = SetAttr {
            mode: Some(0o755),
            gid: Some(5),
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::At(Timestamp { secs: -1, nanos: 999_999_999 })),
            ..SetAttr::default()
        };
        assert_eq!(read, SetAttrCall { set: expected, follows: false });
        for wrong in [1 << 8, 1 << 31, 0o10_000 << 32, u64::MAX] {
            assert_eq!(SetAttrCall::new(&[0, wrong, 0, 0, 0]), None, "{wrong:x}");
        }
    }
}
