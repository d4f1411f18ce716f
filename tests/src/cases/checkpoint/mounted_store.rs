//! Checkpoints in a store that a mount has its upper layer in: by the mount's service.

use super::COUNTER;
use super::support::{Scene, VellumProcess, eventually};
use super::zoned::{all_is_whole, large_counter, zones};
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, fail};
use crate::harness::{Cx, shell};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::cell::RefCell;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;
use vellum_service::store_server::{ConnectOutcome, StoreClient};

/// The files of a store, mounted beside its checkpoints.
struct Files<'a> {
    scene: &'a Scene<'a>,
    at: PathBuf,
}

impl<'a> Files<'a> {
    fn mount(cx: &Cx, scene: &'a Scene<'a>) -> Outcome<Self> {
        let at = cx.dir.join("files");
        fs::create_dir_all(&at)?;
        let files = Self { scene, at };
        // Who had it mounted before may be about to end.
        eventually("it is mounted", || Ok(files.try_mount().is_ok()))?;
        Ok(files)
    }

    fn try_mount(&self) -> Outcome {
        let at = self.at.display().to_string();
        self.scene.vellum(&["zoned", "mount", &self.device(), &at]).map(drop)
    }

    fn device(&self) -> String {
        self.scene.to().trim_start_matches("zoned:").to_owned()
    }

    fn unmount(&self) -> Outcome {
        self.scene.vellum(&["umount", &self.at.display().to_string()]).map(drop)
    }

    fn service(&self) -> Outcome<Pid> {
        let mut said = vec![0; 64 << 10];
        let len = rustix::fs::getxattr(&self.at, c"vellum.instance", &mut said)?;
        let report: serde_json::Value = serde_json::from_slice(&said[..len]).doing("vellum.instance")?;
        let pid = report["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32));
        pid.map_or_else(|| fail("no service"), Ok)
    }
}

impl Drop for Files<'_> {
    fn drop(&mut self) {
        let _ = unmount(&self.at, UnmountFlags::DETACH);
    }
}

/// Writes files of many sizes over and over, and syncs, until it is killed. `done` says how many rounds there were.
const WRITER: &str = r#"cd "$1"; n=0; while :; do n=$((n+1))
head -c $((n % 40 * 5000)) /dev/zero | tr '\0' w > file$((n % 50)); sync file$((n % 50)); echo $n > new; mv new done; done"#;

struct Writer(Child);

impl Writer {
    fn start(files: &Files<'_>) -> Outcome<Self> {
        let mut command = shell::bash(WRITER);
        // What it has started has files open too, and ends with it.
        command.arg("writer").arg(&files.at).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Ok(Self(command.spawn()?))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let group = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = self.0.wait();
    }
}

fn rounds(files: &Files<'_>) -> u64 {
    let said = fs::read_to_string(files.at.join("done")).unwrap_or_default();
    said.trim().parse().unwrap_or(0)
}

/// What the counter has written goes on where it was: memory and file are of one moment.
fn check_numbers(written: &str) -> Outcome {
    let numbers: Vec<u32> = written.lines().filter_map(|line| line.parse().ok()).collect();
    ensure!(numbers.len() >= 3, "{written}");
    ensure!(numbers.iter().enumerate().all(|(at, number)| *number == at as u32 + 1), "{written}");
    Ok(())
}

/// The names of all that are there.
fn names(scene: &Scene<'_>) -> Outcome<Vec<String>> {
    let listed = scene.vellum(&["checkpoints", "list", "--json", &scene.to()])?;
    let listed: serde_json::Value = serde_json::from_str(&listed).doing("the list")?;
    let all = listed.as_array().into_iter().flatten();
    Ok(all
        .filter(|one| one["record"].is_object())
        .filter_map(|one| Some(one["name"].as_str()?.into()))
        .collect())
}

