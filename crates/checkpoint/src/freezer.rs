//! The control group of a container by which it stands still, written to without a runtime: starting one takes longer than all the rest.
//!
//! The runtime reads from the same file whether a container stands still, so it knows. What is unusual is left to it.

use rustix::process::{Signal, pidfd_send_signal};
use serde::Deserialize;
use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use vellum_pool::members::each;
use vellum_sys::signal_thread;

/// What runc knows of a container.
const STATE: &str = "state.json";
/// The most that is read of it, in bytes.
const STATE_MAX: u64 = 4 << 20;
/// How long processes may take to stand still before the runtime is asked.
const PATIENCE: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_micros(100);
/// In version 1 a group may stay on the way for ever; let go and stopped anew it gets there.
const ANEW: Duration = Duration::from_millis(5);
/// `/proc/PID/net/tcp`: the states of sockets that listen, and of those that nobody has any more.
const LISTENS: &str = "0A";
const OVER: &str = "06";

/// As much as is of use of what runc knows.
#[derive(Deserialize)]
struct State {
    init_process_pid: u32,
    #[serde(default)]
    cgroup_paths: HashMap<String, PathBuf>,
}

/// How a container is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Freezer {
    group: Group,
    init: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Group {
    First(PathBuf),
    Second(PathBuf),
}

impl Freezer {
    /// That of a runtime's container, where `state` is what the runtime knows. None: it says none.
    pub(crate) fn from_runtime_state(state: &Path, id: &str) -> Option<Self> {
        let file = vellum_pool::regular_file::open(&state.join(id).join(STATE)).ok()?;
        let mut text = Vec::new();
        file.take(STATE_MAX).read_to_end(&mut text).ok()?;
        let state: State = serde_json::from_slice(&text).ok()?;
        let group = |name: &str, file: &str| {
            let dir = state.cgroup_paths.get(name)?;
            (dir.is_absolute() && dir.join(file).is_file()).then(|| dir.clone())
        };
        let group = group("freezer", "freezer.state").map(Group::First);
        let second = || {
            let dir = state.cgroup_paths.get("")?;
            (dir.is_absolute() && dir.join("cgroup.freeze").is_file()).then(|| Group::Second(dir.clone()))
        };
        Some(Self { group: group.or_else(second)?, init: state.init_process_pid })
    }

    /// Stops all processes, which stand still afterwards. Err: it was not possible, and they go on.
    pub(super) fn stop(&self) -> io::Result<()> {
        let done = self.stopped();
        if done.is_err() {
            let _ = self.thaw();
        }
        done
    }

