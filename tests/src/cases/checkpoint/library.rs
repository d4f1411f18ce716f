//! Containers whose programs have the library loaded: it goes away for a checkpoint, and comes back.

use super::support::{Scene, VellumProcess, eventually};
use crate::cases::library::{compile, library as built};
use crate::harness::Cx;
use crate::harness::outcome::{DuringContext, Outcome, ensure_eq, fail};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// A container that reads and writes by the library, in a pool, with a directory of the same pool whose files are handed out.
struct Ground<'a> {
    scene: Scene<'a>,
    pools: [String; 2],
    data: PathBuf,
}

/// What a program has done by the library so far.
#[derive(Clone, Copy, Debug)]
struct Counts {
    reads: u64,
    opens: u64,
}

impl<'a> Ground<'a> {
    fn new(cx: &'a Cx) -> Outcome<Self> {
        let scene = Scene::with_host_programs(cx)?.with_library(built()?);
        // By the compiler of the libc that containers see.
        fs::copy(compile(cx, "gcc", "checkpoint")?, scene.image().join("srv/works"))?;
        fs::create_dir(scene.image().join("data"))?;
        let time = UNIX_EPOCH.elapsed().doing("the time")?.as_nanos();
        let ground = Self {
            scene,
            pools: ["a", "b"].map(|name| format!("test-ck-{time}-{name}")),
            data: cx.dir.join("data"),
        };
        for pool in &ground.pools {
            ground.scene.vellum(&["pool", "create", pool])?;
        }
        let at = |name: &str| -> Outcome<String> {
            let dir = cx.dir.join(name);
            fs::create_dir(&dir)?;
            Ok(dir.display().to_string())
        };
        let options = format!(
            "pool={},profile=passthrough,lowerdir={},upperdir={},workdir={}",
            ground.pools[0],
            at("data-lower")?,
            at("data-upper")?,
            at("data-work")?
        );
        ground.scene.vellum(&["mount", "-o", &options, &at("data")?])?;
        Ok(ground)
    }

    fn start(&self) -> Outcome<VellumProcess> {
        let data = format!("{}:/data", self.data.display());
        let all = ["--name", "works", "--pool", &self.pools[0], "-e", "VELLUM_RING=on"];
        let all = [&all[..], &["-v", "/usr:/usr:ro", "-v", &data, "/srv/works", "/srv", "/data"]].concat();
        self.scene.start(&all)
    }

    /// Ends it, and takes mount and pools away.
    fn end(self, going: VellumProcess) -> Outcome {
        going.signal(Signal::TERM)?;
        drop(going);
        self.scene.vellum(&["umount", &self.data.display().to_string()])?;
        for pool in &self.pools {
            eventually("the pool goes", || Ok(self.scene.vellum(&["pool", "delete", pool]).is_ok()))?;
        }
        self.scene.check_no_leftovers()
    }
}

fn counts(going: &VellumProcess) -> Outcome<Counts> {
    let said = going.output_text()?;
    if let Some(bad) = said.lines().find(|line| line.starts_with("BAD")) {
        return fail(bad.to_owned());
    }
    let whole = said.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut words = whole.lines().last().unwrap_or_default().split(' ').skip(1).map(str::parse);
    let mut next = || words.next().and_then(Result::ok).unwrap_or(0);
    Ok(Counts { reads: next(), opens: next() })
}

/// Waits until it reads from mappings, and with `opens` opens by rings, more than so far.
fn wait_for_library_use(going: &VellumProcess, opens: bool) -> Outcome {
    going.says_more()?;
    let before = counts(going)?;
    eventually(&format!("more than {before:?}"), || {
        let now = counts(going)?;
        Ok(now.reads > before.reads && (now.opens > before.opens || !opens))
    })
}

/// Left running, ended and restored after the service was replaced, and in another pool: no call fails, no byte is lost, and the library is there
/// again each time.
pub(super) fn library(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx)?;
    let first = ground.start()?;
    wait_for_library_use(&first, true)?;
    for _ in 0..2 {
        ground.scene.checkpoint(&["works", "--leave-running"])?;
        first.says_more()?;
        counts(&first)?;
    }
    wait_for_library_use(&first, true)?;
    ground.scene.vellum(&["pool", "restart", &ground.pools[0]])?;
    wait_for_library_use(&first, true)?;
    ground.scene.checkpoint(&["works"])?;
    ensure_eq!(first.ends()?, 137, "the container that has ended");
    counts(&first)?;
    ground.scene.vellum(&["pool", "restart", &ground.pools[0]])?;
    let second = ground.scene.restore("works", &[])?;
    wait_for_library_use(&second, true)?;
    ground.scene.checkpoint(&["works"])?;
    second.ends()?;
    // There files of the directory are another service's.
    let third = ground.scene.restore("works", &["--pool", &ground.pools[1]])?;
    wait_for_library_use(&third, false)?;
    counts(&third)?;
    ground.end(third)
}

/// The command is killed at any moment: no call fails, and the next checkpoint is whole.
pub(super) fn interrupted(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx)?;
    let going = ground.start()?;
    wait_for_library_use(&going, true)?;
    let to = ground.scene.to();
    for millis in [5, 10, 15, 20, 30, 45, 60, 90] {
        let mut child = ground.scene.taking("works", Path::new(&to)).spawn()?;
        std::thread::sleep(Duration::from_millis(millis));
        child.kill()?;
        child.wait()?;
        going.says_more()?;
        counts(&going)?;
    }
    ground.scene.leaves_nothing_unfinished("works", &[])?;
    eventually("the next one", || Ok(ground.scene.checkpoint(&["works", "--leave-running"]).is_ok()))?;
    going.says_more()?;
    counts(&going)?;
    ground.end(going)
}
