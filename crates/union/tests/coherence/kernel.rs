//! What the kernel does on behalf of programs that know nothing of rings. What a service leaves unanswered it asks the next one.

use crate::service::{Life, Service};
use crate::world::{BELOW, FILE, Kernel, NAMES, NO_HANDLE, Names, SIZE, USER, World, name};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::yield_now;
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::atomic::Ordering::Relaxed;
use vellum_vfs::{
    AttrReply, Context, Entry, Errno, Filesystem, NodeId, OpenFlags, Progress, RenameFlags, Result, SetAttr,
};

/// `O_CREAT | O_EXCL | O_WRONLY`.
const NEW: OpenFlags = OpenFlags::from_bits_retain(0o301);
/// Turns of others in which one of them makes a file.
const LONG: usize = 100;

/// One operation; `worker` answers it.
pub fn step(world: &World, worker: usize) {
    let what = NAMES[thread_rng().gen_range(0..NAMES.len())];
    let (file, dir) = if thread_rng().gen_bool(0.5) { (FILE, world.dir) } else { (BELOW, world.lower) };
    match thread_rng().gen_range(0..10) {
        0 | 1 => look(world, worker, what),
        2 => list(world, worker),
        3 => attributes(world, worker, dir),
        4 => attributes(world, worker, world.node(file)),
        5 => create(world, worker, what),
        6 => remove(world, worker, what),
        7 => rename(world, worker, what, NAMES[thread_rng().gen_range(0..NAMES.len())]),
        8 => set_mode(world, worker),
        _ => cut(world, worker, file, thread_rng().gen_range(0..=SIZE)),
    }
}

pub fn create_or_remove(world: &World, worker: usize, what: &'static CStr, to: &'static CStr) {
    match thread_rng().gen_range(0..5) {
        0 | 1 => create(world, worker, what),
        2 | 3 => remove(world, worker, what),
        _ => rename(world, worker, what, to),
    }
}

/// Writes down that a request has begun to make a name, while the service lives.
struct Begins<'a> {
    kernel: &'a Kernel,
    worker: usize,
    what: &'static CStr,
    life: &'a Life,
}

impl Progress for Begins<'_> {
    fn begins(&self) {
        if !self.life.is_finished() {
            self.kernel.begun.lock().unwrap().insert(self.worker, self.what);
        }
    }
    fn has_failed(&self) {}
}

/// Asks the union; the answer has arrived when this returns. If the service dies before, the next one is asked, and `call` hears whether the
/// first one had begun what cannot be carried out twice. `takes`: the name that the request takes away.
fn ask<T>(
    world: &World,
    worker: usize,
    takes: Option<&'static CStr>,
    call: impl Fn(&Service, bool) -> Result<T>,
) -> Result<T> {
    let kernel = &world.kernel;
    loop {
        let service = world.served();
        let next = kernel.asked.fetch_add(1, Relaxed) + 1;
        kernel.under_way.lock().unwrap().insert(worker, next);
        if let Some(takes) = takes {
            kernel.begun.lock().unwrap().insert(worker, takes);
        }
        let was_begun = kernel.again.lock().unwrap().contains(&worker);
        let answer = call(&service, was_begun);
        if answer.is_err() && !service.life.is_finished() {
            // Nothing has come of it.
            kernel.begun.lock().unwrap().remove(&worker);
        }
        // It is on its way, now and then for as long as others take for a whole call.
        let steps = if thread_rng().gen_bool(0.25) { LONG } else { 1 };
        (0..steps).for_each(|_| yield_now());
        if !service.life.is_finished() {
            kernel.begun.lock().unwrap().remove(&worker);
            kernel.again.lock().unwrap().remove(&worker);
            return answer;
        }
        world.note(|| format!("kernel {worker}: asks again"));
    }
}

fn arrived(world: &World, worker: usize) {
    world.kernel.under_way.lock().unwrap().remove(&worker);
}

/// How often attributes of a node were recalled, and told.
fn versions(world: &World, node: NodeId) -> (u64, u64) {
    let beliefs = world.kernel.beliefs();
    let of = |counts: &HashMap<NodeId, u64>| counts.get(&node).copied().unwrap_or(0);
    (of(&beliefs.recalls), of(&beliefs.tellings))
}

/// Attributes are believed if they were not recalled, nor told anew, since they were asked for.
fn believe(world: &World, node: NodeId, reply: AttrReply, before: (u64, u64)) {
    if versions(world, node) == before {
        tell(world, node, reply, before.0);
    }
}