    fn stopped(&self) -> io::Result<()> {
        let (begin, mut anew) = (Instant::now(), ANEW);
        self.group.write(true)?;
        while !self.group.is_frozen()? {
            let waited = begin.elapsed();
            if waited > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if waited > anew {
                anew = waited + ANEW;
                self.group.write(false)?;
                self.group.write(true)?;
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Lets them go on.
    pub(super) fn thaw(&self) -> io::Result<()> {
        self.group.write(false)
    }

    /// Has all processes, which stand still, run no more when they are let go on, until they are killed: whoever kills a container may let it go on before
    /// all of it is dead. [`Self::release`] takes that back.
    pub(super) fn hold(&self) {
        self.signal(Signal::STOP);
    }

    /// They may run again.
    pub(super) fn release(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends a signal to each thread: so none of them runs on before it has met it.
    fn signal(&self, signal: Signal) {
        each(self.group(), &mut |process, handle| signal_threads(process, handle, signal));
    }

    /// The control group.
    pub(crate) fn group(&self) -> &Path {
        match &self.group {
            Group::First(dir) | Group::Second(dir) => dir,
        }
    }

    /// The container's first process.
    pub(crate) fn init(&self) -> u32 {
        self.init
    }

    /// Whether a process of the container, which stands still, may have a TCP connection.
    pub(super) fn has_connections(&self) -> bool {
        ["tcp", "tcp6"].iter().any(|table| {
            let path = format!("/proc/{}/net/{table}", self.init);
            match fs::read_to_string(path) {
                // A kernel without that family.
                Err(e) if e.kind() == io::ErrorKind::NotFound => *table == "tcp",
                Err(_) => true,
                Ok(text) => has_connections(&text),
            }
        })
    }
}

/// Sends a signal to a process by its handle, which its first thread meets, and to its other threads by two numbers, which both would have to be
/// somebody else's.
fn signal_threads(process: u32, handle: &OwnedFd, signal: Signal) {
    if pidfd_send_signal(handle, signal).is_err() {
        return;
    }
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    for thread in threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        if thread != process {
            let _ = signal_thread(process, thread, signal);
        }
    }
}

/// Whether there is one in a table of sockets.
fn has_connections(table: &str) -> bool {
    let mut states = table.lines().skip(1).map(|line| line.split_ascii_whitespace().nth(3));
    states.any(|state| state != Some(LISTENS) && state != Some(OVER))
}

impl Group {
    fn write(&self, still: bool) -> io::Result<()> {
        let (path, word) = match (self, still) {
            (Self::First(dir), true) => (dir.join("freezer.state"), "FROZEN"),
            (Self::First(dir), false) => (dir.join("freezer.state"), "THAWED"),
            (Self::Second(dir), true) => (dir.join("cgroup.freeze"), "1"),
            (Self::Second(dir), false) => (dir.join("cgroup.freeze"), "0"),
        };
        OpenOptions::new().write(true).open(path)?.write_all(word.as_bytes())
    }

    fn is_frozen(&self) -> io::Result<bool> {
        Ok(match self {
            Self::First(dir) => fs::read_to_string(dir.join("freezer.state"))?.trim() == "FROZEN",
            Self::Second(dir) => {
                fs::read_to_string(dir.join("cgroup.events"))?.lines().any(|line| line == "frozen 1")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n";

    #[test]
    fn connections_are_distinguished_from_listening_sockets() {
        let with = |states: &[&str]| {
            let lines = states
                .iter()
                .map(|state| format!("   0: 0100007F:1F90 00000000:0000 {state} 00000000:00000000 00:0 0\n"));
            has_connections(&(HEAD.to_owned() + &lines.collect::<String>()))
        };
        assert!(!with(&[]) && !with(&["0A"]) && !with(&["0A", "06"]));
        for state in ["01", "02", "03", "04", "05", "08", "09", "0B", "xx"] {
            assert!(with(&["0A", state]), "{state}");
        }
        assert!(has_connections(&format!("{HEAD}half a line\n")));
    }

    /// A group of a hierarchy, with a process that sleeps in it.
    struct Scene {
        dir: PathBuf,
        child: Child,
    }

    impl Scene {
        fn new(top: &str) -> Option<Self> {
            let dir = Path::new(top).join(format!("vellum-test-freezer-{}", std::process::id()));
            if let Err(e) = fs::create_dir(&dir) {
                eprintln!("SKIPPED: no control group in {top}: {e}");
                return None;
            }
            if !dir.join("cgroup.procs").exists() {
                eprintln!("SKIPPED: {top} has no control groups");
                fs::remove_dir(dir).unwrap();
                return None;
            }
            let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
            let scene = Self { dir, child };
            fs::write(scene.dir.join("cgroup.procs"), scene.child.id().to_string()).unwrap();
            Some(scene)
        }

        /// Time that the process has had, in ticks.
        fn time(&self) -> u64 {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
            stat.split_ascii_whitespace().nth(13).unwrap().parse().unwrap()
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let begin = Instant::now();
            while fs::remove_dir(&self.dir).is_err() && begin.elapsed() < Duration::from_secs(5) {
                thread::sleep(LOOK);
            }
        }
    }

    fn stops(top: &str, key: &str) {
        let Some(scene) = Scene::new(top) else { return };
        let state = tempfile::tempdir().unwrap();
        fs::create_dir(state.path().join("one")).unwrap();
        let text = format!(
            "{{ \"id\": \"one\", \"init_process_pid\": {}, \"cgroup_paths\": {{ \"{key}\": \"{}\" }} }}",
            scene.child.id(),
            scene.dir.display()
        );
        fs::write(state.path().join("one/state.json"), text).unwrap();
        let freezer = Freezer::from_runtime_state(state.path(), "one").unwrap();
        freezer.stop().unwrap();
        assert!(freezer.group.is_frozen().unwrap());
        let before = scene.time();
        thread::sleep(Duration::from_millis(50));
        assert_eq!(scene.time(), before, "it has gone on");
        let goes_on = |before: u64| {
            let begin = Instant::now();
            while scene.time() == before {
                assert!(begin.elapsed() < Duration::from_secs(10), "it does not go on");
                thread::sleep(LOOK);
            }
        };
        freezer.thaw().unwrap();
        goes_on(before);
        // Held, it does not go on when it is let, but when that is taken back.
        freezer.stop().unwrap();
        let before = scene.time();
        freezer.hold();
        freezer.thaw().unwrap();
        thread::sleep(Duration::from_millis(50));
        assert_eq!(scene.time(), before, "it has gone on, though it is held");
        freezer.release();
        goes_on(before);
        freezer.stop().unwrap();
        let before = scene.time();
        freezer.hold();
        freezer.release();
        freezer.thaw().unwrap();
        goes_on(before);
        assert_eq!(Freezer::from_runtime_state(state.path(), "two"), None);
    }

    #[test]
    fn a_version_1_group_freezes_and_thaws() {
        stops("/sys/fs/cgroup/freezer", "freezer");
    }

    #[test]
    fn a_version_2_group_freezes_and_thaws() {
        let whole = Path::new("/sys/fs/cgroup/cgroup.controllers").is_file();
        stops(if whole { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/unified" }, "");
    }
}
