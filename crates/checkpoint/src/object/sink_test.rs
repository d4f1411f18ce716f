//! What is put comes out again, packed or not, and also where most of it is in other objects.

use super::*;
use crate::object::format::read;
use crate::object::map::Parent;
use crate::object::storage::{ByteSource, MemorySource};
use crate::object::unpack::ObjectBytes;
use crate::record::Record;
use proptest::prelude::*;
use std::path::PathBuf;

/// Takes so many bytes, and no more.
#[derive(Default)]
struct ToMemory {
    bytes: Arc<Mutex<Vec<u8>>>,
    most: usize,
}

impl ByteSink for ToMemory {
    fn write(&mut self, bytes: &[u8], _: bool) -> io::Result<()> {
        let mut all = self.bytes.lock();
        if all.len() + bytes.len() > self.most {
            return Err(Errno::NOSPC.into());
        }
        all.extend_from_slice(bytes);
        Ok(())
    }

    fn explain(&self, error: &io::Error) -> Failure {
        Failure::system("memory").because(error)
    }

    fn sync(&mut self, _: &Record) -> Result<(), Failure> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<PathBuf, Failure> {
        Ok(PathBuf::new())
    }
}

/// An object that is written to memory.
pub(in super::super) struct InMemory {
    pub(in super::super) pipeline: WritePipeline,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl InMemory {
    pub(in super::super) fn begin(how: WriteOptions) -> Self {
        Self::with_room(usize::MAX, 1, how)
    }

    /// For so many bytes, of which so many parts may wait.
    fn with_room(most: usize, room: usize, how: WriteOptions) -> Self {
        let bytes = Arc::default();
        let out = Box::new(ToMemory { bytes: Arc::clone(&bytes), most });
        Self { pipeline: WritePipeline::with_room(out, room, how).unwrap(), bytes }
    }

    /// What was written, and its map.
    pub(in super::super) fn finish(self) -> (Vec<u8>, Map) {
        let (_, map) = self.pipeline.finish().unwrap();
        (std::mem::take(&mut *self.bytes.lock()), map)
    }
}

fn how(compress: Compress) -> WriteOptions {
    WriteOptions { compress, known: ParentGranules::default() }
}

fn stored(bytes: Vec<u8>) -> Box<dyn ByteSource> {
    Box::new(MemorySource(bytes))
}

/// Objects of these bytes, each the next one's parent: how many bytes each takes, and what was put into the last one.
fn chain(all: &[Vec<u8>], compress: Compress) -> (Vec<usize>, ObjectBytes) {
    let mut made: Vec<(Vec<u8>, Map)> = Vec::new();
    for bytes in all {
        let known = made.iter().enumerate().rev();
        let known = known.map(|(at, (_, map))| (Parent { name: format!("n{at}"), id: map.id }, map.clone()));
        let how = WriteOptions { compress, known: ParentGranules::from_parents(known) };
        let writing = InMemory::begin(how);
        assert_eq!(writing.pipeline.sink().put(bytes), Ok(0));
        let (out, map) = writing.finish();
        assert!(map.is_valid(out.len() as u64), "{map:?}");
        let written = postcard::to_stdvec(&map).unwrap();
        assert_eq!(read::<Map>(&written, 1 << 20).as_ref(), Some(&map));
        made.push((out, map));
    }
    let sizes = made.iter().map(|(bytes, _)| bytes.len()).collect();
    let (own, map) = made.pop().unwrap();
    let parents = made.into_iter().rev().map(|(bytes, map)| (stored(bytes), map)).collect();
    (sizes, ObjectBytes::new((stored(own), &map), parents).unwrap())
}

#[test]
fn concurrent_writers_find_their_bytes_at_the_returned_offsets() {
    for compress in [Compress::Auto, Compress::None, Compress::Zstd(1)] {
        // Room for one part, so that those who bring them wait.
        let writing = InMemory::begin(how(compress));
        let places: Vec<(u8, u64, usize)> = std::thread::scope(|scope| {
            let bring = |byte: u8| {
                let sink = writing.pipeline.sink().clone();
                move || {
                    let lens = (0..20_usize).map(|turn| turn * 40_000 % 700_001 + 1);
                    lens.map(|len| (byte, sink.put(&vec![byte; len]).unwrap(), len)).collect::<Vec<_>>()
                }
            };
            let all: Vec<_> = [1, 2, 3].into_iter().map(|byte| scope.spawn(bring(byte))).collect();
            all.into_iter().flat_map(|one| one.join().unwrap()).collect()
        });
        let (out, map) = writing.finish();
        assert_eq!(out.len() as u64, map.stored());
        let bytes = ObjectBytes::new((stored(out), &map), Vec::new()).unwrap();
        for (byte, from, len) in places {
            assert!(len < GRANULE || from.is_multiple_of(GRANULE as u64));
            let mut found = vec![0; len];
            bytes.read_exact(from, &mut found).unwrap();
            assert!(found.iter().all(|one| *one == byte));
        }
    }
}

#[test]
fn a_full_device_is_reported_to_every_writer() {
    let writing = InMemory::with_room(10 << 20, 1, how(Compress::None)).pipeline;
    let sink = writing.sink().clone();
    let part = vec![7; PART];
    let refused = (0..100).find_map(|_| sink.put(&part).err());
    assert_eq!(refused, Some(Errno::NOSPC));
    let says_full = |why: &Failure| why.to_string().contains("memory: No space left");
    assert!(sink.failed().is_some_and(|why| says_full(&why)));
    assert!(writing.finish().is_err_and(|why| says_full(&why)));
    // One that is given up is not there, and takes nothing more.
    let writing = InMemory::begin(how(Compress::Auto)).pipeline;
    let sink = writing.sink().clone();
    sink.put(&part).unwrap();
    drop(writing);
    sink.put(&part).unwrap_err();
}

/// Writes when it is told to.
struct Slow(std::sync::mpsc::Receiver<()>, ToMemory);

impl ByteSink for Slow {
    fn write(&mut self, bytes: &[u8], hurry: bool) -> io::Result<()> {
        let _ = self.0.recv();
        self.1.write(bytes, hurry)
    }

