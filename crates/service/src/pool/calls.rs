//! What a program asks for over its ring: files of the upper layer themselves.
//!
//! The union says whether something means the same there; the system calls are made here, in a directory of the upper layer that the
//! program has entered, and here is judged whether this program may do it. That is done by owner, group and mode alone. Whatever
//! depends on more (capabilities, further groups, ACLs, sticky directories, set-id bits) is left to the kernel, which knows the program
//! better: a right that it has given up cannot be used here.

use super::direct::DirectMount;
use super::host::{Host, Tree};
use super::program::Program;
use super::view::view;
use super::wish::Wish;
use crate::handed::{Call, Counts};
use crate::tokens::Shower;
use rustix::fs::{
    AtFlags, Mode, OFlags, Stat, fchown, fcntl_setfl, fgetxattr, fstat, ftruncate, openat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use std::cell::OnceCell;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;
use vellum_ring::Request;
use vellum_ring::files::{
    ASK_KERNEL, CHECKED, DEPTH_MAX, ENTER, LOOK, MAKE_DIR, MAKE_LINK, MOUNT_NUMBERS, NAME_MAX, OPEN, REOPEN,
    SET_ATTRIBUTES, SLOT_BYTES, STALE, STAT, STAT_WORDS, TOKEN_BYTES, UNLINK, VIEW, VOLATILE,
};
use vellum_sys::open_beside_leases;
use vellum_union::{Directory, Owner, Refused, Wanted};
use vellum_vfs::{Attr, Context, Name, NodeId};

const ACCESS_ACL: &CStr = c"system.posix_acl_access";
const S_ISVTX: u32 = 0o1000;
const SET_IDS: u32 = 0o6000;
const ANY_EXECUTE: u32 = 0o111;
const READ: u32 = 4;
const WRITE: u32 = 2;
const SEARCH: u32 = 1;
/// How long a lease on a file is waited for. A directory is locked meanwhile: for longer only the kernel's way does.
const LEASE_MAX: Duration = Duration::from_millis(2);

/// Where the files of a mount are handed out.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) tree: Weak<Tree>,
    pub(super) direct: Arc<DirectMount>,
}

impl Door {
    /// Whether the mount is still served, and is one whose files are handed out.
    pub(super) fn is_open(&self) -> bool {
        self.tree.upgrade().is_some_and(|tree| tree.inner().hands_out())
    }

    /// As a greeting has it; nothing of one that is not served any more.
    pub(super) fn numbers(&self) -> impl Iterator<Item = [u64; MOUNT_NUMBERS]> {
        let tree = self.tree.upgrade();
        let flags = tree.as_ref().is_some_and(|tree| tree.inner().is_volatile()).then_some(VOLATILE);
        self.direct.numbers(flags.unwrap_or_default()).filter(move |_| tree.is_some())
    }
}

/// A directory that a program has entered, or is to enter.
pub(super) struct Entered {
    /// Its number, from when it is entered.
    pub(super) number: u64,
    pub(super) tree: Weak<Tree>,
    pub(super) dir: Directory,
    /// The same in the upper layer.
    at: OwnedFd,
    /// The same for files that are only read, from when one is; None: there is no such mount.
    reading: OnceCell<Option<OwnedFd>>,
    counts: Arc<Counts>,
}

impl Entered {
    /// Whether its mount is still served.
    pub(super) fn is_there(&self) -> bool {
        self.tree.strong_count() > 0
    }

    /// The directory's owner, if this program may do that in it.
    fn lets(&self, tree: &Tree, who: Identity, wanted: u32) -> Result<Owner, Refused> {
        let owner = tree.inner().owner(&self.dir)?;
        if who.may(owner, wanted) { Ok(owner) } else { Err(Refused::Front) }
    }

    /// The directory in the upper layer for files that are only read.
    fn to_read(&self, host: &Host, tree: &Tree) -> Result<&OwnedFd, Refused> {
        let open = || {
            let door = host.doors().into_iter().find(|door| door.tree.ptr_eq(&self.tree))?;
            let (path, ino) = tree.inner().upper_path(&self.dir).ok()?;
            door.direct.directory_to_read(&path, ino).ok()
        };
        self.reading.get_or_init(open).as_ref().ok_or(Refused::Front)
    }

