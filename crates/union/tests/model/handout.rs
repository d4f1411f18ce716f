//! Operations of clients that go past the kernel, by [`Handout`]. What is done must be what the plain tree does; what is refused is not done
//! at all, and goes on as an operation of the kernel's elsewhere in the sequence.

use crate::apply::USER;
use crate::common::{ROOT, errno_of, name};
use crate::ops::HandoutOp;
use crate::world::{World, name_at};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use vellum_union::Directory;
use vellum_vfs::{
    BranchDir, BranchFile, Client, Context, DirName, Errno, ExportFile, FileKind, Handout, HandoutError,
    HandoutFlags, OpenMode, SetAttr, SetTime, Timestamp, Verdict,
};

/// Directories and files that a client holds at the same time.
const HELD_MAX: usize = 4;

/// A directory that a client has entered, in both trees.
pub struct Entered {
    dir: Directory,
    flat: Arc<dyn BranchDir>,
}

/// A file that a client was given, in both trees.
pub struct Owned {
    file: Arc<dyn BranchFile>,
    flat: Arc<dyn BranchFile>,
    /// It has the file by way of the kernel, too, and cuts it only there.
    again: bool,
}

/// How often each operation was done past the kernel, in all sequences: a union that refuses everything is never wrong.
static DONE: [AtomicUsize; 7] = [const { AtomicUsize::new(0) }; 7];
const NAMES: [&str; 7] = ["enter", "create", "open", "reopen", "mkdir", "symlink", "setattr"];

fn done(what: &str) {
    if let Some(at) = NAMES.iter().position(|name| *name == what) {
        DONE[at].fetch_add(1, Relaxed);
    }
}

/// Every operation was done at least so often.
pub fn all_done(least: usize) {
    let counts: Vec<_> = NAMES.iter().zip(DONE.iter().map(|count| count.load(Relaxed))).collect();
    println!("past the kernel: {counts:?}");
    assert!(counts.iter().all(|(_, count)| *count >= least), "too seldom: {counts:?}");
}

fn object(given: ExportFile) -> Arc<dyn BranchFile> {
    match given {
        ExportFile::Object(object) => object,
        ExportFile::Descriptor(_) => unreachable!("a disk in memory has no descriptors"),
    }
}