/// Taken while the mount is written to, listed, shown, needed by another one, restored, deleted; the mount's files are whole, and so is the store.
pub(super) fn mounted(cx: &Cx) -> Outcome {
    let scene = Scene::new(cx)?.in_a_store(512)?;
    let free = zones(&scene)?;
    let files = Files::mount(cx, &scene)?;
    fs::write(files.at.join("words"), "words")?;
    let writer = Writer::start(&files)?;
    let first = scene.start(&["--name", "zbeside", "sh", "-c", COUNTER])?;
    first.says_more()?;
    scene.checkpoint(&["zbeside", "--leave-running", "--compress", "zstd", "--name", "one"])?;
    let before = rounds(&files);
    first.says_more()?;
    let paced = ["zbeside", "--parent", "one", "--name", "two", "--pace", "100M"];
    scene.checkpoint(&paced)?;
    ensure_eq!(first.ends()?, 137, "the container that has ended");
    eventually("the mount is written to", || Ok(rounds(&files) > before))?;
    ensure_eq!(names(&scene)?, ["one", "two"], "checkpoints");
    let shown = scene.vellum(&["checkpoints", "show", &scene.to(), "two"])?;
    ensure!(shown.contains("while :") && shown.contains("one"), "{shown}");
    let mut needed = scene.command(&["checkpoints", "delete", &scene.to(), "one"]);
    shell::refused(&mut needed, "cannot be restored without it")?;
    let second = scene.restore("two", &[])?;
    second.says_more()?;
    check_numbers(&fs::read_to_string(scene.merged("zbeside")?.join("srv/count"))?)?;
    drop(second);
    // What is not of checkpoints is not let in.
    let refused = scene.command(&["zoned", "put", &files.device(), "x", "/dev/null"]).output()?;
    ensure!(!refused.status.success(), "an object was put into a store that a mount has open");
    scene.vellum(&["checkpoints", "delete", &scene.to(), "two", "one"])?;
    ensure_eq!(names(&scene)?, Vec::<String>::new(), "checkpoints");
    drop(writer);
    for at in fs::read_dir(&files.at)?.flatten().filter(|at| at.path().is_file()) {
        let held = fs::read(at.path())?;
        let is_whole =
            !at.file_name().to_string_lossy().starts_with("file") || held.iter().all(|b| *b == b'w');
        ensure!(is_whole, "{:?}", at.path());
    }
    // What was killed may have it open for a moment.
    eventually("it is unmounted", || Ok(files.unmount().is_ok()))?;
    drop(files);
    let files = Files::mount(cx, &scene)?;
    ensure_eq!(fs::read_to_string(files.at.join("words"))?, "words", "what was written before");
    shell::run(shell::bash("cd \"$1\"; rm -r ./*").arg("rm").arg(&files.at))?;
    files.unmount()?;
    eventually("all zones are free", || Ok(zones(&scene).is_ok_and(|now| now + 4 >= free)))?;
    scene.vellum(&["zoned", "check", &files.device()])?;
    scene.check_no_leftovers()
}