    fn new(tree: Weak<Tree>, dir: Directory, at: OwnedFd, counts: Arc<Counts>) -> Self {
        Self { number: 0, tree, dir, at, reading: OnceCell::new(), counts }
    }

    /// As the answer has it.
    pub(super) fn values(&self) -> [u64; 6] {
        [self.number, self.dir.ino(), 0, 0, 0, 0]
    }
}

/// Who a program is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// What came of a call.
pub(super) enum Done {
    Values([u64; 6]),
    Data([u8; STAT_WORDS * 8]),
    File(OwnedFd),
    /// A directory that is to be entered.
    Directory(Entered),
    /// A directory to look at, unless the program has it already; the memory, the number and the value of the word that says how long;
    /// and hashes of names that the kernel knows.
    View {
        mount: Option<OwnedFd>,
        word: [u64; 3],
        known: Vec<u32>,
    },
}

/// The status of a response.
pub(super) fn status(refused: Refused) -> i32 {
    let number = match refused {
        Refused::Error(errno) => return errno.raw_os_error(),
        Refused::Front => ASK_KERNEL,
        Refused::Known => LOOK,
        Refused::Stale => STALE,
    };
    number as i32
}

impl Identity {
    /// Whether it may do all of `wanted` with something of this owner, group and mode, whatever further groups it is in.
    fn may(self, of: Owner, wanted: u32) -> bool {
        let (owner, group, others) = (of.mode >> 6, of.mode >> 3, of.mode);
        let bits = if self.uid == of.uid {
            owner
        } else if self.gid == of.gid {
            group
        } else {
            group & others
        };
        bits & wanted == wanted
    }
}

fn owner_of(stat: &Stat) -> Owner {
    Owner { uid: stat.st_uid, gid: stat.st_gid, mode: stat.st_mode }
}

fn has_acl(file: &OwnedFd) -> bool {
    fgetxattr(file, ACCESS_ACL, &mut [0u8; 0]).is_ok_and(|len| len > 0)
}

/// A file that was opened with `O_NONBLOCK`, because of leases, gets the flags that the program wants.
fn set_flags(file: &OwnedFd, flags: OFlags) -> Result<(), Refused> {
    const SET: OFlags = OFlags::APPEND.union(OFlags::DIRECT);
    if flags.contains(OFlags::NONBLOCK) { Ok(()) } else { fcntl_setfl(file, flags & SET).map_err(front) }
}

pub(super) fn front<T>(_: T) -> Refused {
    Refused::Front
}

/// Errors that mean the same to the program; whatever else went wrong, the kernel is to say.
fn told(errno: Errno) -> Refused {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::NAMETOOLONG | Errno::EXIST => Refused::Error(errno),
        _ => Refused::Front,
    }
}

/// The same for what was to be made.
fn tell(refused: Refused) -> Refused {
    if let Refused::Error(errno) = refused { told(errno) } else { refused }
}

