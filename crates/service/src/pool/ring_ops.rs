//! What a program asks for over its ring, in the words of [`Handout`].
//!
//! Here is read what a request says, and found which directory and which mount it means. What the program may do, and whether that means the
//! same as by way of the kernel, is the tree's to know.

use super::handout_mounts::HandoutMounts;
use super::pool_service::Tree;
use super::ring_client::Program;
use super::setattr::SetAttrCall;
use crate::ring_stats::{Call, Counts};
use crate::tokens::Shower;
use rustix::fs::OFlags;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use vellum_ring::Request;
use vellum_ring::files::{
    ASK_KERNEL, CHECKED, DEPTH_MAX, ENTER, LOOK, MAKE_DIR, MAKE_LINK, MOUNT_NUMBERS, NAME_MAX, OPEN, PROVE,
    REOPEN, SET_ATTRIBUTES, SLOT_BYTES, STALE, TOKEN_BYTES, VOLATILE,
};
use vellum_union::{Directory, Union};
use vellum_vfs::{Client, Given, Handout, HandoutFlags, Name, NodeId, Progress, Refused, Verdict, Wanted};

/// Where the files of a mount are handed out.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) tree: Weak<Tree>,
    pub(super) handouts: Arc<HandoutMounts>,
}

impl Door {
    /// Whether the mount is still served, and is one whose files are handed out.
    pub(super) fn is_open(&self) -> bool {
        self.tree.upgrade().is_some_and(|tree| tree.inner().hands_out())
    }

    /// As a greeting has it; nothing of one that is not served any more.
    pub(super) fn numbers(&self) -> Option<[u64; MOUNT_NUMBERS]> {
        let tree = self.tree.upgrade()?;
        Some(self.handouts.numbers(if tree.inner().is_volatile() { VOLATILE } else { 0 }))
    }
}

/// A directory that a program has entered, or is to enter.
pub(super) struct Entered {
    /// Its number, from when it is entered.
    pub(super) number: u64,
    tree: Weak<Tree>,
    dir: Directory,
    /// Its node, and its inode number.
    node: NodeId,
    ino: u64,
    counts: Arc<Counts>,
}

impl Entered {
    /// Whether its mount is still served.
    pub(super) fn is_there(&self) -> bool {
        self.tree.strong_count() > 0
    }

    fn new(tree: &Arc<Tree>, dir: Directory, counts: Arc<Counts>) -> Self {
        let (node, ino) = (tree.inner().node(&dir), tree.inner().ino(&dir));
        Self { number: 0, tree: Arc::downgrade(tree), dir, node, ino, counts }
    }

    /// As the answer has it.
    pub(super) fn values(&self) -> [u64; 6] {
        [self.number, self.ino, 0, 0, 0, 0]
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
    File(OwnedFd),
    /// A directory that is to be entered.
    Directory(Entered),
}

impl Done {
    const NOTHING: Self = Self::Values([0; 6]);

    /// A file that can be sent.
    fn file(given: Given) -> Verdict<Self> {
        match given {
            Given::Descriptor(file) => Ok(Self::File(file)),
            Given::Object(_) => Err(Refused::Kernel),
        }
    }
}

/// The status of a response.
pub(super) fn status(refused: Refused) -> i32 {
    let number = match refused {
        Refused::Error(errno) => return errno.raw_os_error(),
        Refused::Kernel => ASK_KERNEL,
        Refused::Known => LOOK,
        Refused::Stale => STALE,
    };
    number as i32
}

fn kernel<T>(_: T) -> Refused {
    Refused::Kernel
}

/// Carries out a call. `progress` hears how far it has come.
pub(super) fn carry_out(
    program: &mut Program<'_>,
    request: &Request,
    data: &[u8],
    progress: &dyn Progress,
) -> Verdict<Done> {
    let [directory, flags, mode, ..] = request.args;
    let client = program.client(progress);
    match request.opcode {
        ENTER => return enter(program, data),
        REOPEN => return reopen(program, &client, flags as u32, data),
        PROVE => return prove(program),
        _ => {}
    }
    let (data, rest) = match request.opcode {
        MAKE_LINK => data.split_at_checked(flags as usize).ok_or(Refused::Kernel)?,
        _ => (data, &[][..]),
    };
    let (path, name) = match data.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (data.get(..at), data.get(at + 1..).unwrap_or_default()),
        None => (None, data),
    };
    let directory = path.map_or(Ok(directory), |path| descend(program, &client, directory, path))?;
    let name = Text::<{ NAME_MAX + 1 }>::new(name)?;
    let entered = program.find(directory).ok_or(Refused::Stale)?;
    let asked = Asked {
        client,
        tree: entered.tree.upgrade().ok_or(Refused::Stale)?,
        entered,
        name: name.name()?,
        checked: request.flags & CHECKED != 0,
    };
    let (call, done) = match request.opcode {
        OPEN => (Call::Open, asked.open(flags as u32, mode as u32)),
        MAKE_DIR => (Call::MakeDir, asked.make_dir(mode as u32)),
        SET_ATTRIBUTES => (Call::SetAttributes, asked.set(&request.args)),
        MAKE_LINK => (Call::MakeLink, asked.make_link(rest)),
        _ => (Call::Kernel, Err(Refused::Kernel)),
    };
    entered.counts.count(if matches!(done, Ok(_) | Err(Refused::Error(_))) { call } else { Call::Kernel });
    done
}

