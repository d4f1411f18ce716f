//! The life of a connection: mounting, notifications, interruption, what gets lost, the end, a successor.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Manner, Mount, cached, errno, mount_with, wait_for};
use rustix::io::Errno;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vellum_fuse::wire::{InitFlags, Opcode};
use vellum_fuse::{
    AnswerCounts, FuseNotifier, Inflight, Method, MountError, MountOptions, Session, SessionOptions, Workers,
    disbelieve, is_mounted, mount, unmount,
};
use vellum_vfs::{Context, Filesystem, Name, NodeId, Notifier};

macro_rules! need {
    ($mount:expr) => {
        match $mount {
            Some(mount) => mount,
            None => return,
        }
    };
}

#[test]
fn the_kernel_is_notified_of_changes() {
    let m = need!(cached());
    let notifier = m.handle.notifier();
    fs::write(m.at("f"), b"old").unwrap();
    fs::File::open(m.at("f")).unwrap().sync_all().unwrap();
    let ino = fs::metadata(m.at("f")).unwrap().ino();
    let node = m.fs.nodes_of(ino)[0];

    // With writeback the kernel owns the size of a file it knows: only the data is read anew.
    m.fs.poke(ino, b"new");
    assert_eq!(fs::read(m.at("f")).unwrap(), b"old", "cached");
    notifier.data_changed(node).unwrap();
    assert_eq!(fs::read(m.at("f")).unwrap(), b"new");

    // Nothing is believed of a connection that ends, neither names nor that there are none.
    m.fs.snatch(c"f");
    assert!(m.at("f").exists() && !m.at("g").exists(), "cached");
    m.fs.plant(c"g");
    assert!(!m.at("g").exists(), "cached");
    let device = m.handle.device().try_clone_to_owned().unwrap();
    disbelieve(&device, [node].into_iter());
    if m.handle.negotiated().minor >= 44 {
        assert!(!m.at("f").exists() && m.at("g").exists());
    } else {
        println!("SKIPPED: no INC_EPOCH before 7.44");
    }
}

#[test]
fn a_panic_loses_one_answer_only() {
    let m = need!(cached());
    assert_eq!(errno(fs::metadata(m.at("panic"))), Errno::IO);
    fs::write(m.at("f"), b"alive").unwrap();
    assert_eq!(fs::read(m.at("f")).unwrap(), b"alive");
}

/// Reads that are held up: direct, so that each comes as a request.
fn held_up() -> Option<Mount> {
    let manner = Manner { direct: true, ttl: Duration::from_secs(3600), ..Manner::default() };
    let m = mount_with(manner, SessionOptions::default())?;
    fs::write(m.at("f"), b"data").unwrap();
    m.fs.set_gate(false);
    Some(m)
}

#[test]
fn an_interrupted_request_is_answered_nevertheless() {
    let m = need!(held_up());
    let mut cats = Vec::new();
    for count in 1..=3 {
        cats.push(cat(&m));
        wait_for("the read at the gate", || m.fs.waiting.load(Ordering::Relaxed) == count);
        let pid = rustix::process::Pid::from_child(&cats[cats.len() - 1]);
        // No SIGINT: shells have what they start in the background ignore it.
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        wait_for("the first interrupt", || m.handle.counts().get(Opcode::Interrupt) >= 1);
        // It is counted before it is answered.
        wait_for_workers_to_sleep();
        // Time for a second one to come.
        std::thread::sleep(Duration::from_millis(30));
    }
    for cat in &mut cats {
        assert!(cat.try_wait().unwrap().is_none(), "the kernel waits for the answer");
    }
    assert_eq!(m.handle.counts().get(Opcode::Interrupt), 1, "refused for good by the first answer");
    assert!(m.fs.lookups() > 0);
    m.fs.set_gate(true);
    for cat in &mut cats {
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&cat.wait().unwrap()), Some(15));
    }
    assert_eq!(fs::read(m.at("f")).unwrap(), b"data");
}

