//! Measures what one request costs: a filesystem that does nothing, and client processes that ask it for names
//! that do not exist (one LOOKUP each), or for attributes that may not be cached (one GETATTR each).
//!
//! `cargo run --release -p vellum-fuse --example request_cost [-- workers=N spin=MICROSECONDS awake=true seconds=S request=lookup clients=1]`

use std::error::Error;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vellum_fuse::{MountOptions, Session, SessionOptions, mount};
use vellum_vfs::{
    Attr, AttrReply, Context, DirSink, Entry, Errno, Filesystem, Handle, Name, NodeId, OpenFlags, OpenReply,
    Result, StatFs,
};

/// An empty directory, whose attributes may or may not be cached.
#[derive(Default)]
struct Nothing {
    cacheable: AtomicBool,
}

type Cx<'a> = Context<'a>;

impl Filesystem for Nothing {
    fn lookup(&self, _: &Cx<'_>, _: NodeId, _: Name<'_>) -> Result<Option<Entry>> {
        Ok(None)
    }
    fn forget(&self, _: NodeId, _: u64) {}
    fn getattr(&self, _: &Cx<'_>, _: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        let attr = Attr { ino: 1, mode: 0o040_755, nlink: 2, ..Attr::default() };
        let ttl =
            if self.cacheable.load(Ordering::Relaxed) { Duration::from_secs(600) } else { Duration::ZERO };
        Ok(AttrReply { attr, ttl })
    }
    fn open(&self, _: &Cx<'_>, _: NodeId, _: OpenFlags) -> Result<OpenReply> {
        Err(Errno::PERM.into())
    }
    fn read(&self, _: &Cx<'_>, _: NodeId, _: Handle, _: u64, _: &mut [u8]) -> Result<usize> {
        Err(Errno::IO.into())
    }
    fn opendir(&self, _: &Cx<'_>, _: NodeId, _: OpenFlags) -> Result<OpenReply> {
        Err(Errno::NOSYS.into())
    }
    fn readdir(&self, _: &Cx<'_>, _: NodeId, _: Handle, _: u64, _: &mut dyn DirSink) -> Result<()> {
        Ok(())
    }
    fn statfs(&self, _: &Cx<'_>, _: NodeId) -> Result<StatFs> {
        Ok(StatFs::default())
    }
}

/// The client: asks until the time is over and prints how often it did.
fn client(what: &str, dir: &Path, seconds: f64) {
    let begin = Instant::now();
    let missing = dir.join("missing");
    let mut count = 0_u64;
    while begin.elapsed().as_secs_f64() < seconds {
        for _ in 0..50 {
            let found = std::fs::symlink_metadata(if what == "lookup" { &missing } else { dir });
            assert_eq!(found.is_ok(), what != "lookup");
        }
        count += 50;
    }
    println!("{count} {}", begin.elapsed().as_nanos() as u64 / count);
}

/// Voluntary and involuntary context switches of every thread of this process, and its CPU time.
fn own_costs() -> (u64, u64, Duration) {
    let usage = |name: &str, text: &str| -> u64 {
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.trim_start_matches(':').trim().parse().ok())
            .unwrap_or(0)
    };
    let (mut voluntary, mut forced) = (0, 0);
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        voluntary += usage("voluntary_ctxt_switches", &text);
        forced += usage("nonvoluntary_ctxt_switches", &text);
    }
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    (voluntary, forced, Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32))
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, what, dir, seconds] = args.as_slice()
        && flag == "--client"
    {
        client(what, dir.as_ref(), seconds.parse()?);
        return Ok(());
    }
    let mut options = SessionOptions::default();
    let (mut seconds, mut awake) = (1.0, false);
    let mut requests = vec!["getattr", "lookup"];
    let mut numbers = vec![1, 2];
    for arg in args.iter().skip(1) {
        match arg.split_once('=') {
            Some(("workers", n)) => options.workers.max = n.parse()?,
            Some(("spin", n)) => options.workers.spin = Duration::from_micros(n.parse()?),
            Some(("awake", yes)) => awake = yes.parse()?,
            Some(("seconds", n)) => seconds = n.parse()?,
            Some(("request", name)) => requests = vec![name],
            Some(("clients", n)) => numbers = vec![n.parse()?],
            _ => return Err(format!("unknown argument {arg}").into()),
        }
    }
    let dir = tempfile::tempdir()?;
    let mounted = mount(dir.path(), &MountOptions::default())?;
    let nothing = Arc::new(Nothing::default());
    let mut session = Session::new(Arc::clone(&nothing), mounted, options)?;
    if awake {
        session.share_cpu_latency(Arc::default());
    }
    let (handle, session) = session.spawn()?;
    println!(
        "{:<8} {:>7} {:>9} {:>12} {:>12} {:>9}",
        "request", "clients", "ns each", "requests/s", "switches/req", "cpu ns/req"
    );
    for what in requests {
        nothing.cacheable.store(what == "lookup", Ordering::Relaxed);
        for &clients in &numbers {
            let before = (own_costs(), handle.counts().total(), Instant::now());
            let running: Vec<Child> = (0..clients)
                .map(|_| {
                    Command::new(&args[0])
                        .args(["--client", what])
                        .arg(dir.path())
                        .arg(seconds.to_string())
                        .stdout(Stdio::piped())
                        .spawn()
                })
                .collect::<std::io::Result<_>>()?;
            let mut each = Vec::new();
            for child in running {
                let out = String::from_utf8(child.wait_with_output()?.stdout)?;
                each.push(out.split_whitespace().nth(1).ok_or("client failed")?.parse::<u64>()?);
            }
            let after = own_costs();
            let requests = handle.counts().total() - before.1;
            println!(
                "{what:<8} {clients:>7} {:>9} {:>12.0} {:>12.2} {:>9}",
                each.iter().sum::<u64>() / clients,
                requests as f64 / before.2.elapsed().as_secs_f64(),
                (after.0 - before.0.0 + after.1 - before.0.1) as f64 / requests as f64,
                (after.2 - before.0.2).as_nanos() as u64 / requests,
            );
        }
    }
    handle.unmount(false)?;
    session.join().map_err(|_| "the session has panicked")??;
    Ok(())
}
