//! Programs that go past the kernel, by the ring and by a mapping; and death.

use crate::export::object;
use crate::kernel;
use crate::service::{Life, Service};
use crate::world::{BELOW, Deaf, FILE, NAMES, SIZE, USER, World, name};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::yield_now;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use vellum_union::{Directory, Union};
use vellum_vfs::{
    BranchFile, Client, DirName, Errno, Handout, HandoutError, HandoutFlags, Progress, Verdict,
};

/// The kernel's worker for what the ring refers to it.
const WORKER: usize = 3;

const TO_WRITE: HandoutFlags = HandoutFlags::READ.union(HandoutFlags::WRITE);

/// Whether a call has announced that it begins something, while the service lived.
struct Announced<'a>(AtomicBool, &'a Life);

impl Announced<'_> {
    fn set(&self, begun: bool) {
        if !self.1.is_finished() {
            self.0.store(begun, SeqCst);
        }
    }
}

impl Progress for Announced<'_> {
    fn begins(&self) {
        self.set(true);
    }
    fn has_failed(&self) {
        self.set(false);
    }
}

/// What came of a call over the ring.
enum Came<T> {
    Answer(Verdict<T>),
    /// The service died before it answered.
    Lost {
        begun: bool,
    },
}

/// A call over the ring about a name in the directory.
fn past<T>(
    world: &World,
    what: &'static CStr,
    checked: bool,
    call: impl FnOnce(&Union, &Client<'_>, &DirName<'_, Directory>) -> Verdict<T>,
) -> Came<T> {
    over_the_ring(world, |service, client| {
        let wanted = DirName { dir: service.shared(), name: name(what), checked };
        call(&service.fs, client, &wanted)
    })
}

fn over_the_ring<T>(world: &World, call: impl FnOnce(&Service, &Client<'_>) -> Verdict<T>) -> Came<T> {
    let service = world.service();
    let announced = Announced(AtomicBool::new(false), &service.life);
    if service.life.is_finished() {
        return Came::Lost { begun: false };
    }
    let client = Client { uid: USER.uid, gid: USER.gid, progress: &announced };
    let verdict = call(&service, &client);
    if service.life.is_finished() {
        return Came::Lost { begun: announced.0.load(SeqCst) };
    }
    Came::Answer(verdict)
}

/// The service dies after some turns of others, less than `life`, and another goes on.
pub fn takeover(world: &World, life: usize) {
    (0..thread_rng().gen_range(0..life)).for_each(|_| yield_now());
    world.take_over();
}

/// One call over the ring.
pub fn program(world: &World) {
    let what = NAMES[thread_rng().gen_range(0..NAMES.len())];
    match thread_rng().gen_range(0..7) {
        0 | 1 => make(world, what),
        2 => remove(world, what),
        3 => write(world, what),
        4 => write(world, FILE),
        5 => write_again(world, FILE),
        _ => write_again(world, BELOW),
    }
}

pub fn make(world: &World, what: &'static CStr) {
    let made = past(world, what, false, |fs, client, at| fs.create(client, at, TO_WRITE, 0o644).map(object));
    match made {
        Came::Answer(Ok(file)) => {
            // It has been answered, and nobody has done anything since.
            world.counts(what, 1);
            let beliefs = world.kernel.beliefs();
            let is_missing = beliefs.missing.contains(what);
            world.check(!is_missing, || format!("{what:?} was made and is believed not to be there"));
            let is_listed = beliefs.list.as_ref().is_none_or(|list| list.contains(what));
            world.check(is_listed, || format!("{what:?} was made and is not in the list"));
            drop(beliefs);
            world.note(|| format!("program: made {what:?}: {}", file.stat().unwrap().ino));
            appends(world, &file, what);
        }
        Came::Answer(Err(HandoutError::Error(errno))) => assert_eq!(errno, Errno::EXIST),
        Came::Answer(Err(_)) => kernel::create(world, WORKER, what),
        Came::Lost { begun } => {
            world.note(|| format!("program: nobody answers whether {what:?} was made; begun: {begun}"));
            if begun {
                world.may_have_made(what);
            }
            kernel::create(world, WORKER, what);
        }
    }
}

/// By the kernel, as `Handout` has no such call.
fn remove(world: &World, what: &'static CStr) {
    kernel::remove(world, WORKER, what);
}

/// Opens a file to write, and writes and cuts.
fn write(world: &World, what: &'static CStr) {
    let flags = if thread_rng().gen_bool(0.3) { TO_WRITE | HandoutFlags::TRUNCATE } else { TO_WRITE };
    let open = |checked| past(world, what, checked, |fs, client, at| fs.open(client, at, flags).map(object));
    let mut opened = open(false);
    if matches!(opened, Came::Answer(Err(HandoutError::Known))) {
        // The program has the kernel walk the path.
        kernel::look(world, WORKER, what);
        opened = open(true);
    }
    if let Came::Answer(Ok(file)) = opened {
        world.note(|| format!("program: opened {what:?}: {}", file.stat().unwrap().ino));
        is_shown(world, &file, what);
        appends(world, &file, what);
        if thread_rng().gen_bool(0.5) {
            yield_now();
            file.truncate(thread_rng().gen_range(0..=SIZE)).unwrap();
            is_shown(world, &file, what);
        }
    }
}

/// Has a file open by way of the kernel, is given it once more, and writes.
fn write_again(world: &World, what: &'static CStr) {
    let node = world.node(what);
    let given = over_the_ring(world, |service, client| {
        service.fs.reopen(client, node, HandoutFlags::WRITE).map(object)
    });
    if let Came::Answer(Ok(file)) = given {
        world.note(|| format!("program: has {what:?} again: {}", file.stat().unwrap().ino));
        is_shown(world, &file, what);
        appends(world, &file, what);
    }
}

fn appends(world: &World, file: &Arc<dyn BranchFile>, what: &CStr) {
    yield_now();
    let size = file.stat().unwrap().size;
    file.write_at(b"more", size).unwrap();
    world.note(|| format!("program: wrote to {what:?} at {size}"));
    is_shown(world, file, what);
}

/// What was written has been answered: nobody may believe in another size.
fn is_shown(world: &World, file: &Arc<dyn BranchFile>, what: &CStr) {
    let attr = file.stat().unwrap();
    let beliefs = world.kernel.beliefs();
    // A copy is shown under another number than it has itself.
    let believed = if what == BELOW {
        beliefs.attributes.get(&world.below)
    } else {
        beliefs.attributes.values().find(|believed| believed.ino == attr.ino)
    };
    if let Some(believed) = believed {
        let sizes = (believed.size, attr.size);
        world.check(sizes.0 == sizes.1, || {
            format!("{what:?} is believed to have a size, and has another: {sizes:?}")
        });
    }
}

/// Maps the file and reads from the mapping as long as that is said to hold.
pub fn reader(world: &World) {
    let service = world.service();
    let Ok(Some(told)) = service.fs.mappable(world.file) else { return };
    if service.life.is_finished() {
        return;
    }
    let word = || {
        yield_now();
        // 512 words come before those of slots.
        world.words.word(512 + told.slot as usize).unwrap().load(SeqCst)
    };
    let holds = || world.deaf == Some(Deaf::Cuts) || word() == told.generation;
    for _ in 0..3 {
        if !holds() {
            return;
        }
        yield_now();
        let size = world.upper.stat_at(name(FILE)).unwrap().size;
        if holds() {
            world.check(size >= told.size, || {
                format!("{size} bytes of {} were read from a mapping", told.size)
            });
        }
    }
}
