//! Attributes that a program wants to change over its ring, and whether it may without the kernel being asked.

use super::calls::Identity;
use vellum_ring::files::{
    ACCESSED_NOW, FOLLOW, MODIFIED_NOW, SET_ACCESSED, SET_GROUP, SET_MODE, SET_MODIFIED, SET_OWNER,
};
use vellum_vfs::{Attr, FileKind, SetAttr, SetTime, Timestamp};

const S_ISGID: u32 = 0o2000;
const SET_IDS: u32 = 0o6000;
const SECOND: i64 = 1_000_000_000;

/// What is to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) set: SetAttr,
    follows: bool,
}

impl Wish {
    /// As a request has it. None: of another form.
    pub(super) fn new(args: &[u64; 5]) -> Option<Self> {
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

    /// Whether the owner alone, without any capability, may do that to what has these attributes, and nothing else would come of it by the
    /// kernel: that takes set-id bits away with a change of owner, and does not change the mode of links.
    pub(super) fn may(&self, who: Identity, attr: &Attr) -> bool {
        let kind = attr.kind();
        let is_link = kind == FileKind::Symlink;
        if attr.uid != who.uid || is_link && (self.follows || self.set.mode.is_some()) {
            return false;
        }
        if kind != FileKind::Directory && (attr.mode | self.set.mode.unwrap_or_default()) & SET_IDS != 0 {
            return false;
        }
        let gid = self.set.gid.unwrap_or(attr.gid);
        let keeps_owner = self.set.uid.is_none_or(|uid| uid == attr.uid);
        let may_give = gid == attr.gid || gid == who.gid;
        // Whoever is not in the group does not make anything set-group-id.
        let mode = self.set.mode.unwrap_or_default();
        keeps_owner && may_give && (mode & S_ISGID == 0 || gid == who.gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Identity = Identity { uid: 10, gid: 20 };

    fn of(mode: u32) -> Attr {
        Attr { uid: 10, gid: 20, mode, ..Attr::default() }
    }

    fn wish(which: u64, mode: u32, uid: u32, gid: u32) -> Wish {
        Wish::new(&[0, which | u64::from(mode) << 32, u64::from(uid) | u64::from(gid) << 32, 0, 0]).unwrap()
    }

    #[test]
    fn what_is_asked_for_is_read_as_it_is_written() {
        let before = (-1_i64).cast_unsigned();
        let which = SET_MODE | SET_GROUP | SET_ACCESSED | SET_MODIFIED | ACCESSED_NOW | 0o755 << 32;
        let read = Wish::new(&[7, which, 5 << 32 | 9, 3, before]).unwrap();
        let expected = SetAttr {
            mode: Some(0o755),
            gid: Some(5),
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::At(Timestamp { secs: -1, nanos: 999_999_999 })),
            ..SetAttr::default()
        };
        assert_eq!(read, Wish { set: expected, follows: false });
        for wrong in [1 << 8, 1 << 31, 0o10_000 << 32, u64::MAX] {
            assert_eq!(Wish::new(&[0, wrong, 0, 0, 0]), None, "{wrong:x}");
        }
    }

    #[test]
    fn owners_may_do_what_needs_no_more() {
        let all = SET_MODE | SET_OWNER | SET_GROUP | SET_ACCESSED | SET_MODIFIED;
        assert!(wish(all, 0o755, 10, 20).may(ME, &of(0o40_700)));
        assert!(
            wish(all, 0o2755, 10, 20).may(ME, &of(0o40_700))
                && wish(SET_GROUP, 0, 0, 20).may(ME, &of(0o100_600))
        );
        assert!(!wish(SET_ACCESSED, 0, 0, 0).may(Identity { uid: 0, gid: 0 }, &of(0o100_666)), "another's");
        assert!(!wish(SET_OWNER, 0, 11, 0).may(ME, &of(0o100_600)), "given away");
        assert!(!wish(SET_GROUP, 0, 0, 21).may(ME, &of(0o100_600)), "to another group");
        assert!(!wish(SET_GROUP, 0, 0, 20).may(ME, &of(0o104_700)), "set-id bits go with a change of owner");
        assert!(!wish(SET_MODE, 0o4755, 0, 0).may(ME, &of(0o100_700)), "a program with set-id bits");
        let theirs = Attr { gid: 21, ..of(0o40_700) };
        assert!(
            !wish(SET_MODE, 0o2755, 0, 0).may(ME, &theirs) && wish(SET_MODE, 0o755, 0, 0).may(ME, &theirs)
        );
        let link = of(0o120_777);
        assert!(wish(SET_MODIFIED | SET_OWNER, 0, 10, 0).may(ME, &link));
        assert!(
            !wish(SET_MODIFIED | FOLLOW, 0, 0, 0).may(ME, &link)
                && !wish(SET_MODE, 0o700, 0, 0).may(ME, &link)
        );
    }
}