/// A string with the byte that ends it.
struct Text<const N: usize>([u8; N], usize);

impl<const N: usize> Text<N> {
    fn new(bytes: &[u8]) -> Verdict<Self> {
        let mut all = [0; N];
        let room = all.get_mut(..bytes.len()).filter(|_| bytes.len() < N).ok_or(Refused::Kernel)?;
        room.copy_from_slice(bytes);
        Ok(Self(all, bytes.len()))
    }

    fn c_str(&self) -> Verdict<&CStr> {
        CStr::from_bytes_with_nul(self.0.get(..=self.1).unwrap_or_default()).map_err(kernel)
    }

    fn name(&self) -> Verdict<Name<'_>> {
        Name::new(self.c_str()?).map_err(kernel)
    }
}

/// The number of the directory that a path leads to from another one, through directories that the program has entered, may search, and
/// that the kernel does not know. Whatever is not so is to be asked by a path through the kernel.
fn descend(program: &mut Program<'_>, client: &Client<'_>, from: u64, path: &[u8]) -> Verdict<u64> {
    let mut at = from;
    for (depth, name) in path.split(|byte| *byte == b'/').enumerate() {
        if depth >= DEPTH_MAX {
            return Err(Refused::Kernel);
        }
        let name = Text::<{ NAME_MAX + 1 }>::new(name)?;
        let entered = program.find(at).ok_or(Refused::Stale)?;
        let tree = entered.tree.upgrade().ok_or(Refused::Stale)?;
        let below = tree.inner().below(client, &entered.dir, name.name()?)?;
        let is_it = |entered: &&Entered| entered.node == below && entered.tree.as_ptr() == Arc::as_ptr(&tree);
        at = program.entered.iter().find(is_it).map(|entered| entered.number).ok_or(Refused::Known)?;
    }
    Ok(at)
}

/// A directory in which the program shows that no domain holds it.
fn prove(program: &mut Program<'_>) -> Verdict<Done> {
    let room = program.service.room.as_ref().ok_or(Refused::Kernel)?;
    program.proof.ask(room).map(Done::File).map_err(|error| {
        tracing::debug!(%error, "a directory for a proof");
        Refused::Kernel
    })
}

fn enter(program: &mut Program<'_>, data: &[u8]) -> Verdict<Done> {
    let shown = Shown::find(program, data)?;
    let dir = shown.tree.inner().enter(shown.node)?;
    let counts = shown.counts(program)?;
    Ok(Done::Directory(Entered::new(&shown.tree, dir, counts)))
}

/// The file of a descriptor, to write.
fn reopen(program: &mut Program<'_>, client: &Client<'_>, flags: u32, data: &[u8]) -> Verdict<Done> {
    let known = OFlags::NONBLOCK | OFlags::DSYNC | OFlags::SYNC | OFlags::LARGEFILE;
    let flags = OFlags::from_bits_retain(flags);
    if !known.contains(flags) {
        return Err(Refused::Kernel);
    }
    let shown = Shown::find(program, data)?;
    let counts = shown.counts(program)?;
    let done = shown.tree.inner().reopen(client, shown.node, wanted_flags(flags | OFlags::WRONLY));
    counts.count(if done.is_ok() { Call::Open } else { Call::Kernel });
    Done::file(done?)
}

/// Something that a program has shown, and where.
struct Shown {
    door: Door,
    tree: Arc<Tree>,
    node: NodeId,
}

impl Shown {
    /// Nothing is found for a program that may be held by a domain, which does not see what the service opens.
    fn find(program: &mut Program<'_>, token: &[u8]) -> Verdict<Self> {
        if !program.proof.is_given() {
            return Err(Refused::Kernel);
        }
        let token = <[u8; TOKEN_BYTES]>::try_from(token).map_err(kernel)?;
        let Identity { uid, gid } = program.who;
        let who = Shower { uid, gid, process: program.number };
        program
            .service
            .doors()
            .into_iter()
            .find_map(|door| {
                let tree = door.tree.upgrade()?;
                let node = tree.redeem(who, &token)?;
                Some(Self { door, tree, node })
            })
            .ok_or(Refused::Kernel)
    }