/// One device has a container's upper layer and the checkpoints of another one: the layer is kept, and goes on with the next container.
pub(super) fn uppers(cx: &Cx) -> Outcome {
    let scene = Scene::new(cx)?.in_a_store(512)?;
    let device = scene.to();
    let upper = format!("{device}/of/one");
    let mut large: Vec<u8> = (0..4 << 20).map(|at: usize| (at / 512 + at) as u8).collect();
    fs::write(scene.image().join("large"), &large)?;
    fs::write(scene.image().join("gone"), "gone")?;
    let state = scene.state();
    let run = |upper: &str| {
        let mut command = scene.command(&["run", "--runtime", "runc", "--state", &state, "--image"]);
        command.arg(scene.image()).args(["--upper", upper, "true"]);
        command
    };
    shell::refused(&mut run(&device), "the store itself")?;
    shell::refused(&mut run(&format!("{device}/.work/x")), "for mounts themselves")?;
    // A file of which one block is its own, and a whiteout.
    let block = "dd if=/dev/zero of=/large bs=4096 seek=100 count=1 conv=notrunc 2>/dev/null";
    let writes = format!("echo first >/srv/words; rm /gone; {block}; {COUNTER}");
    large[409_600..413_696].fill(0);
    let one = scene.start(&["--name", "zstored", "--upper", &upper, "sh", "-c", &writes])?;
    one.says_more()?;
    // Another service cannot have the store.
    let refused = run(&format!("{device}/of/two")).output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("has the store open"), "{said}");
    let other = scene.start(&["--name", "zlocal", "sh", "-c", COUNTER])?;
    other.says_more()?;
    scene.checkpoint(&["zlocal", "--name", "kept"])?;
    one.says_more()?;
    ensure_eq!(other.ends()?, 137, "the container that was kept");
    // The container itself, into its own store and into a directory.
    let kept = cx.dir.join("kept").display().to_string();
    scene.checkpoint(&["zstored", "--leave-running", "--name", "own"])?;
    one.says_more()?;
    scene.checkpoint_to(kept.as_ref(), &["zstored", "--leave-running", "--name", "own"])?;
    one.says_more()?;
    // A command that is killed while the layer is shown to it.
    let mut killed = scene.taking("zstored", device.as_ref());
    killed.args(["--leave-running", "--name", "none", "--compress", "none", "--pace", "1M"]);
    let mut killed = killed.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    std::thread::sleep(Duration::from_millis(300));
    killed.kill()?;
    killed.wait()?;
    one.says_more()?;
    let number = one.last_number();
    one.signal(Signal::TERM)?;
    ensure_eq!(one.ends()?, 3, "the container");
    let goes_on = format!("cat /srv/words; tail -n 1 /srv/count; echo more >>/srv/words; {COUNTER}");
    let again = starts(&scene, &["--name", "zagain", "--upper", &upper, "sh", "-c", &goes_on])?;
    let said = again.output_text()?;
    let counted: u64 = said.lines().nth(1).and_then(|line| line.parse().ok()).unwrap_or(0);
    ensure!(said.starts_with("first\n") && counted >= number, "{number} was said: {said}");
    let restored = scene.restore("kept", &[])?;
    restored.says_more()?;
    for from in ["own".to_owned(), format!("{kept}/own")] {
        let name = if from == "own" { "zown" } else { "zkept" };
        let own = scene.restore(&from, &["--name", name])?;
        own.says_more()?;
        let merged = scene.merged(name)?;
        ensure!(scene.upper(name)?.join(".vellum.maps").is_dir(), "{from}: no file was copied by block");
        check_numbers(&fs::read_to_string(merged.join("srv/count"))?)?;
        ensure!(fs::read(merged.join("large"))? == large, "{from}: the file of which one block is its own");
        ensure!(!merged.join("gone").exists(), "{from}: what was removed");
    }
    // Killed, it leaves its mount to the next one, which takes it away, and not what was written.
    again.signal(Signal::KILL)?;
    drop((again, restored));
    let words = format!("{device}/of/one");
    let says = format!("cat /srv/words; {COUNTER}");
    let third = starts(&scene, &["--name", "zagain", "--upper", &words, "sh", "-c", &says])?;
    ensure!(third.output_text()?.starts_with("first\nmore\n"), "{}", third.output_text()?);
    drop(third);
    scene.check_no_leftovers()?;
    let device = device.trim_start_matches("zoned:");
    eventually("the store is free and whole", || Ok(scene.vellum(&["zoned", "check", device]).is_ok()))
}

/// Starts a container that says three lines. The service that had its store before may need longer to end than a command waits.
fn starts(scene: &Scene<'_>, arguments: &[&str]) -> Outcome<VellumProcess> {
    let mut going = scene.start(arguments)?;
    eventually("it says what was kept, and goes on", || {
        let (has_ended, said) = (going.has_ended()?, going.output_text()?);
        if has_ended {
            ensure!(said.contains("has the store open"), "it has ended: {said}");
            going = scene.start(arguments)?;
            return Ok(false);
        }
        Ok(said.lines().count() >= 3)
    })?;
    Ok(going)
}