/// Carries out a call. `announce` is told before something is changed that is not the same when it is done twice, and when it has not
/// been changed after all.
pub(super) fn carry_out(
    program: &mut Program<'_>,
    request: &Request,
    data: &[u8],
    announce: &dyn Fn(bool),
) -> Result<Done, Refused> {
    let [directory, flags, mode, ..] = request.args;
    match request.opcode {
        ENTER => return enter(program, data),
        REOPEN => return reopen(program, flags as u32, data),
        VIEW => return view(program, request),
        _ => {}
    }
    let (data, rest) = match request.opcode {
        MAKE_LINK => data.split_at_checked(flags as usize).ok_or(Refused::Front)?,
        _ => (data, &[][..]),
    };
    let (path, name) = match data.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (data.get(..at), data.get(at + 1..).unwrap_or_default()),
        None => (None, data),
    };
    let directory = path.map_or(Ok(directory), |path| descend(program, directory, path))?;
    let name = Text::<{ NAME_MAX + 1 }>::new(name)?;
    let (who, host) = (program.who, program.host);
    let entered = program.find(directory).ok_or(Refused::Stale)?;
    let asked = Asked {
        host,
        who,
        tree: entered.tree.upgrade().ok_or(Refused::Stale)?,
        entered,
        name: name.name()?,
        checked: request.flags & CHECKED != 0,
        announce,
    };
    let (call, done) = match request.opcode {
        OPEN => (Call::Open, asked.open(flags as u32, mode as u32).map(Done::File)),
        STAT => (Call::Stat, asked.stat().map(|attr| Done::Data(words(&attr)))),
        UNLINK => (Call::Unlink, asked.unlink().map(|()| Done::Values([0; 6]))),
        MAKE_DIR => (Call::MakeDir, asked.make_dir(mode as u32)),
        SET_ATTRIBUTES => (Call::SetAttributes, asked.set(&request.args).map(|()| Done::Values([0; 6]))),
        MAKE_LINK => (Call::MakeLink, asked.make_link(rest).map(|()| Done::Values([0; 6]))),
        _ => (Call::Kernel, Err(Refused::Front)),
    };
    entered.counts.count(if matches!(done, Ok(_) | Err(Refused::Error(_))) { call } else { Call::Kernel });
    done
}

/// A string with the byte that ends it.
struct Text<const N: usize>([u8; N], usize);

impl<const N: usize> Text<N> {
    fn new(bytes: &[u8]) -> Result<Self, Refused> {
        let mut all = [0; N];
        let room = all.get_mut(..bytes.len()).filter(|_| bytes.len() < N).ok_or(Refused::Front)?;
        room.copy_from_slice(bytes);
        Ok(Self(all, bytes.len()))
    }

    fn c_str(&self) -> Result<&CStr, Refused> {
        CStr::from_bytes_with_nul(self.0.get(..=self.1).unwrap_or_default()).map_err(front)
    }

    fn name(&self) -> Result<Name<'_>, Refused> {
        Name::new(self.c_str()?).map_err(front)
    }
}

/// The number of the directory that a path leads to from another one, through directories that the program has entered, may search, and
/// that the kernel does not know. Whatever is not so is to be asked by a path through the kernel.
fn descend(program: &mut Program<'_>, from: u64, path: &[u8]) -> Result<u64, Refused> {
    let who = program.who;
    let mut at = from;
    for (depth, name) in path.split(|byte| *byte == b'/').enumerate() {
        if depth >= DEPTH_MAX {
            return Err(Refused::Front);
        }
        let name = Text::<{ NAME_MAX + 1 }>::new(name)?;
        let entered = program.find(at).ok_or(Refused::Stale)?;
        let tree = entered.tree.upgrade().ok_or(Refused::Stale)?;
        entered.lets(&tree, who, SEARCH)?;
        let below = tree.inner().unseen_below(&entered.dir, name.name()?)?;
        let known = program.entered.iter().find(|entered| entered.dir.is(&below));
        at = known.map(|entered| entered.number).ok_or(Refused::Known)?;
    }
    Ok(at)
}

fn enter(program: &mut Program<'_>, data: &[u8]) -> Result<Done, Refused> {
    let shown = Shown::find(program, data)?;
    let dir = shown.tree.inner().directory(shown.node)?;
    let (path, ino) = shown.tree.inner().upper_path(&dir)?;
    let at = shown.door.direct.directory(&path, ino).map_err(front)?;
    let counts = shown.counts(program)?;
    Ok(Done::Directory(Entered::new(shown.door.tree, dir, at, counts)))
}

/// The file of a descriptor, to write.
fn reopen(program: &Program<'_>, flags: u32, data: &[u8]) -> Result<Done, Refused> {
    let known = OFlags::NONBLOCK | OFlags::DSYNC | OFlags::SYNC | OFlags::LARGEFILE;
    let flags = OFlags::from_bits_retain(flags);
    if !known.contains(flags) {
        return Err(Refused::Front);
    }
    let shown = Shown::find(program, data)?;
    let counts = shown.counts(program)?;
    let done = shown.tree.inner().reopen_direct(shown.node, |path| {
        let opens = flags | OFlags::WRONLY | OFlags::NONBLOCK;
        let opened = open_beside_leases(LEASE_MAX, || shown.door.direct.open(path, opens));
        let (file, stat) = opened.map_err(front)?;
        if stat.st_mode & SET_IDS != 0 || has_acl(&file) || !program.who.may(owner_of(&stat), WRITE) {
            return Err(Refused::Front);
        }
        set_flags(&file, flags)?;
        Ok((file, stat.st_ino))
    });
    counts.count(if done.is_ok() { Call::Open } else { Call::Kernel });
    done.map(Done::File)
}