    fn explain(&self, error: &io::Error) -> Failure {
        self.1.explain(error)
    }

    fn sync(&mut self, record: &Record) -> Result<(), Failure> {
        self.1.sync(record)
    }

    fn commit(self: Box<Self>) -> Result<PathBuf, Failure> {
        Ok(PathBuf::new())
    }
}

impl InMemory {
    fn slow(waits: std::sync::mpsc::Receiver<()>, room: usize) -> Self {
        let bytes = Arc::default();
        let out = Slow(waits, ToMemory { bytes: Arc::clone(&bytes), most: usize::MAX });
        let pipeline = WritePipeline::with_room(Box::new(out), room, how(Compress::Auto)).unwrap();
        Self { pipeline, bytes }
    }
}

/// Whoever waits for the device packs; whom the device waits for does not.
#[test]
fn packing_continues_while_the_device_is_busy() {
    let parts = 100;
    let (go, waits) = std::sync::mpsc::channel();
    let writing = InMemory::slow(waits, parts);
    for _ in 0..parts {
        writing.pipeline.sink().put(&vec![7; PART]).unwrap();
    }
    let shared = Arc::clone(&writing.pipeline.sink().shared);
    // Nothing is written yet, so all that can be packed is: in the end the packed parts are fewer bytes than are written at once.
    let mut state = shared.state.lock();
    while !state.waiting.is_empty() {
        shared.changed.wait(&mut state);
    }
    drop(state);
    drop(go);
    let (out, map) = writing.finish();
    assert_eq!(out.len() as u64, map.stored());
    assert!(out.len() < 4 * PART, "{} bytes of {}", out.len(), parts * PART);
    // A device that is done before more comes.
    let (go, waits) = std::sync::mpsc::channel();
    drop(go);
    let writing = InMemory::slow(waits, parts);
    let shared = Arc::clone(&writing.pipeline.sink().shared);
    for _ in 0..20 {
        writing.pipeline.sink().put(&vec![7; PART]).unwrap();
        let mut state = shared.state.lock();
        while !state.waiting.is_empty() || !state.ready.is_empty() || state.is_writing || state.is_packing {
            shared.changed.wait(&mut state);
        }
    }
    assert_eq!(writing.finish().0.len(), 20 * PART);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Each object is the one before with some changes, and some bytes moved; what is read anywhere is what was put.
    #[test]
    fn shared_granules_are_read_from_their_parent_objects(
        changes in prop::collection::vec(
            prop::collection::vec((0_usize..300, 1_usize..20, any::<u8>(), any::<bool>()), 0..6), 0..5),
        level in prop::sample::select(vec![Compress::None, Compress::Zstd(1)]),
        reads in prop::collection::vec((0_usize..1_300_000, 0_usize..400_000), 8),
    ) {
        let first: Vec<u8> = (0..300 * GRANULE as u32 + 77).map(|at| (at / 1000 * 7 % 251) as u8 ^ (at % 13) as u8).collect();
        let mut all = vec![first];
        for changes in changes {
            let mut next = all.last().unwrap().clone();
            for (at, granules, byte, moves) in changes {
                let from = (at * GRANULE).min(next.len());
                let to = (from + granules * GRANULE).min(next.len());
                if moves {
                    let part: Vec<u8> = next.drain(from..to).collect();
                    next.splice(0..0, part);
                } else {
                    next[from..to].fill(byte);
                }
            }
            all.push(next);
        }
        let (sizes, unpacked) = chain(&all, level);
        let last = all.last().unwrap();
        prop_assert_eq!(unpacked.size(), last.len() as u64);
        for (at, len) in reads {
            let (from, to) = (at.min(last.len()), (at + len).min(last.len()));
            let mut found = vec![0; to - from];
            unpacked.read_exact(from as u64, &mut found).unwrap();
            prop_assert!(found == last[from..to], "{} to {}", from, to);
        }
        prop_assert!(unpacked.read_exact(last.len() as u64, &mut [0]).is_err());
        if all.len() > 1 && all[0] == all[1] {
            prop_assert_eq!(sizes[1], 0);
        }
    }
}

/// What does not fit together is refused when it is read, and no frame is unpacked to more than it may.
#[test]
fn altered_frames_are_refused() {
    let writing = InMemory::begin(how(Compress::Zstd(3)));
    writing.pipeline.sink().put(&vec![7; 3 << 20]).unwrap();
    let (out, map) = writing.finish();
    let read = |bytes: Vec<u8>, map: &Map| {
        ObjectBytes::new((stored(bytes), map), Vec::new()).unwrap().read_exact(0, &mut vec![0; 1 << 20])
    };
    read(out.clone(), &map).unwrap();
    let said = |result: io::Result<()>| result.unwrap_err().to_string();
    let mut changed = out.clone();
    changed[10] ^= 1;
    assert!(said(read(changed, &map)).contains("not what was written"));
    assert!(read(out[..10].to_vec(), &map).is_err());
    // A frame that says it is a gigabyte, one that is cut, and one that is shorter than it has to be; each with the right checksum.
    let bomb = zstd::bulk::compress(&vec![0; 1 << 30], 1).unwrap();
    let short = zstd::bulk::compress(&[0; 100], 1).unwrap();
    let cut = out[..map.frames[0].len as usize - 1].to_vec();
    for bytes in [bomb, short, cut] {
        let mut map = map.clone();
        map.frames[0].len = bytes.len() as u32;
        map.frames[0].sum = crc_fast::crc32_iscsi(&bytes);
        assert!(said(read(bytes, &map)).contains("as much as it has to"));
    }
    // Another object's granules beyond its end.
    let mut beyond = map.clone();
    beyond.parents.push(Parent { name: "one".into(), id: [0; 16] });
    beyond.extents[0].of = 1;
    beyond.extents[0].from = 1;
    assert!(ObjectBytes::new((stored(Vec::new()), &beyond), vec![(stored(out), map)]).is_none());
}