/// Until each worker has been asleep at some time: whatever any of them was about to answer, it has answered.
fn wait_for_workers_to_sleep() {
    let mut awake: Vec<PathBuf> =
        fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path()).collect();
    wait_for("workers to sleep", || {
        awake.retain(|task| {
            // A thread that has ended has no such file any more.
            let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
            let (name, state) = stat.rsplit_once(") ").unwrap_or_default();
            name.contains("(vellum-") && !state.starts_with('S')
        });
        awake.is_empty()
    });
}

/// A program that reads a file. What it prints is no line of these tests.
fn cat(m: &Mount) -> Child {
    Command::new("cat").arg(m.at("f")).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn slow_requests_delay_nobody() {
    let m = need!(held_up());
    let cats: Vec<_> = (0..6).map(|_| cat(&m)).collect();
    wait_for("reads at the gate", || m.fs.waiting.load(Ordering::Relaxed) == 6);
    for i in 0..100 {
        let begin = Instant::now();
        assert!(!m.at(&format!("missing-{i}")).exists());
        // The gate is shut until all of them are done: held up, it would wait for ever.
        assert!(begin.elapsed() < Duration::from_secs(60), "held up by somebody else's request");
    }
    m.fs.set_gate(true);
    for cat in cats {
        let output = cat.wait_with_output().unwrap();
        assert!(output.status.success() && output.stdout == b"data", "{output:?}");
    }
}

#[test]
fn unmounting_under_load() {
    let mut m = need!(cached());
    m.fs.populate(100);
    let path = m.path().to_owned();
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new([(); 4].map(|()| AtomicU64::new(0)));
    let clients: Vec<_> = (0..done.len())
        .map(|t| {
            let (path, stop, all) = (path.clone(), Arc::clone(&stop), Arc::clone(&done));
            std::thread::spawn(move || {
                // Once it is unmounted, the same goes on in the directory below.
                while !stop.load(Ordering::Relaxed) {
                    let done = all[t].load(Ordering::Relaxed);
                    let file = path.join(format!("t{t}-{}", done % 50));
                    let _ = fs::write(&file, b"x").and_then(|()| fs::remove_file(&file));
                    all[t].store(done + 1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    wait_for("all to be at work", || done.iter().all(|done| done.load(Ordering::Relaxed) > 10));
    assert!(matches!(m.handle.unmount(false), Err(MountError::Kernel(_, Errno::BUSY)) | Ok(())));
    let _ = m.handle.unmount(true);
    assert!(!is_mounted(&path));
    m.join();
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
}

#[test]
fn mounting_by_the_helper() {
    if let Some(why) = common::obstacle() {
        println!("SKIPPED: {why}");
        return;
    }
    if Command::new("fusermount3").arg("--version").output().is_err() {
        println!("SKIPPED: fusermount3 is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions { method: Method::Helper, source: r"a,b\c".into(), ..MountOptions::default() };
    let mounted = mount(dir.path(), &options).unwrap();
    let filesystem = common::MemFs::new(Manner::default());
    let session = Session::new(filesystem, mounted, SessionOptions::default()).unwrap();
    let (handle, thread) = session.spawn().unwrap();
    fs::write(dir.path().join("f"), b"helped").unwrap();
    assert!(fs::read_to_string("/proc/mounts").unwrap().contains(r"a,b\134c"));
    handle.unmount(false).unwrap();
    thread.join().unwrap().unwrap();
    assert!(matches!(unmount(dir.path(), false), Err(MountError::Kernel(_, Errno::INVAL))));
}

#[test]
fn a_successor_serves_the_mount() {
    if let Some(why) = common::obstacle() {
        println!("SKIPPED: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mounted = mount(dir.path(), &MountOptions::default()).unwrap();
    let device = mounted.device.try_clone().unwrap();
    let filesystem = common::MemFs::new(Manner { ttl: Duration::from_secs(9), ..Manner::default() });
    let first = Session::new(Arc::clone(&filesystem), mounted, SessionOptions::default()).unwrap();
    let negotiated = first.handle().negotiated().clone();
    drop(first);

    // A request is read by a predecessor that dies before it answers.
    let path = dir.path().to_owned();
    let client = std::thread::spawn(move || fs::metadata(path.join("nothing")));
    let mut buf = vec![0; 2 << 20];
    // A session's device does not block.
    let mut wait = [rustix::event::PollFd::new(&device, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut wait, None).unwrap(), 1);
    assert!(rustix::io::read(&device, &mut buf[..]).unwrap() > 40);

    let options = SessionOptions::default();
    let second = Session::from_fd(filesystem, device, negotiated, options, Some(dir.path().into()));
    let (handle, thread) = second.spawn().unwrap();
    assert!(handle.negotiated().flags.contains(InitFlags::HAS_RESEND));
    handle.notifier().resend().unwrap();
    assert_eq!(errno(client.join().unwrap()), Errno::NOENT);
    fs::write(dir.path().join("f"), b"goes on").unwrap();
    assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"goes on");
    handle.unmount(false).unwrap();
    thread.join().unwrap().unwrap();
}

/// A lookup that a predecessor has counted, and not answered, is counted once.
#[test]
fn a_repeated_answer_counts_once() {
    if let Some(why) = common::obstacle() {
        println!("SKIPPED: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mounted = mount(dir.path(), &MountOptions::default()).unwrap();
    let device = mounted.device.try_clone().unwrap();
    let filesystem = common::MemFs::new(Manner { ttl: Duration::from_secs(9), ..Manner::default() });
    let first = Session::new(Arc::clone(&filesystem), mounted, SessionOptions::default()).unwrap();
    let negotiated = first.handle().negotiated().clone();
    drop(first);
    filesystem.plant(c"f");

    let path = dir.path().to_owned();
    let client = std::thread::spawn(move || fs::metadata(path.join("f")));
    let mut wait = [rustix::event::PollFd::new(&device, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut wait, None).unwrap(), 1);
    let mut request = vec![0; 2 << 20];
    assert!(rustix::io::read(&device, &mut request[..]).unwrap() > 40);
    let unique = u64::from_ne_bytes(request[8..16].try_into().unwrap());
    let found =
        filesystem.lookup(&Context::default(), NodeId::ROOT, Name::new(c"f").unwrap()).unwrap().unwrap();
    let inflight = Inflight::create().unwrap();
    inflight.note_counts(0, unique, AnswerCounts { node: Some(found.node), open: None });
    assert_eq!(filesystem.lookups(), 1);

    let left = Inflight::open(inflight.descriptor().try_clone_to_owned().unwrap()).unwrap();
    let options = SessionOptions { inflight: Some(Arc::new(left)), ..SessionOptions::default() };
    let second =
        Session::from_fd(Arc::clone(&filesystem), device, negotiated, options, Some(dir.path().into()));
    let (handle, thread) = second.spawn().unwrap();
    handle.notifier().resend().unwrap();
    client.join().unwrap().unwrap();
    assert_eq!(filesystem.lookups(), 1);
    handle.unmount(false).unwrap();
    thread.join().unwrap().unwrap();
}

/// Who makes names past the kernel has to leave those alone of which a request may come a second time.
#[test]
fn names_of_pending_requests_are_known() {
    let make = |path: PathBuf| fs::File::create_new(path).map(drop);
    let remove = |path: PathBuf| fs::remove_file(path);
    type Act = fn(PathBuf) -> std::io::Result<()>;
    // The first has not seen yet whether the name is free.
    let acts: [(&str, Act, bool); 3] =
        [("gated-create", make, false), ("gated-made", make, true), ("gated-unlink", remove, true)];
    for (name, act, is_begun) in acts {
        let inflight = Arc::new(Inflight::create().unwrap());
        let options = SessionOptions { inflight: Some(Arc::clone(&inflight)), ..SessionOptions::default() };
        let manner = Manner { ttl: Duration::from_secs(9), ..Manner::default() };
        let m = need!(mount_with(manner, options.clone()));
        fs::create_dir(m.at("d")).unwrap();
        fs::write(m.at("d/gated-unlink"), b"").unwrap();
        let dir = m.fs.nodes_of(fs::metadata(m.at("d")).unwrap().ino())[0];
        let has_begun = |notifier: &FuseNotifier, name: &str| {
            let name = CString::new(name).unwrap();
            notifier.is_pending(dir, Name::new(&name).unwrap())
        };
        m.fs.set_gate(false);
        let path = m.at("d").join(name);
        let client = std::thread::spawn(move || act(path));
        wait_for("it to be under way", || m.fs.waiting.load(Ordering::Relaxed) == 1);
        let notifier = m.handle.notifier();
        assert_eq!(has_begun(&notifier, name), is_begun, "{name}");
        assert!(!has_begun(&notifier, "other"));
        // A service that went on with it would know as much.
        let left = Inflight::open(inflight.descriptor().try_clone_to_owned().unwrap()).unwrap();
        let options = SessionOptions { inflight: Some(Arc::new(left)), ..options };
        let device = m.handle.device().try_clone_to_owned().unwrap();
        let negotiated = m.handle.negotiated().clone();
        let next = Session::from_fd(Arc::clone(&m.fs), device, negotiated, options, None);
        assert_eq!(has_begun(&next.handle().notifier(), name), is_begun, "{name}, over a death");
        m.fs.set_gate(true);
        client.join().unwrap().unwrap();
        wait_for("the answer to be noted", || !has_begun(&notifier, name));
    }
}

/// An end of an open that a predecessor had begun is not carried out again: it would be that of another open.
#[test]
fn an_open_ends_once() {
    let inflight = Arc::new(Inflight::create().unwrap());
    // One worker, which does nothing else, as if the service had died.
    let workers = Workers { max: 1, most: 1, ..Workers::default() };
    let options =
        SessionOptions { workers, inflight: Some(Arc::clone(&inflight)), ..SessionOptions::default() };
    let manner = Manner { gated_releases: true, ttl: Duration::from_secs(9), ..Manner::default() };
    let m = need!(mount_with(manner, options));
    let stays = fs::File::create_new(m.at("f")).unwrap();
    let ends = fs::File::open(m.at("f")).unwrap();
    assert_eq!(m.fs.opens(), 2);
    m.fs.set_gate(false);
    drop(ends);
    wait_for("it to be under way", || m.fs.waiting.load(Ordering::Relaxed) == 1);
    assert_eq!(m.fs.opens(), 1);

    let left = Inflight::open(inflight.descriptor().try_clone_to_owned().unwrap()).unwrap();
    let options = SessionOptions { inflight: Some(Arc::new(left)), ..SessionOptions::default() };
    let device = m.handle.device().try_clone_to_owned().unwrap();
    let next = Session::from_fd(Arc::clone(&m.fs), device, m.handle.negotiated().clone(), options, None);
    let (next, thread) = next.spawn().unwrap();
    next.notifier().resend().unwrap();
    wait_for("it to come again", || next.counts().get(Opcode::Release) == 1);
    // The answer to another request, which came later.
    fs::metadata(m.at("nothing")).unwrap_err();
    assert_eq!((m.fs.waiting.load(Ordering::Relaxed), m.fs.opens()), (1, 1), "carried out twice");
    m.fs.set_gate(true);
    drop(stays);
    wait_for("the end of the other", || m.fs.opens() == 0);
    drop(m);
    thread.join().unwrap().unwrap();
}

#[test]
fn counts_of_undelivered_answers_are_reverted() {
    let mut m = need!(cached());
    fs::create_dir(m.at("d")).unwrap();
    m.fs.plant(c"gated");
    assert_eq!(m.fs.lookups(), 1);
    m.fs.set_gate(false);
    // In different directories, as the kernel locks a directory while something is made in it.
    let clients: Vec<_> = ["gated", "d/gated-create"]
        .map(|name| {
            let path = m.at(name);
            std::thread::spawn(move || fs::File::options().append(true).create(true).open(path))
        })
        .into();
    wait_for("both at the gate", || m.fs.waiting.load(Ordering::Relaxed) == 2);
    rustix::mount::unmount(m.path(), rustix::mount::UnmountFlags::FORCE).unwrap_err();
    for client in clients {
        assert_eq!(errno(client.join().unwrap()), Errno::CONNABORTED);
    }
    let _ = m.handle.unmount(true);
    m.fs.set_gate(true);
    m.join();
    assert_eq!((m.fs.lookups(), m.fs.opens()), (1, 0), "only the directory is held");
}