/// The kernel takes over what it is told, if it was not recalled.
fn tell(world: &World, node: NodeId, reply: AttrReply, recalls_before: u64) {
    let recalls = versions(world, node).0;
    let mut beliefs = world.kernel.beliefs();
    *beliefs.tellings.entry(node).or_default() += 1;
    beliefs.attributes.remove(&node);
    if recalls == recalls_before && !reply.ttl.is_zero() {
        beliefs.attributes.insert(node, reply.attr);
    }
}

pub fn look(world: &World, worker: usize, what: &'static CStr) {
    let _lock = world.kernel.lock.read().unwrap();
    let is_known = {
        let beliefs = world.kernel.beliefs();
        beliefs.missing.contains(what) || beliefs.names.contains_key(what)
    };
    if !is_known {
        look_up_locked(world, worker, what);
    }
}

/// Looks a name up, with the directory's lock held.
fn look_up_locked(world: &World, worker: usize, what: &'static CStr) -> Option<NodeId> {
    let before = world.kernel.beliefs().recalls.clone();
    let looked_up = ask(world, worker, None, |Service { fs, .. }, _| {
        let entry = fs.lookup(&USER, world.dir, name(what))?;
        let holds = match &entry {
            Some(entry) => !entry.entry_ttl.is_zero(),
            None => !fs.negative_ttl(world.dir, name(what)).is_zero(),
        };
        Ok((entry, holds))
    });
    let (entry, holds) = looked_up.unwrap();
    let node = entry.as_ref().map(|entry| entry.node);
    world.note(|| {
        format!(
            "kernel {worker}: {what:?} is {node:?}, {:?}, {before:?}",
            entry.as_ref().map(|e| (e.attr_ttl, e.attr.size))
        )
    });
    if holds {
        match entry {
            Some(entry) => note_entry(world, what, &entry, before.get(&entry.node).copied().unwrap_or(0)),
            None => drop(world.kernel.beliefs().missing.insert(what.to_owned())),
        }
    }
    arrived(world, worker);
    node
}

/// A name has been found. `before`: how often attributes of its node had been recalled when it was asked for.
fn note_entry(world: &World, what: &CStr, entry: &Entry, before: u64) {
    let mut beliefs = world.kernel.beliefs();
    beliefs.names.insert(what.to_owned(), entry.node);
    beliefs.nodes.insert(entry.node);
    let recalls = beliefs.recalls.get(&entry.node).copied().unwrap_or(0);
    if recalls == before && !entry.attr_ttl.is_zero() {
        beliefs.attributes.insert(entry.node, entry.attr);
    }
}

pub fn list(world: &World, worker: usize) {
    let _lock = world.kernel.lock.read().unwrap();
    if world.kernel.beliefs().list.is_some() {
        return;
    }
    let names = ask(world, worker, None, |Service { fs, .. }, _| {
        let mut names = Names::default();
        fs.readdir(&USER, world.dir, NO_HANDLE, 0, &mut names).map(|_| names)
    });
    let names = names.unwrap().0;
    world.note(|| format!("kernel {worker}: lists {names:?}"));
    world.kernel.beliefs().list = Some(names);
    arrived(world, worker);
}

fn attributes(world: &World, worker: usize, node: NodeId) {
    if world.kernel.beliefs().attributes.contains_key(&node) {
        return;
    }
    let before = versions(world, node);
    let reply = ask(world, worker, None, |service, _| service.fs.getattr(&USER, node, None)).unwrap();
    world.note(|| format!("kernel {worker}: {node:?} has {:?}", (reply.ttl, reply.attr.size)));
    believe(world, node, reply, before);
    arrived(world, worker);
}

/// What the kernel forgets by itself when it changes the directory.
fn changed(world: &World) {
    let mut beliefs = world.kernel.beliefs();
    beliefs.list = None;
    beliefs.attributes.remove(&world.dir);
    *beliefs.recalls.entry(world.dir).or_default() += 1;
}

pub fn create(world: &World, worker: usize, what: &'static CStr) {
    let _lock = world.kernel.lock.write().unwrap();
    let is_missing = world.kernel.beliefs().missing.contains(what);
    let is_there = world.kernel.beliefs().names.contains_key(what);
    if is_there || (!is_missing && look_up_locked(world, worker, what).is_some()) {
        return;
    }
    let made = ask(world, worker, None, |Service { fs, life, .. }, was_begun| {
        // What is there already has been made by a predecessor.
        let flags = if was_begun { NEW - OpenFlags::EXCL } else { NEW };
        let progress = &Begins { kernel: &world.kernel, worker, what, life };
        fs.create(&Context { progress, ..USER }, world.dir, name(what), 0o644, flags)
    });
    world.note(|| {
        format!(
            "kernel {worker}: made {what:?}: {:?}",
            made.as_ref().map(|(e, _)| (e.node, e.attr_ttl, e.attr.size))
        )
    });
    changed(world);
    if let Ok((entry, opened)) = made {
        world.counts(what, 1);
        world.kernel.beliefs().missing.remove(what);
        note_entry(world, what, &entry, 0);
        arrived(world, worker);
        world.served().fs.release(entry.node, opened.handle);
    }
    arrived(world, worker);
}