/// Something that a program has shown, and where.
struct Shown {
    door: Door,
    tree: Arc<Tree>,
    node: NodeId,
}

impl Shown {
    fn find(program: &Program<'_>, token: &[u8]) -> Result<Self, Refused> {
        let token = <[u8; TOKEN_BYTES]>::try_from(token).map_err(front)?;
        let Identity { uid, gid } = program.who;
        let who = Shower { uid, gid, process: program.number };
        program
            .host
            .doors()
            .into_iter()
            .find_map(|door| {
                let tree = door.tree.upgrade()?;
                let node = tree.redeem(who, &token)?;
                Some(Self { door, tree, node })
            })
            .ok_or(Refused::Front)
    }

    /// The program's counts there.
    fn counts(&self, program: &Program<'_>) -> Result<Arc<Counts>, Refused> {
        let same = program.entered.iter().find(|entered| entered.tree.ptr_eq(&self.door.tree));
        same.map(|entered| Arc::clone(&entered.counts)).or_else(|| self.tree.counts()).ok_or(Refused::Front)
    }
}

/// A call about a name in a directory.
struct Asked<'a> {
    host: &'a Host,
    who: Identity,
    tree: Arc<Tree>,
    entered: &'a Entered,
    name: Name<'a>,
    checked: bool,
    announce: &'a dyn Fn(bool),
}

