//! What a program asks for over its ring, in the words of [`Handout`].
//!
//! Here is read what a request says, and found which directory and which mount it means. What the program may do, and whether that means the
//! same as by way of the kernel, is the tree's to know.

use crate::counts::{Call, Counts};
use crate::mount::Entrance;
use crate::program::Program;
use crate::setattr::SetAttrCall;
use rustix::fs::OFlags;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use vellum_ring::Request;
use vellum_ring::files::{
    ASK_KERNEL, CHECKED, DEPTH_MAX, ENTER, LOOK, MAKE_DIR, MAKE_LINK, NAME_MAX, OPEN, PROVE, REOPEN,
    SET_ATTRIBUTES, SLOT_BYTES, STALE, TOKEN_BYTES,
};
use vellum_vfs::{
    Client, DirName, ExportFile, Handout, HandoutError, HandoutFlags, Name, NodeId, Progress, Verdict,
};

/// A directory that a program has entered, or is to enter.
pub(crate) struct ClientDir<T: Handout> {
    /// Its number, from when it is entered.
    pub(crate) number: u64,
    tree: Weak<T>,
    dir: T::Dir,
    /// Its node, and its inode number.
    node: NodeId,
    ino: u64,
    counts: Arc<Counts>,
}

impl<T: Handout> ClientDir<T> {
    /// Whether its mount is still served.
    pub(crate) fn is_served(&self) -> bool {
        self.tree.strong_count() > 0
    }

    fn new(tree: &Arc<T>, dir: T::Dir, counts: Arc<Counts>) -> Self {
        let (node, ino) = (tree.node(&dir), tree.ino(&dir));
        Self { number: 0, tree: Arc::downgrade(tree), dir, node, ino, counts }
    }

    /// As the answer has it.
    pub(crate) fn values(&self) -> [u64; 6] {
        [self.number, self.ino, 0, 0, 0, 0]
    }
}

/// What came of a call.
pub(crate) enum CallOutcome<T: Handout> {
    Values([u64; 6]),
    File(OwnedFd),
    /// A directory that is to be entered.
    Directory(ClientDir<T>),
}

impl<T: Handout> CallOutcome<T> {
    const NOTHING: Self = Self::Values([0; 6]);

    /// A file that can be sent.
    fn file(given: ExportFile) -> Verdict<Self> {
        match given {
            ExportFile::Descriptor(file) => Ok(Self::File(file)),
            ExportFile::Object(_) => Err(HandoutError::Kernel),
        }
    }
}

/// The status of a response.
pub(crate) fn status(refused: HandoutError) -> i32 {
    let number = match refused {
        HandoutError::Error(errno) => return errno.raw_os_error(),
        HandoutError::Kernel => ASK_KERNEL,
        HandoutError::Known => LOOK,
        HandoutError::Stale => STALE,
    };
    number as i32
}

fn fall_back_to_kernel<T>(_: T) -> HandoutError {
    HandoutError::Kernel
}

/// Carries out a call. `progress` hears how far it has come.
pub(crate) fn carry_out<T: Handout>(
    program: &mut Program<'_, T>,
    request: &Request,
    data: &[u8],
    progress: &dyn Progress,
) -> Verdict<CallOutcome<T>> {
    let [directory, flags, mode, ..] = request.args;
    let client = program.client(progress);
    match request.opcode {
        ENTER => return enter(program, data),
        REOPEN => return reopen(program, &client, flags as u32, data),
        PROVE => return prove(program),
        _ => {}
    }
    let (data, rest) = match request.opcode {
        MAKE_LINK => data.split_at_checked(flags as usize).ok_or(HandoutError::Kernel)?,
        _ => (data, &[][..]),
    };
    let (path, name) = match data.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (data.get(..at), data.get(at + 1..).unwrap_or_default()),
        None => (None, data),
    };
    let directory = path.map_or(Ok(directory), |path| descend(program, &client, directory, path))?;
    let name = Text::<{ NAME_MAX + 1 }>::new(name)?;
    let entered = program.find(directory).ok_or(HandoutError::Stale)?;
    let asked = NameRequest {
        client,
        tree: entered.tree.upgrade().ok_or(HandoutError::Stale)?,
        entered,
        name: name.name()?,
        checked: request.flags & CHECKED != 0,
    };
    let (call, done) = match request.opcode {
        OPEN => (Call::Open, asked.open(flags as u32, mode as u32)),
        MAKE_DIR => (Call::MakeDir, asked.make_dir(mode as u32)),
        SET_ATTRIBUTES => (Call::SetAttributes, asked.set(&request.args)),
        MAKE_LINK => (Call::MakeLink, asked.make_link(rest)),
        _ => (Call::Kernel, Err(HandoutError::Kernel)),
    };
    entered.counts.count(if matches!(done, Ok(_) | Err(HandoutError::Error(_))) {
        call
    } else {
        Call::Kernel
    });
    done
}