/// Whatever ends in the middle of one, command, service or mount: the container goes on, and there is the whole checkpoint or none.
pub(super) fn interrupted(cx: &Cx) -> Outcome {
    let scene = Scene::new(cx)?.in_a_store(512)?;
    let files = Files::mount(cx, &scene)?;
    let counter = scene.start(&["--name", "zbeside-cut", "sh", "-c", &large_counter()])?;
    counter.says_more()?;
    // The command.
    for millis in [0, 50, 150, 400] {
        let mut child = under_way(&scene, &files, "none", "8M")?;
        std::thread::sleep(Duration::from_millis(millis));
        child.kill()?;
        ensure!(!child.wait()?.success(), "it was faster than it may be");
        counter.says_more()?;
        let left: Vec<String> = names(&scene)?.into_iter().filter(|name| name == "none").collect();
        ensure_eq!(left, Vec::<String>::new(), "after {millis} ms");
    }
    // The mount: its service waits until the checkpoint is taken.
    let child = under_way(&scene, &files, "kept", "30M")?;
    files.unmount()?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    counter.says_more()?;
    eventually("the store is free", || Ok(scene.vellum(&["zoned", "list", &files.device()]).is_ok()))?;
    ensure!(names(&scene)?.contains(&"kept".to_owned()), "it is not there");
    all_is_whole(&scene, &files.device())?;
    // The service.
    drop(files);
    let files = Files::mount(cx, &scene)?;
    let child = under_way(&scene, &files, "none", "8M")?;
    kill_process(files.service()?, Signal::KILL)?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        !output.status.success() && said.contains("has ended") && said.lines().count() == 1,
        "a service that was killed: {said}"
    );
    counter.says_more()?;
    drop(files);
    eventually("the store is free", || Ok(names(&scene).is_ok()))?;
    ensure!(!names(&scene)?.contains(&"none".to_owned()), "half a checkpoint");
    let restored = scene.restore("kept", &["--name", "zbeside-second"])?;
    restored.says_more()?;
    drop(restored);
    drop(counter);
    scene.check_no_leftovers()
}

/// A checkpoint of the counter that is under way: the store lets nobody else in who would change something.
fn under_way(scene: &Scene<'_>, files: &Files<'_>, name: &str, pace: &str) -> Outcome<Child> {
    let mut command = scene.taking("zbeside-cut", scene.to().as_ref());
    command.args(["--name", name, "--compress", "none", "--pace", pace]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // One that was killed before is under way until the service knows.
    eventually("the store lets somebody in", || {
        Ok(matches!(StoreClient::connect(Path::new(&files.device()), true), ConnectOutcome::In(_)))
    })?;
    let (begun, command) = (RefCell::new(None), RefCell::new(command));
    eventually("it is under way", || {
        let mut begun = begun.borrow_mut();
        let child = match &mut *begun {
            Some(child) => child,
            none => none.insert(command.borrow_mut().spawn()?),
        };
        if child.try_wait()?.is_none() {
            return Ok(matches!(
                StoreClient::connect(Path::new(&files.device()), true),
                ConnectOutcome::No(_)
            ));
        }
        // Whoever looks is in its way, if that is at the same moment.
        let output = begun.take().map(Child::wait_with_output).transpose()?;
        let said =
            output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).unwrap_or_default();
        // The guard of one that was killed has the right to take one until it ends.
        let passes = ["another command changes", "somebody is taking a checkpoint"];
        ensure!(passes.iter().any(|words| said.contains(words)), "it has ended: {said}");
        Ok(false)
    })?;
    begun.into_inner().map_or_else(|| fail("it was not begun"), Ok)
}