pub fn remove(world: &World, worker: usize, what: &'static CStr) {
    let _lock = world.kernel.lock.write().unwrap();
    let is_missing = world.kernel.beliefs().missing.contains(what);
    let is_there = world.kernel.beliefs().names.contains_key(what);
    if is_missing || (!is_there && look_up_locked(world, worker, what).is_none()) {
        return;
    }
    let removed = ask(world, worker, Some(what), |Service { fs, .. }, was_begun| {
        match fs.unlink(&USER, world.dir, name(what)) {
            // By a predecessor.
            Err(error) if was_begun && error.errno() == Errno::NOENT => Ok(()),
            removed => removed,
        }
    });
    let is_removed = removed.is_ok();
    world.note(|| format!("kernel {worker}: removed {what:?}: {is_removed}"));
    if is_removed {
        world.counts(what, -1);
    }
    changed(world);
    let node = world.kernel.beliefs().names.remove(what);
    if let Some(node) = node {
        world.kernel.beliefs().attributes.remove(&node);
    }
    arrived(world, worker);
}

/// Moves what is at one name to another, in place of what is there.
fn rename(world: &World, worker: usize, from: &'static CStr, to: &'static CStr) {
    let _lock = world.kernel.lock.write().unwrap();
    let is_there = |what: &'static CStr| {
        let (is_missing, is_known) = {
            let beliefs = world.kernel.beliefs();
            (beliefs.missing.contains(what), beliefs.names.contains_key(what))
        };
        is_known || !is_missing && look_up_locked(world, worker, what).is_some()
    };
    if from == to || !is_there(from) {
        return;
    }
    let replaces = is_there(to);
    // So that what is made there meanwhile is not replaced without being counted.
    let flags = if replaces { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    let moved = ask(world, worker, Some(from), |Service { fs, .. }, was_begun| {
        match fs.rename(&USER, (world.dir, name(from)), (world.dir, name(to)), flags) {
            // By a predecessor.
            Err(error) if was_begun && error.errno() == Errno::NOENT => Ok(()),
            moved => moved,
        }
    });
    world.note(|| format!("kernel {worker}: moved {from:?} to {to:?}: {moved:?}"));
    changed(world);
    if moved.is_ok() {
        world.counts(from, -1);
        world.counts(to, i64::from(!replaces));
        let mut beliefs = world.kernel.beliefs();
        beliefs.missing.remove(to);
        let moved = beliefs.names.remove(from);
        let replaced = moved.and_then(|node| beliefs.names.insert(to.to_owned(), node));
        for node in [moved, replaced].into_iter().flatten() {
            beliefs.attributes.remove(&node);
            *beliefs.recalls.entry(node).or_default() += 1;
        }
    }
    arrived(world, worker);
}

/// Makes a file shorter, or longer; the one below is copied.
fn cut(world: &World, worker: usize, what: &'static CStr, size: u64) {
    let lock = if what == FILE { &world.kernel.file_lock } else { &world.kernel.below_lock };
    let _lock = lock.lock().unwrap();
    set(world, worker, world.node(what), &SetAttr { size: Some(size), ..SetAttr::default() });
}

/// Sets the mode of the file below, whose attributes are copied.
fn set_mode(world: &World, worker: usize) {
    let mode = if thread_rng().gen_bool(0.5) { 0o644 } else { 0o664 };
    let _lock = world.kernel.below_lock.lock().unwrap();
    set(world, worker, world.below, &SetAttr { mode: Some(mode), ..SetAttr::default() });
}

/// The caller holds the file's lock.
fn set(world: &World, worker: usize, node: NodeId, set: &SetAttr) {
    let before = versions(world, node).0;
    let reply = ask(world, worker, None, |service, _| service.fs.setattr(&USER, node, None, set));
    if let Ok(reply) = reply {
        world
            .note(|| format!("kernel {worker}: set {set:?} of {node:?}: {:?}", (reply.ttl, reply.attr.size)));
        tell(world, node, reply, before);
    }
    arrived(world, worker);
}
