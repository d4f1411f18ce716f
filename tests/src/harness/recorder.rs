//! A disk that remembers what was written to it, and when it was told to make that durable: a file in a FUSE mount of our own,
//! which a loop device makes a disk of. From its record every state can be made again in which a loss of power could have
//! left a disk with a cache.

use super::outcome::{DuringContext, Outcome};
use super::rng::Rng;
use rustix::mount::{UnmountFlags, unmount};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use vellum_fuse::{MountOptions, Session, SessionOptions, Workers, mount};
use vellum_vfs::*;

/// What is written at once, or not at all.
const BLOCK: usize = 4096;
const DISK: NodeId = NodeId(2);
const TTL: Duration = Duration::from_secs(3600);

type Blocks = BTreeMap<u64, Arc<[u8; BLOCK]>>;

/// Something that has come to the disk.
enum Event {
    Written(u64, Arc<[u8; BLOCK]>),
    /// All that came before is durable.
    Flushed,
}

struct State {
    now: Blocks,
    events: Vec<Event>,
}

/// What the record says, shared with who serves the file.
struct Shared {
    size: u64,
    state: Mutex<State>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A recorded disk. Dropping it takes its mount away.
pub(crate) struct Recorder {
    shared: Arc<Shared>,
    first: Blocks,
    at: PathBuf,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Recorder {
    /// A disk that begins as the image does, served in a directory.
    pub(crate) fn new(image: &Path, at: &Path) -> Outcome<Self> {
        let file = fs::File::open(image)?;
        let size = file.metadata()?.len();
        let mut first = Blocks::new();
        let mut block = [0; BLOCK];
        for number in 0..size / BLOCK as u64 {
            file.read_exact_at(&mut block, number * BLOCK as u64)?;
            if block != [0; BLOCK] {
                first.insert(number, Arc::new(block));
            }
        }
        let state = Mutex::new(State { now: first.clone(), events: Vec::new() });
        let shared = Arc::new(Shared { size, state });
        fs::create_dir_all(at)?;
        let options = MountOptions { source: "recorder".into(), ..MountOptions::default() };
        let mounted = mount(at, &options).doing("mounting the recorder")?;
        let options = SessionOptions {
            writeback: false,
            // One after the other: the order of the record is the order of the disk.
            workers: Workers { max: 1, ..Workers::default() },
            ..SessionOptions::default()
        };
        let session = Session::new(Arc::new(SingleFileFs(Arc::clone(&shared))), mounted, options);
        let (_, thread) = session.and_then(Session::spawn).doing("serving the recorder")?;
        Ok(Self { shared, first, at: at.to_path_buf(), thread: Some(thread) })
    }

    /// The file that is the disk.
    pub(crate) fn disk(&self) -> PathBuf {
        self.at.join("disk")
    }

    /// How much has come so far.
    pub(crate) fn moment(&self) -> usize {
        self.shared.state().events.len()
    }

    /// The moments at which the disk was told to make everything durable.
    pub(crate) fn flushes(&self) -> Vec<usize> {
        let state = self.shared.state();
        let flushed = |(at, event)| matches!(event, &Event::Flushed).then_some(at + 1);
        state.events.iter().enumerate().filter_map(flushed).collect()
    }

    /// Makes an image of what a loss of power at some moment leaves: everything up to the last flush before it; of what came
    /// after that, all (`lost` is none) or a part, in any order.
    pub(crate) fn image(&self, moment: usize, lost: Option<&mut Rng>, to: &Path) -> Outcome {
        let state = self.shared.state();
        let events = state.events.get(..moment).unwrap_or(&state.events);
        let durable = events.iter().rposition(|event| matches!(event, Event::Flushed)).unwrap_or(0);
        let mut blocks = self.first.clone();
        let (before, after) = events.split_at(durable);
        let mut put = |event: &Event| {
            if let Event::Written(number, block) = event {
                blocks.insert(*number, Arc::clone(block));
            }
        };
        before.iter().for_each(&mut put);
        match lost {
            None => after.iter().for_each(put),
            Some(rng) => after.iter().filter(|_| !rng.one_in(2)).for_each(put),
        }
        drop(state);
        let file = fs::File::create(to)?;
        file.set_len(self.shared.size)?;
        for (number, block) in blocks {
            file.write_all_at(&*block, number * BLOCK as u64)?;
        }
        Ok(())
    }

    /// How many blocks have been written since the last flush before a moment.
    pub(crate) fn pending(&self, moment: usize) -> usize {
        let state = self.shared.state();
        let events = state.events.get(..moment).unwrap_or(&state.events);
        let blocks = events.iter().rev().map_while(|event| match event {
            Event::Written(number, _) => Some(*number),
            Event::Flushed => None,
        });
        blocks.collect::<BTreeSet<u64>>().len()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if unmount(&self.at, UnmountFlags::empty()).is_err() {
            let _ = unmount(&self.at, UnmountFlags::DETACH | UnmountFlags::FORCE);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct SingleFileFs(Arc<Shared>);

impl SingleFileFs {
    fn attr(&self, node: NodeId) -> Attr {
        let (mode, size, nlink) = if node == DISK { (0o100_600, self.0.size, 1) } else { (0o040_700, 0, 2) };
        Attr { ino: node.0, mode, size, nlink, ..Attr::default() }
    }

    /// The part of a range that lies in each block: its number, and from where to where.
    fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
        let block = BLOCK as u64;
        let end = offset + len as u64;
        (offset / block..end.div_ceil(block)).map(move |number| {
            let (from, to) = (offset.max(number * block), end.min((number + 1) * block));
            (number, (from - number * block) as usize, (to - number * block) as usize)
        })
    }
}

impl Filesystem for SingleFileFs {
    fn lookup(&self, _: &Context<'_>, _: NodeId, name: Name<'_>) -> Result<Option<Entry>> {
        let attr = self.attr(DISK);
        let entry = Entry { node: DISK, generation: 0, attr, entry_ttl: TTL, attr_ttl: TTL };
        Ok((name.bytes() == b"disk").then_some(entry))
    }
    fn forget(&self, _: NodeId, _: u64) {}
    fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        Ok(AttrReply { attr: self.attr(node), ttl: TTL })
    }
    fn open(&self, _: &Context<'_>, _: NodeId, _: OpenFlags) -> Result<OpenReply> {
        Ok(OpenReply { handle: Handle(0), io: OpenIo::Direct })
    }
    fn read(&self, _: &Context<'_>, _: NodeId, _: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let len = buf.len().min(usize::try_from(self.0.size.saturating_sub(offset)).unwrap_or(0));
        let state = self.0.state();
        let mut done = 0;
        for (number, from, to) in Self::pieces(offset, len) {
            let out = buf.get_mut(done..done + (to - from)).ok_or(Errno::IO)?;
            match state.now.get(&number) {
                Some(block) => out.copy_from_slice(block.get(from..to).unwrap_or_default()),
                None => out.fill(0),
            }
            done += to - from;
        }
        Ok(len)
    }
    fn write(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: Handle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
    ) -> Result<usize> {
        let mut state = self.0.state();
        let mut done = 0;
        for (number, from, to) in Self::pieces(offset, data.len()) {
            let mut block = state.now.get(&number).map_or([0; BLOCK], |block| **block);
            let part = data.get(done..done + (to - from)).unwrap_or_default();
            block.get_mut(from..to).ok_or(Errno::IO)?.copy_from_slice(part);
            done += to - from;
            let block = Arc::new(block);
            state.now.insert(number, Arc::clone(&block));
            state.events.push(Event::Written(number, block));
        }
        Ok(data.len())
    }
    fn fsync(&self, _: &Context<'_>, _: NodeId, _: Handle, _: bool) -> Result<()> {
        self.0.state().events.push(Event::Flushed);
        Ok(())
    }
    fn setattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>, _: &SetAttr) -> Result<AttrReply> {
        Ok(AttrReply { attr: self.attr(node), ttl: TTL })
    }
    fn opendir(&self, _: &Context<'_>, _: NodeId, _: OpenFlags) -> Result<OpenReply> {
        Err(Errno::NOSYS.into())
    }
    fn readdir(&self, _: &Context<'_>, _: NodeId, _: Handle, _: u64, _: &mut dyn DirSink) -> Result<()> {
        Ok(())
    }
    fn statfs(&self, _: &Context<'_>, _: NodeId) -> Result<StatFs> {
        Ok(StatFs { frsize: 4096, bsize: 4096, namelen: 255, ..StatFs::default() })
    }
}
