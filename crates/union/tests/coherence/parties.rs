//! Programs that go past the kernel: by the ring, and by a mapping.

use crate::export::object;
use crate::kernel;
use crate::world::{Deaf, FILE, NAMES, SIZE, USER, World, name};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::yield_now;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use vellum_union::Directory;
use vellum_vfs::{BranchFile, Client, Errno, Handout, HandoutFlags, Refused, Wanted};

/// The kernel's worker for what the ring refers to it.
const WORKER: usize = 3;

const CLIENT: Client<'static> = Client { uid: USER.uid, gid: USER.gid, progress: &() };
const TO_WRITE: HandoutFlags = HandoutFlags::READ.union(HandoutFlags::WRITE);

fn wanted<'a>(world: &'a World, what: &'static CStr) -> Wanted<'a, Directory> {
    Wanted { dir: &world.shared, name: name(what), checked: false }
}

/// One call over the ring.
pub fn program(world: &World) {
    let what = NAMES[thread_rng().gen_range(0..NAMES.len())];
    match thread_rng().gen_range(0..5) {
        0 | 1 => make(world, what),
        2 => remove(world, what),
        3 => write(world, what),
        _ => write(world, FILE),
    }
}

fn make(world: &World, what: &'static CStr) {
    let made = world.fs.create(&CLIENT, &wanted(world, what), TO_WRITE, 0o644).map(object);
    if made.is_ok() {
        // It has been answered, and nobody has done anything since.
        let beliefs = world.kernel.beliefs();
        let is_missing = beliefs.missing.contains(what);
        world.check(!is_missing, || format!("{what:?} was made and is believed not to be there"));
        let is_listed = beliefs.list.as_ref().is_none_or(|list| list.contains(what));
        world.check(is_listed, || format!("{what:?} was made and is not in the list"));
    }
    world.note(|| format!("program: made {what:?}: {:?}", made.as_ref().map(|f| f.stat().unwrap().ino)));
    match made {
        Ok(file) => appends(world, &file, what),
        Err(Refused::Error(errno)) => assert_eq!(errno, Errno::EXIST),
        Err(_) => kernel::create(world, WORKER, what),
    }
}

/// By the kernel, as the door has no such call.
fn remove(world: &World, what: &'static CStr) {
    kernel::remove(world, WORKER, what);
}

/// Opens a file to write, and writes and cuts.
fn write(world: &World, what: &'static CStr) {
    let mut wanted = wanted(world, what);
    let flags = if thread_rng().gen_bool(0.3) { TO_WRITE | HandoutFlags::TRUNCATE } else { TO_WRITE };
    let mut opened = world.fs.open(&CLIENT, &wanted, flags).map(object);
    if matches!(opened, Err(Refused::Known)) {
        // The program has the kernel walk the path.
        kernel::look(world, WORKER, what);
        wanted.checked = true;
        opened = world.fs.open(&CLIENT, &wanted, flags).map(object);
    }
    world.note(|| format!("program: opened {what:?}: {:?}", opened.as_ref().map(|f| f.stat().unwrap().ino)));
    if let Ok(file) = opened {
        is_shown(world, &file, what);
        appends(world, &file, what);
        if thread_rng().gen_bool(0.5) {
            yield_now();
            file.truncate(thread_rng().gen_range(0..=SIZE)).unwrap();
            is_shown(world, &file, what);
        }
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
    let believed = beliefs.names.get(what).and_then(|node| beliefs.attributes.get(node));
    if let Some(believed) = believed.filter(|believed| believed.ino == attr.ino) {
        let sizes = (believed.size, attr.size);
        world.check(sizes.0 == sizes.1, || {
            format!("{what:?} is believed to have a size, and has another: {sizes:?}")
        });
    }
}

/// Maps the file and reads from the mapping as long as that is said to hold.
pub fn reader(world: &World) {
    let Ok(Some(told)) = world.fs.mappable(world.file) else { return };
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