/// A string with the byte that ends it.
struct Text<const N: usize>([u8; N], usize);

impl<const N: usize> Text<N> {
    fn new(bytes: &[u8]) -> Verdict<Self> {
        let mut all = [0; N];
        let room = all.get_mut(..bytes.len()).filter(|_| bytes.len() < N).ok_or(HandoutError::Kernel)?;
        room.copy_from_slice(bytes);
        Ok(Self(all, bytes.len()))
    }

    fn c_str(&self) -> Verdict<&CStr> {
        CStr::from_bytes_with_nul(self.0.get(..=self.1).unwrap_or_default()).map_err(fall_back_to_kernel)
    }

    fn name(&self) -> Verdict<Name<'_>> {
        Name::new(self.c_str()?).map_err(fall_back_to_kernel)
    }
}

/// The number of the directory that a path leads to from another one, through directories that the program has entered, may search, and
/// that the kernel does not know. Whatever is not so is to be asked by a path through the kernel.
fn descend<T: Handout>(
    program: &mut Program<'_, T>,
    client: &Client<'_>,
    from: u64,
    path: &[u8],
) -> Verdict<u64> {
    let mut at = from;
    for (depth, name) in path.split(|byte| *byte == b'/').enumerate() {
        if depth >= DEPTH_MAX {
            return Err(HandoutError::Kernel);
        }
        let name = Text::<{ NAME_MAX + 1 }>::new(name)?;
        let entered = program.find(at).ok_or(HandoutError::Stale)?;
        let tree = entered.tree.upgrade().ok_or(HandoutError::Stale)?;
        let below = tree.below(client, &entered.dir, name.name()?)?;
        let is_it =
            |entered: &&ClientDir<T>| entered.node == below && entered.tree.as_ptr() == Arc::as_ptr(&tree);
        at = program.entered.iter().find(is_it).map(|entered| entered.number).ok_or(HandoutError::Known)?;
    }
    Ok(at)
}

/// A directory in which the program shows that no domain holds it.
fn prove<T: Handout>(program: &mut Program<'_, T>) -> Verdict<CallOutcome<T>> {
    let room = program.server.room.as_ref().ok_or(HandoutError::Kernel)?;
    program.proof.ask(room).map(CallOutcome::File).map_err(|error| {
        tracing::debug!(%error, "a directory for a proof");
        HandoutError::Kernel
    })
}

fn enter<T: Handout>(program: &mut Program<'_, T>, data: &[u8]) -> Verdict<CallOutcome<T>> {
    let shown = ProvenObject::find(program, data)?;
    let dir = shown.tree.enter(shown.node)?;
    let counts = shown.counts(program);
    Ok(CallOutcome::Directory(ClientDir::new(&shown.tree, dir, counts)))
}

/// The file of a descriptor, to write.
fn reopen<T: Handout>(
    program: &mut Program<'_, T>,
    client: &Client<'_>,
    flags: u32,
    data: &[u8],
) -> Verdict<CallOutcome<T>> {
    let known = OFlags::NONBLOCK | OFlags::DSYNC | OFlags::SYNC | OFlags::LARGEFILE;
    let flags = OFlags::from_bits_retain(flags);
    if !known.contains(flags) {
        return Err(HandoutError::Kernel);
    }
    let shown = ProvenObject::find(program, data)?;
    let counts = shown.counts(program);
    let done = shown.tree.reopen(client, shown.node, wanted_flags(flags | OFlags::WRONLY));
    counts.count(if done.is_ok() { Call::Open } else { Call::Kernel });
    CallOutcome::file(done?)
}

/// Something that a program has shown, and where.
struct ProvenObject<T> {
    tree: Arc<T>,
    entrance: Arc<Entrance>,
    node: NodeId,
}

impl<T: Handout> ProvenObject<T> {
    /// Nothing is found for a program that may be held by a domain, which does not see what the service opens.
    fn find(program: &mut Program<'_, T>, token: &[u8]) -> Verdict<Self> {
        if !program.proof.poll_proof() {
            return Err(HandoutError::Kernel);
        }
        let token = <[u8; TOKEN_BYTES]>::try_from(token).map_err(fall_back_to_kernel)?;
        let shown = program.server.find(|files| {
            let node = files.entrance.tokens.redeem(program.who, &token)?;
            Some(Self { tree: files.tree.upgrade()?, entrance: Arc::clone(&files.entrance), node })
        });
        shown.ok_or(HandoutError::Kernel)
    }