const fn client(cx: &Context<'static>) -> Client<'static> {
    Client { uid: cx.uid, gid: cx.gid, progress: &() }
}

const TO_WRITE: HandoutFlags = HandoutFlags::READ.union(HandoutFlags::WRITE);

impl World {
    /// Does it past the kernel, if that is let, and in the plain tree, and compares.
    pub fn handout(&mut self, dir: u8, at: u8, op: &HandoutOp, as_user: bool) {
        if !self.setup.handout {
            return;
        }
        match op {
            HandoutOp::Enter => return self.enter(dir),
            HandoutOp::Write(..) | HandoutOp::Cut(_) | HandoutOp::Close => return self.owned(dir, op),
            HandoutOp::Reopen => return self.reopen(dir, if as_user { &USER } else { &ROOT }),
            _ => {}
        }
        if self.entered.is_empty() {
            self.enter(dir);
        }
        let at = name_at(at);
        let cx = if as_user { &USER } else { &ROOT };
        if self.entered.is_empty() {
            return;
        }
        let place = usize::from(dir) % self.entered.len();
        // Taken out, so that the world can be compared meanwhile.
        let entered = self.entered.remove(place);
        self.in_entered(&entered, at, op, cx);
        self.entered.insert(place, entered);
    }

    fn enter(&mut self, dir: u8) {
        let (node, flat) = self.dir(dir);
        if let Ok(dir) = self.fs().enter(node) {
            assert_eq!(self.fs().node(&dir), node, "entered another directory");
            if self.entered.len() >= HELD_MAX {
                self.entered.remove(0);
            }
            self.entered.push(Entered { dir, flat });
            done("enter");
        }
    }

    /// A client that has a file open by way of the kernel is given it to write.
    fn reopen(&mut self, file: u8, cx: &Context<'static>) {
        let Some(at) = self.file(file) else { return };
        let Ok(given) = self.fs().reopen(&client(cx), self.held[at].node, HandoutFlags::WRITE) else {
            return;
        };
        let attr = self.held[at].flat.attr();
        assert!(attr.mode & 0o222 != 0 && attr.mode & 0o6000 == 0, "mode {:o}", attr.mode);
        let flat = self.held[at].flat.object().reopen(OpenMode::WRITE).expect("open in the plain tree");
        self.owns(Owned { file: object(given), flat, again: true });
        done("reopen");
    }

    fn owns(&mut self, owned: Owned) {
        assert_eq!(owned.file.stat().expect("stat").size, owned.flat.stat().expect("stat").size, "size");
        if self.owned.len() >= HELD_MAX {
            self.owned.remove(0);
        }
        self.owned.push(owned);
    }

    /// Calls with the name, and once more after a look, where the kernel knows it.
    fn ask<T>(
        &mut self,
        entered: &Entered,
        at: &'static CStr,
        call: impl Fn(&Self, &DirName<'_, Directory>) -> Verdict<T>,
    ) -> Verdict<T> {
        let mut wanted = DirName { dir: &entered.dir, name: name(at), checked: false };
        match call(self, &wanted) {
            Err(HandoutError::Known) => {
                wanted.checked = true;
                call(self, &wanted)
            }
            done => done,
        }
    }

    fn in_entered(&mut self, entered: &Entered, at: &'static CStr, op: &HandoutOp, cx: &Context<'static>) {
        let me = client(cx);
        let flat = &entered.flat;
        match op {
            HandoutOp::Open { create, exclusive, cut, mode } => {
                let mut flags = TO_WRITE;
                flags.set(HandoutFlags::CREATE, *create);
                flags.set(HandoutFlags::EXCLUSIVE, *exclusive);
                flags.set(HandoutFlags::TRUNCATE, *cut);
                let mode = u32::from(*mode) & 0o1777;
                let there = flat.stat_at(name(at)).is_ok();
                let opened =
                    self.ask(entered, at, |world, at| world.fs().open_or_create(&me, at, flags, mode));
                if !agree("open", opened.as_ref().err(), there.then_some(()).ok_or(Errno::NOENT)) {
                    return;
                }
                if there {
                    assert!(!(*create && *exclusive), "{at:?} is there, and was made");
                    done("open");
                } else {
                    flat.create(name(at), mode).expect("made past the kernel, and not in the plain tree");
                    self.own(&**flat, at, cx);
                    done("create");
                }
                let mine =
                    flat.open_file(name(at), OpenMode::READ | OpenMode::WRITE).expect("a regular file");
                if there && *cut {
                    mine.truncate(0).expect("truncate");
                }
                let file = object(opened.unwrap_or_else(|_| unreachable!("agreed")));
                self.owns(Owned { file, flat: mine, again: false });
            }
            HandoutOp::Mkdir(mode) => {
                let mode = u32::from(*mode) & 0o1777;
                let seen = self.ask(entered, at, |world, at| world.fs().mkdir(&me, at, mode));
                if self.makes("mkdir", flat, at, seen.as_ref().err()) {
                    flat.make_dir(name(at), mode).expect("made past the kernel, and not in the plain tree");
                    self.own(&**flat, at, cx);
                    let made = seen.ok().flatten().expect("it can be entered");
                    self.entered.push(Entered { dir: made, flat: flat.open_dir(name(at)).expect("made") });
                    if self.entered.len() >= HELD_MAX {
                        self.entered.remove(0);
                    }
                    done("mkdir");
                }
            }
            HandoutOp::Symlink => {
                let seen = self.ask(entered, at, |world, at| world.fs().symlink(&me, at, c"to/there"));
                if self.makes("symlink", flat, at, seen.as_ref().err()) {
                    let made = flat.make_symlink(name(at), c"to/there");
                    made.expect("made past the kernel, and not in the plain tree");
                    self.own(&**flat, at, cx);
                    done("symlink");
                }
            }
            HandoutOp::Set { mode, mtime } => {
                let time = mtime.map(|secs| SetTime::At(Timestamp { secs: secs.into(), nanos: 7 }));
                let set = SetAttr { mode: mode.map(u32::from), mtime: time, ..SetAttr::default() };
                let seen = self.ask(entered, at, |world, at| world.fs().setattr(&me, at, &set, false));
                if seen.is_ok() {
                    if let Some(mode) = set.mode {
                        flat.set_mode_at(name(at), mode).expect("chmod");
                    }
                    flat.set_times_at(name(at), None, time).expect("times");
                    let now = flat.stat_at(name(at)).expect("stat");
                    assert_eq!(now.uid, cx.uid, "attributes of another's {:?} were set", now.kind());
                    assert!(now.kind() != FileKind::Symlink || set.mode.is_none());
                    done("setattr");
                }
            }
            _ => unreachable!("not by name"),
        }
    }

    /// Whether something new has been made, as it would have been in the plain tree.
    fn makes(
        &self,
        what: &str,
        flat: &Arc<dyn BranchDir>,
        at: &CStr,
        refused: Option<&HandoutError>,
    ) -> bool {
        let free = match errno_of(flat.stat_at(name(at))) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        };
        agree(what, refused, free)
    }

    /// A client does something with a file that it was given.
    fn owned(&mut self, index: u8, op: &HandoutOp) {
        if self.owned.is_empty() {
            return;
        }
        let at = usize::from(index) % self.owned.len();
        let owned = &self.owned[at];
        match op {
            HandoutOp::Write(offset, len, byte) => {
                let data = vec![*byte; usize::from(*len)];
                for file in [&owned.file, &owned.flat] {
                    file.write_at(&data, u64::from(*offset)).expect("write");
                }
            }
            HandoutOp::Cut(_) if owned.again => {}
            HandoutOp::Cut(size) => {
                for file in [&owned.file, &owned.flat] {
                    file.truncate(u64::from(*size)).expect("truncate");
                }
            }
            HandoutOp::Close => drop(self.owned.remove(at)),
            _ => unreachable!("by name"),
        }
    }

    /// A mount that ends leaves nothing with clients.
    pub fn end_of_handouts(&mut self) {
        self.entered.clear();
        self.owned.clear();
    }

    /// Files that are held in both trees have the same contents for who was given them.
    pub fn check_owned(&self) {
        for owned in &self.owned {
            let (mine, theirs) = (owned.file.stat().expect("stat"), owned.flat.stat().expect("stat"));
            assert_eq!(mine.size, theirs.size, "a file that was given");
            // Names of a file from below the union counts, not the layer.
            assert!(owned.again || mine.nlink == theirs.nlink, "a file that was given");
        }
    }
}

/// Whether it was done. An error that is the client's must be that of the plain tree; other refusals say nothing.
fn agree(what: &str, refused: Option<&HandoutError>, expected: Result<(), Errno>) -> bool {
    match refused {
        None => {
            // What is made over what is not there is up to the caller.
            assert!(expected.is_ok() || what == "open", "{what}: done, expected {expected:?}");
            true
        }
        Some(HandoutError::Error(errno)) => {
            assert_eq!(Err(*errno), expected, "{what}: an error of the client's");
            false
        }
        Some(_) => false,
    }
}