impl Asked<'_> {
    /// Does something that is not the same when it is done twice.
    fn once<T, E>(&self, act: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        (self.announce)(true);
        let done = act();
        if done.is_err() {
            (self.announce)(false);
        }
        done
    }

    fn wanted(&self, writes: bool) -> Wanted<'_> {
        Wanted { dir: &self.entered.dir, name: self.name, checked: self.checked, writes }
    }

    /// Names are the kernel's alone while something that a predecessor had begun may come again.
    fn settled(&self) -> Result<(), Refused> {
        if self.tree.is_settled() { Ok(()) } else { Err(Refused::Front) }
    }

    /// The directory's owner, if the program may do that in it.
    fn directory(&self, wanted: u32) -> Result<Owner, Refused> {
        self.entered.lets(&self.tree, self.who, wanted)
    }

    fn context(&self) -> Context<'static> {
        Context { uid: self.who.uid, gid: self.who.gid, pid: 0, umask: 0, groups: &[], who: None }
    }

    fn open(&self, flags: u32, mode: u32) -> Result<OwnedFd, Refused> {
        let known = OFlags::RWMODE
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::TRUNC
            | OFlags::APPEND
            | OFlags::NONBLOCK
            | OFlags::DSYNC
            | OFlags::SYNC
            | OFlags::DIRECT
            | OFlags::LARGEFILE
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC
            | OFlags::NOCTTY;
        let flags = OFlags::from_bits_retain(flags);
        if !known.contains(flags) || flags.contains(OFlags::RWMODE) || mode & !0o1777 != 0 {
            return Err(Refused::Front);
        }
        let directory = self.directory(SEARCH)?;
        let plain =
            (flags - (OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC)) | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let only_reads = flags & OFlags::RWMODE == OFlags::RDONLY;
        if only_reads && flags.intersects(OFlags::CREATE | OFlags::TRUNC) {
            return Err(Refused::Front);
        }
        if flags.contains(OFlags::CREATE) {
            self.settled()?;
            if !self.who.may(directory, WRITE | SEARCH) || directory.mode & S_ISVTX != 0 {
                return Err(Refused::Front);
            }
            let make = || self.create(plain, mode, directory);
            match self.tree.inner().make_direct(&self.wanted(true), make) {
                Err(Refused::Error(errno)) => match told(errno) {
                    // Taken, in whatever way; exclusively it is an error, which the kernel may find otherwise.
                    Refused::Error(Errno::EXIST) if !flags.contains(OFlags::EXCL) => {}
                    Refused::Error(Errno::EXIST) => return Err(Refused::Front),
                    other => return Err(other),
                },
                other => return other,
            }
        }
        match self.open_there(flags, plain) {
            // A name that is taken, and nothing to be seen there: a whiteout, whose place the kernel's file takes.
            Err(Refused::Error(Errno::NOENT)) if flags.contains(OFlags::CREATE) => Err(Refused::Front),
            other => other,
        }
    }

    /// Makes a file, exclusively.
    fn create(&self, flags: OFlags, mode: u32, directory: Owner) -> Result<(OwnedFd, u64), Errno> {
        let create = OFlags::CREATE | OFlags::EXCL;
        let (at, name, mode) = (&self.entered.at, self.name.as_c_str(), Mode::from_raw_mode(mode));
        let file = self.once(|| openat(at, name, flags | create, mode))?;
        match self.own(&file, directory) {
            Ok(ino) => Ok((file, ino)),
            Err(error) => {
                let _ = unlinkat(&self.entered.at, self.name.as_c_str(), AtFlags::empty());
                Err(if error == Errno::EXIST { Errno::IO } else { error })
            }
        }
    }

    /// Gives a new file to the program; its inode number.
    fn own(&self, file: &OwnedFd, directory: Owner) -> Result<u64, Errno> {
        let stat = fstat(file)?;
        // A set-group-id directory has given it its group.
        let gid = if directory.mode & 0o2000 != 0 { stat.st_gid } else { self.who.gid };
        if (stat.st_uid, stat.st_gid) != (self.who.uid, gid) {
            fchown(file, Some(Uid::from_raw(self.who.uid)), Some(Gid::from_raw(gid)))?;
        }
        Ok(stat.st_ino)
    }

    fn open_there(&self, flags: OFlags, plain: OFlags) -> Result<OwnedFd, Refused> {
        let cuts = flags.contains(OFlags::TRUNC);
        let access = match flags & OFlags::RWMODE {
            OFlags::WRONLY => WRITE,
            OFlags::RDWR => READ | WRITE,
            _ => READ,
        };
        let writes = access & WRITE != 0;
        // What may only be read is opened where nothing can be changed: whoever has it could set its mode, or open it once more, unseen.
        let at = if writes { &self.entered.at } else { self.entered.to_read(self.host, &self.tree)? };
        let open = |is_known: bool| {
            let flags = plain | OFlags::NONBLOCK;
            let name = self.name.as_c_str();
            let opened = open_beside_leases(LEASE_MAX, || openat(at, name, flags, Mode::empty()));
            let file = opened.map_err(front)?;
            let stat = fstat(&file).map_err(front)?;
            // Whether a program runs, and must not be written to, the kernel knows of those that it knows.
            let special =
                writes && (stat.st_mode & SET_IDS != 0 || is_known && stat.st_mode & ANY_EXECUTE != 0);
            if special || has_acl(&file) || !self.who.may(owner_of(&stat), access) {
                return Err(Refused::Front);
            }
            set_flags(&file, plain)?;
            Ok((file, stat.st_ino))
        };
        let cut = |file| {
            if cuts {
                ftruncate(&file, 0).map_err(front)?;
            }
            Ok(file)
        };
        self.tree.inner().open_direct(&self.wanted(writes), open, cut)
    }

    fn stat(&self) -> Result<Attr, Refused> {
        self.directory(SEARCH)?;
        self.tree.inner().stat_direct(&self.wanted(false))
    }

    /// Makes a directory, and opens it, so that it can be entered.
    fn make_dir(&self, mode: u32) -> Result<Done, Refused> {
        if mode & !0o1777 != 0 {
            return Err(Refused::Front);
        }
        self.settled()?;
        self.directory(WRITE | SEARCH)?;
        let make = || self.tree.inner().make_dir_direct(&self.wanted(true), &self.context(), mode);
        let (dir, ino) = self.once(make).map_err(tell)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let at = openat(&self.entered.at, self.name.as_c_str(), flags, Mode::empty());
        let Some(at) = at.ok().filter(|at| fstat(at).is_ok_and(|stat| stat.st_ino == ino)) else {
            // It is made all the same. The program enters it like any other.
            return Ok(Done::Values([0; 6]));
        };
        let (tree, counts) = (self.entered.tree.clone(), Arc::clone(&self.entered.counts));
        Ok(Done::Directory(Entered::new(tree, dir, at, counts)))
    }

    fn make_link(&self, target: &[u8]) -> Result<(), Refused> {
        if target.is_empty() {
            return Err(Refused::Front);
        }
        self.settled()?;
        self.directory(WRITE | SEARCH)?;
        let target = Text::<{ SLOT_BYTES as usize }>::new(target)?;
        let target = target.c_str()?;
        let make = || self.tree.inner().make_link_direct(&self.wanted(true), &self.context(), target);
        self.once(make).map_err(tell)
    }

    fn set(&self, args: &[u64; 5]) -> Result<(), Refused> {
        let wish = Wish::new(args).ok_or(Refused::Front)?;
        self.directory(SEARCH)?;
        let lets = |attr: &Attr| if wish.may(self.who, attr) { Ok(()) } else { Err(Refused::Front) };
        let set = self.tree.inner().set_direct(&self.wanted(false), &self.context(), &wish.set, lets);
        set.map_err(tell)
    }

    fn unlink(&self) -> Result<(), Refused> {
        let directory = self.directory(WRITE | SEARCH)?;
        let (at, name) = (&self.entered.at, self.name.as_c_str());
        self.tree.inner().unlink_direct(&self.wanted(true), || {
            let stat = match statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => return Err(Refused::Error(Errno::NOENT)),
                other => other.map_err(front)?,
            };
            let sticky =
                directory.mode & S_ISVTX != 0 && self.who.uid != stat.st_uid && self.who.uid != directory.uid;
            if stat.st_mode & 0o170_000 != 0o100_000 || stat.st_nlink != 1 || sticky {
                return Err(Refused::Front);
            }
            self.once(|| unlinkat(at, name, AtFlags::empty())).map_err(front)?;
            Ok(stat.st_ino)
        })
    }
}

