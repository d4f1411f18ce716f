//! What a client may do past the kernel: all of it is here.
//!
//! A client is known by one user and one group. What needs more knowledge than owner, group and mode is not judged here but left to the
//! kernel, which knows the client better: a right that it has given up cannot be used past it.
//!
//! | left to the kernel | because |
//! | --- | --- |
//! | whatever only further groups, or capabilities, would permit | the client may have any or none; root has no more than others here |
//! | anything in a directory with an ACL; files with one | an ACL says more than the mode |
//! | new names in a directory with a default ACL | the umask does not act there |
//! | files made in a sticky directory | `fs.protected_regular` and its kin |
//! | writing to a file with a set-id bit | the bit goes with the first write, unless the writer has a capability |
//! | writing to a file that can be run, and that the kernel knows | it may be running (ETXTBSY) |
//! | opening to read only | by such a descriptor its holder could change the mode unseen; and nothing is faster by it |
//! | set-id bits on files; an owner given away; a group the client is not known to be in | capabilities, further groups |
//! | the mode of a symbolic link, and what one leads to | the kernel follows it, through mounts |
//! | errors other than a full disk or quota, a long name, a taken name | the kernel may find another one first |

use crate::layers::attrs::{S_ISGID, SET_IDS};
use crate::nodes::node::{Inherit, Owner};
use crate::nodes::text_busy::ANY_EXECUTE;
use vellum_vfs::{Attr, Client, Errno, ExportedFile, FileKind, HandoutError, HandoutFlags, SetAttr, Verdict};

/// Bits of a mode, for one class of users.
pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;
pub(super) const SEARCH: u32 = 1;

const S_ISVTX: u32 = 0o1000;

/// Whether the client may do all of `wanted` with something of this owner, group and mode, whatever further groups it is in.
fn may(client: &Client<'_>, of: Owner, wanted: u32) -> bool {
    let (owner, group, others) = (of.mode >> 6, of.mode >> 3, of.mode);
    let bits = if client.uid == of.uid {
        owner
    } else if client.gid == of.gid {
        group
    } else {
        group & others
    };
    bits & wanted == wanted
}

fn defer_unless(holds: bool) -> Verdict<()> {
    if holds { Ok(()) } else { Err(HandoutError::Kernel) }
}

const fn owner_of(attr: &Attr) -> Owner {
    Owner { uid: attr.uid, gid: attr.gid, mode: attr.mode }
}

/// The client does `wanted` in a directory.
pub(super) fn check_use(client: &Client<'_>, inherit: Inherit, wanted: u32) -> Verdict<()> {
    defer_unless(!inherit.acl && may(client, inherit.owner, wanted))
}

/// The client makes something with these permission bits in a directory.
pub(super) fn check_create(client: &Client<'_>, inherit: Inherit, mode: u32) -> Verdict<()> {
    check_use(client, inherit, WRITE | SEARCH)?;
    defer_unless(!inherit.default_acl && mode & !0o1777 == 0)
}

/// The client makes a file with these permission bits in a directory.
pub(super) fn check_create_file(client: &Client<'_>, inherit: Inherit, mode: u32) -> Verdict<()> {
    check_create(client, inherit, mode)?;
    defer_unless(inherit.owner.mode & S_ISVTX == 0)
}

/// The client gets a file that has been opened to write, as `flags` say. `known`: the kernel knows it.
pub(super) fn gets(
    client: &Client<'_>,
    opened: &ExportedFile,
    flags: HandoutFlags,
    known: bool,
) -> Verdict<()> {
    let access = if flags.contains(HandoutFlags::READ) { READ | WRITE } else { WRITE };
    let mode = opened.attr.mode;
    // Whether a program runs, and must not be written to, the kernel knows of those that it knows.
    let special = mode & SET_IDS != 0 || known && mode & ANY_EXECUTE != 0;
    defer_unless(!special && !opened.acl && may(client, owner_of(&opened.attr), access))
}

/// The client, which has the file open to write by way of the kernel, gets it to write.
pub(super) fn gets_again(client: &Client<'_>, opened: &ExportedFile) -> Verdict<()> {
    let has_set_ids = opened.attr.mode & SET_IDS != 0;
    defer_unless(!has_set_ids && !opened.acl && may(client, owner_of(&opened.attr), WRITE))
}