    /// The program's counts there.
    fn counts(&self, program: &Program<'_>) -> Verdict<Arc<Counts>> {
        let same = program.entered.iter().find(|entered| entered.tree.ptr_eq(&self.door.tree));
        same.map(|entered| Arc::clone(&entered.counts)).or_else(|| self.tree.counts()).ok_or(Refused::Kernel)
    }
}

/// Flags of open(2) in the words of the tree; those that make no difference to a regular file are left out.
fn wanted_flags(flags: OFlags) -> HandoutFlags {
    let access = match flags & OFlags::RWMODE {
        OFlags::WRONLY => HandoutFlags::WRITE,
        OFlags::RDWR => HandoutFlags::READ | HandoutFlags::WRITE,
        _ => HandoutFlags::READ,
    };
    // Of the two bits of O_SYNC that of O_DSYNC; rustix has one value, with both, for both.
    const DSYNC: OFlags = OFlags::from_bits_retain(0o10_000);
    let others = [
        (OFlags::CREATE, HandoutFlags::CREATE),
        (OFlags::EXCL, HandoutFlags::EXCLUSIVE),
        (OFlags::TRUNC, HandoutFlags::TRUNCATE),
        (OFlags::APPEND, HandoutFlags::APPEND),
        (OFlags::NONBLOCK, HandoutFlags::NONBLOCK),
        (DSYNC, HandoutFlags::DSYNC),
        (OFlags::SYNC, HandoutFlags::SYNC),
        (OFlags::DIRECT, HandoutFlags::DIRECT),
    ];
    others.into_iter().filter(|(asked, _)| flags.contains(*asked)).fold(access, |all, (_, flag)| all | flag)
}

/// A call about a name in a directory.
struct Asked<'a> {
    client: Client<'a>,
    tree: Arc<Tree>,
    entered: &'a Entered,
    name: Name<'a>,
    checked: bool,
}

impl Asked<'_> {
    fn wanted(&self) -> Wanted<'_, Directory> {
        Wanted { dir: &self.entered.dir, name: self.name, checked: self.checked }
    }

    fn handout(&self) -> &Union {
        self.tree.inner()
    }

    /// Names are the kernel's alone while something that a predecessor had begun may come again.
    fn settled(&self) -> Verdict<()> {
        if self.tree.is_settled() { Ok(()) } else { Err(Refused::Kernel) }
    }

    fn open(&self, flags: u32, mode: u32) -> Verdict<Done> {
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
            return Err(Refused::Kernel);
        }
        let only_reads = flags & OFlags::RWMODE == OFlags::RDONLY;
        if only_reads && flags.intersects(OFlags::CREATE | OFlags::TRUNC) {
            return Err(Refused::Kernel);
        }
        if flags.contains(OFlags::CREATE) {
            self.settled()?;
        }
        let opened = self.handout().open_or_create(&self.client, &self.wanted(), wanted_flags(flags), mode);
        Done::file(opened?)
    }

    /// Makes a directory, and enters it.
    fn make_dir(&self, mode: u32) -> Verdict<Done> {
        self.settled()?;
        let made = self.handout().mkdir(&self.client, &self.wanted(), mode)?;
        // Where it could not be entered it is made all the same. The program enters it like any other.
        Ok(made.map_or(Done::NOTHING, |dir| {
            Done::Directory(Entered::new(&self.tree, dir, Arc::clone(&self.entered.counts)))
        }))
    }

    fn make_link(&self, target: &[u8]) -> Verdict<Done> {
        if target.is_empty() {
            return Err(Refused::Kernel);
        }
        self.settled()?;
        let target = Text::<{ SLOT_BYTES as usize }>::new(target)?;
        self.handout().symlink(&self.client, &self.wanted(), target.c_str()?).map(|()| Done::NOTHING)
    }

    fn set(&self, args: &[u64; 5]) -> Verdict<Done> {
        let SetAttrCall { set, follows } = SetAttrCall::new(args).ok_or(Refused::Kernel)?;
        self.handout().setattr(&self.client, &self.wanted(), &set, follows).map(|()| Done::NOTHING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_asked_for_is_synchronous() {
        let both = HandoutFlags::DSYNC | HandoutFlags::SYNC;
        let of = |bits: i32| wanted_flags(OFlags::from_bits_retain(bits as u32)) & both;
        assert_eq!(of(libc::O_WRONLY | libc::O_CREAT), HandoutFlags::empty());
        assert_eq!((of(libc::O_DSYNC), of(libc::O_SYNC)), (HandoutFlags::DSYNC, both));
    }
}