    fn counts(&self, program: &Program<'_, T>) -> Arc<Counts> {
        let is_same = |entered: &&ClientDir<T>| entered.tree.as_ptr() == Arc::as_ptr(&self.tree);
        let same = program.entered.iter().find(is_same);
        same.map_or_else(|| self.entrance.stats.add_program(), |entered| Arc::clone(&entered.counts))
    }
}

/// Flags of an open(2) to write in the words of the tree; those that make no difference to a regular file are left out.
fn wanted_flags(flags: OFlags) -> HandoutFlags {
    // Of the two bits of O_SYNC that of O_DSYNC; rustix has one value, with both, for both.
    const DSYNC: OFlags = OFlags::from_bits_retain(0o10_000);
    let others = [
        (OFlags::RDWR, HandoutFlags::READ),
        (OFlags::CREATE, HandoutFlags::CREATE),
        (OFlags::EXCL, HandoutFlags::EXCLUSIVE),
        (OFlags::TRUNC, HandoutFlags::TRUNCATE),
        (OFlags::APPEND, HandoutFlags::APPEND),
        (OFlags::NONBLOCK, HandoutFlags::NONBLOCK),
        (DSYNC, HandoutFlags::DSYNC),
        (OFlags::SYNC, HandoutFlags::SYNC),
        (OFlags::DIRECT, HandoutFlags::DIRECT),
    ];
    let named = others.into_iter().filter(|(asked, _)| flags.contains(*asked));
    named.fold(HandoutFlags::WRITE, |all, (_, flag)| all | flag)
}

/// A call about a name in a directory.
struct NameRequest<'a, T: Handout> {
    client: Client<'a>,
    tree: Arc<T>,
    entered: &'a ClientDir<T>,
    name: Name<'a>,
    checked: bool,
}

impl<T: Handout> NameRequest<'_, T> {
    fn wanted(&self) -> DirName<'_, T::Dir> {
        DirName { dir: &self.entered.dir, name: self.name, checked: self.checked }
    }

    fn open(&self, flags: u32, mode: u32) -> Verdict<CallOutcome<T>> {
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
        let writes = [OFlags::WRONLY, OFlags::RDWR].contains(&(flags & OFlags::RWMODE));
        if !known.contains(flags) || !writes || mode & !0o1777 != 0 {
            return Err(HandoutError::Kernel);
        }
        let opened = self.tree.open_or_create(&self.client, &self.wanted(), wanted_flags(flags), mode);
        CallOutcome::file(opened?)
    }

    /// Makes a directory, and enters it.
    fn make_dir(&self, mode: u32) -> Verdict<CallOutcome<T>> {
        let made = self.tree.mkdir(&self.client, &self.wanted(), mode)?;
        // Where it could not be entered it is made all the same. The program enters it like any other.
        Ok(made.map_or(CallOutcome::NOTHING, |dir| {
            CallOutcome::Directory(ClientDir::new(&self.tree, dir, Arc::clone(&self.entered.counts)))
        }))
    }

    fn make_link(&self, target: &[u8]) -> Verdict<CallOutcome<T>> {
        if target.is_empty() {
            return Err(HandoutError::Kernel);
        }
        let target = Text::<{ SLOT_BYTES as usize }>::new(target)?;
        self.tree.symlink(&self.client, &self.wanted(), target.c_str()?).map(|()| CallOutcome::NOTHING)
    }

    fn set(&self, args: &[u64; 5]) -> Verdict<CallOutcome<T>> {
        let SetAttrCall { set, follows } = SetAttrCall::new(args).ok_or(HandoutError::Kernel)?;
        self.tree.setattr(&self.client, &self.wanted(), &set, follows).map(|()| CallOutcome::NOTHING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requested_open_flags_are_synchronous() {
        let both = HandoutFlags::DSYNC | HandoutFlags::SYNC;
        let of = |bits: i32| wanted_flags(OFlags::from_bits_retain(bits as u32)) & both;
        assert_eq!(of(libc::O_WRONLY | libc::O_CREAT), HandoutFlags::empty());
        assert_eq!((of(libc::O_DSYNC), of(libc::O_SYNC)), (HandoutFlags::DSYNC, both));
    }
}