/// Attributes as a response has them.
fn words(attr: &Attr) -> [u8; STAT_WORDS * 8] {
    let time = |time: vellum_vfs::Timestamp| [time.secs as u64, u64::from(time.nanos)];
    let [(a, b), (m, n), (c, d)] = [attr.atime, attr.mtime, attr.ctime].map(|t| time(t).into());
    let all: [u64; STAT_WORDS] = [
        attr.ino,
        attr.mode.into(),
        attr.nlink.into(),
        attr.uid.into(),
        attr.gid.into(),
        attr.rdev,
        attr.size,
        attr.blksize.into(),
        attr.blocks,
        a,
        b,
        m,
        n,
        c,
        d,
    ];
    let mut bytes = [0; STAT_WORDS * 8];
    bytes.iter_mut().zip(all.iter().flat_map(|word| word.to_ne_bytes())).for_each(|(to, from)| *to = from);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_may_do_is_judged_for_the_worst_of_all_groups() {
        let may =
            |mode, uid, gid, wanted| Identity { uid, gid }.may(Owner { uid: 10, gid: 20, mode }, wanted);
        assert!(may(0o100_700, 10, 99, READ | WRITE | SEARCH));
        // The owner is judged as the owner, and root has no more than others.
        assert!(!may(0o100_077, 10, 20, READ) && !may(0o100_600, 0, 0, READ));
        assert!(may(0o100_070, 11, 20, WRITE) && !may(0o100_070, 11, 21, WRITE));
        // Who is in a group that may less than others may be in that group.
        assert!(
            !may(0o100_606, 11, 21, READ) && may(0o100_664, 11, 21, READ) && !may(0o100_664, 11, 21, WRITE)
        );
    }
}