/// The client changes attributes of what has these: as its owner, without any capability, and nothing else would come of it by the
/// kernel, which takes set-id bits away with a change of owner, and does not change the mode of links.
pub(super) fn changes(client: &Client<'_>, attr: &Attr, set: &SetAttr, follows: bool) -> Verdict<()> {
    let kind = attr.kind();
    let mode = set.mode.unwrap_or_default();
    let is_link = kind == FileKind::Symlink;
    defer_unless(attr.uid == client.uid && !(is_link && (follows || set.mode.is_some())))?;
    defer_unless(kind == FileKind::Directory || (attr.mode | mode) & SET_IDS == 0)?;
    let gid = set.gid.unwrap_or(attr.gid);
    let keeps_owner = set.uid.is_none_or(|uid| uid == attr.uid);
    let may_give = gid == attr.gid || gid == client.gid;
    // Whoever is not in the group does not make anything set-group-id.
    defer_unless(keeps_owner && may_give && (mode & S_ISGID == 0 || gid == client.gid))
}

/// Errors of what was to be made that mean the same to the client; whatever else went wrong, the kernel is to say.
pub(super) fn refusal_for(errno: Errno) -> HandoutError {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::NAMETOOLONG | Errno::EXIST => HandoutError::Error(errno),
        _ => HandoutError::Kernel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Client<'static> = Client { uid: 10, gid: 20, progress: &() };

    fn of(mode: u32) -> Attr {
        Attr { uid: 10, gid: 20, mode, ..Attr::default() }
    }

    #[test]
    fn access_is_judged_by_the_least_permitting_group() {
        let may = |mode, uid, gid, wanted| {
            may(&Client { uid, gid, ..ME }, Owner { uid: 10, gid: 20, mode }, wanted)
        };
        assert!(may(0o100_700, 10, 99, READ | WRITE | SEARCH));
        // The owner is judged as the owner, and root has no more than others.
        assert!(!may(0o100_077, 10, 20, READ) && !may(0o100_600, 0, 0, READ));
        assert!(may(0o100_070, 11, 20, WRITE) && !may(0o100_070, 11, 21, WRITE));
        // Who is in a group that may less than others may be in that group.
        assert!(
            !may(0o100_606, 11, 21, READ) && may(0o100_664, 11, 21, READ) && !may(0o100_664, 11, 21, WRITE)
        );
    }

    #[test]
    fn directories_with_acls_are_left_to_the_kernel() {
        let plain =
            |mode| Inherit { owner: Owner { uid: 10, gid: 20, mode }, default_acl: false, acl: false };
        assert!(check_create_file(&ME, plain(0o40_700), 0o644).is_ok());
        assert!(
            check_create_file(&ME, plain(0o40_500), 0o644).is_err()
                && check_use(&ME, plain(0o40_500), SEARCH).is_ok()
        );
        assert!(
            check_create_file(&ME, plain(0o41_777), 0o644).is_err()
                && check_create(&ME, plain(0o41_777), 0o644).is_ok()
        );
        assert!(check_create(&ME, plain(0o40_700), 0o2755).is_err(), "set-id bits");
        let with_default = Inherit { default_acl: true, ..plain(0o40_700) };
        assert!(
            check_create(&ME, with_default, 0o644).is_err() && check_use(&ME, with_default, SEARCH).is_ok()
        );
        assert!(check_use(&ME, Inherit { acl: true, ..plain(0o40_700) }, SEARCH).is_err());
    }

    #[test]
    fn owners_may_change_what_needs_no_privilege() {
        let may = |set: SetAttr, attr: &Attr| changes(&ME, attr, &set, false).is_ok();
        let no = SetAttr::default();
        let mode = |mode| SetAttr { mode: Some(mode), ..no };
        let time = SetAttr { mtime: Some(vellum_vfs::SetTime::Now), ..no };
        let all = SetAttr { uid: Some(10), gid: Some(20), mtime: time.mtime, ..mode(0o755) };
        assert!(may(all, &of(0o40_700)));
        assert!(may(SetAttr { mode: Some(0o2755), ..all }, &of(0o40_700)));
        assert!(may(SetAttr { gid: Some(20), ..no }, &of(0o100_600)));
        let root = Client { uid: 0, gid: 0, ..ME };
        assert!(changes(&root, &of(0o100_666), &time, false).is_err(), "another's");
        assert!(!may(SetAttr { uid: Some(11), ..no }, &of(0o100_600)), "given away");
        assert!(!may(SetAttr { gid: Some(21), ..no }, &of(0o100_600)), "to another group");
        let set_ids = SetAttr { gid: Some(20), ..no };
        assert!(!may(set_ids, &of(0o104_700)), "set-id bits go with a change of owner");
        assert!(!may(mode(0o4755), &of(0o100_700)), "a program with set-id bits");
        let theirs = Attr { gid: 21, ..of(0o40_700) };
        assert!(!may(mode(0o2755), &theirs) && may(mode(0o755), &theirs));
        let link = of(0o120_777);
        assert!(may(SetAttr { uid: Some(10), ..time }, &link));
        assert!(changes(&ME, &link, &time, true).is_err() && !may(mode(0o700), &link));
    }
}
