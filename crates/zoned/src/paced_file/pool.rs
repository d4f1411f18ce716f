//! A few threads that write pieces of files past the page cache.

use super::disk::Disk;
use crate::device::AlignedBuf;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Pieces that are written at once.
const THREADS: usize = 4;

/// A piece on its way.
struct Piece {
    at: u64,
    data: AlignedBuf,
}

/// The threads, for one file.
#[derive(Debug)]
pub(super) struct Pool {
    queue: Option<SyncSender<Piece>>,
    threads: Vec<JoinHandle<()>>,
    failed: Arc<Mutex<Option<io::Error>>>,
}

impl Pool {
    pub(super) fn new(file: &Arc<File>, disk: &Disk) -> io::Result<Self> {
        let (queue, pieces) = sync_channel(THREADS);
        let pieces = Arc::new(Mutex::new(pieces));
        let failed = Arc::new(Mutex::new(None));
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            let (file, disk) = (Arc::clone(file), disk.clone());
            let (pieces, failed) = (Arc::clone(&pieces), Arc::clone(&failed));
            let builder = std::thread::Builder::new().name("paced".to_owned());
            threads.push(builder.spawn(move || work(&file, &disk, &pieces, &failed))?);
        }
        Ok(Self { queue: Some(queue), threads, failed })
    }

    /// Hands a piece over that may go.
    pub(super) fn send(&self, at: u64, data: AlignedBuf) -> io::Result<()> {
        self.failure()?;
        let sent = self.queue.as_ref().map(|queue| queue.send(Piece { at, data }));
        if matches!(sent, Some(Ok(()))) { Ok(()) } else { Err(io::Error::other("its threads have ended")) }
    }

    /// Waits until all is written.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.queue = None;
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| io::Error::other("a thread that writes has panicked"))?;
        }
        self.failure()
    }

    fn failure(&self) -> io::Result<()> {
        // The first one is told to everybody that asks.
        match &*self.failed.lock() {
            None => Ok(()),
            Some(error) => {
                Err(error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error))
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

fn work(file: &File, disk: &Disk, pieces: &Mutex<Receiver<Piece>>, failed: &Mutex<Option<io::Error>>) {
    loop {
        let piece = pieces.lock().recv();
        let Ok(Piece { at, data }) = piece else { return };
        // After an error nothing is worth writing; the queue is emptied, so that nobody waits.
        let done = if failed.lock().is_some() { Ok(()) } else { file.write_all_at(data.as_slice(), at) };
        disk.done(data.as_slice().len() as u64);
        if let Err(error) = done {
            failed.lock().get_or_insert(error);
        }
    }
}
