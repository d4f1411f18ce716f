//! `vellum run`: containers whose root is a Vellum tree, by a real runtime.

mod engines;
mod ids;
pub(super) mod layout;
mod leftover;
mod removal;
mod same_name;
pub(super) mod support;
mod terminal;

use super::Case;
use crate::harness::disk::Disk;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, skip, wait_while};
use crate::harness::{Cx, shell};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};
use support::{PATIENCE, RunProcess, Runs, listing, names};

pub(super) const CASES: &[Case] = &[
    Case::once("run/tree", 120, tree),
    Case::once("run/options", 120, options),
    Case::once("run/terminal", 180, terminal::terminal),
    Case::once("run/several-at-once", 120, several_at_once),
    Case::once("run/kept-upper", 60, kept_upper),
    Case::once("run/kept-on-disk", 60, kept_on_disk),
    Case::once("run/layout", 120, layout),
    Case::once("run/odd-images", 180, engines::vellum),
    Case::once("run/odd-images-elsewhere", 300, engines::others),
    Case::once("run/pool", 120, pool),
    Case::once("run/uid-range", 120, ids::uid_range),
    Case::once("run/killed", 120, killed),
    Case::once("run/listed", 120, leftover::listed),
    Case::once("run/in-use-elsewhere", 60, in_use_elsewhere),
    Case::once("run/changed-while-removed", 60, removal::changed),
    Case::once("run/same-name", 60, same_name::same_name),
    Case::once("run/interrupted", 60, interrupted),
    Case::once("run/signals", 60, signals),
    Case::once("run/crun", 60, crun),
    Case::once("run/user-namespace", 60, user_namespace),
    Case::once("run/preload", 60, preload),
    Case::once("run/not-started", 60, not_started),
    Case::once("run/bad-input", 120, bad_input),
];

/// A directory tree is a root; what happens in it stays out of it.
fn tree(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let before = listing(&runs.image)?;
    let changed = "echo hello; rm /srv/file /bin/false; mkdir /new; echo x > /etc/passwd; chmod 700 /bin; cat /new/../etc/passwd";
    ensure_eq!(runs.run(&["sh", "-c", changed])?, "hello\nx\n", "output");
    ensure_eq!(runs.run(&["cat", "/srv/file"])?, "of the image\n", "the next container");
    ensure_eq!(listing(&runs.image)?, before, "the image");
    for status in ["0", "1", "7", "255"] {
        let output = runs.output(&["sh", "-c", &format!("exit {status}")])?;
        ensure_eq!(output.status.code(), status.parse().ok(), "exit status");
        ensure!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    // 128 and the signal, as shells have it.
    ensure_eq!(runs.output(&["sh", "-c", "sh -c 'kill -9 $$'; exit $?"])?.status.code(), Some(137), "killed");
    // It is alone: no process of the host, no network.
    let seen = runs.run(&["sh", "-c", "ps; ls /sys/class/net; cat /proc/self/mounts"])?;
    ensure!(seen.contains("\nlo\n") && !seen.contains("eth"), "network: {seen}");
    ensure!(!seen.contains(&*runs.state.to_string_lossy()), "{seen}");
    let privileges = runs.run(&["cat", "/proc/self/status"])?;
    ensure!(privileges.contains("NoNewPrivs:\t1"), "{privileges}");
    ensure!(privileges.contains("CapEff:\t00000000800405fb"), "{privileges}");
    // With a terminal.
    let line = format!(
        "{} run --state {} --image '{}' tty",
        runs.program.display(),
        runs.state.display(),
        runs.image.display()
    );
    let said = shell::run(Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()))?;
    ensure!(said.contains("/dev/"), "no terminal: {said}");
    runs.check_no_leftovers()
}

/// Each option does what podman's of this name does.
fn options(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let environment = runs.run(&["--env", "A=a b", "-e", "PATH=/bin", "--env", "HOME", "env"])?;
    for line in ["A=a b", "PATH=/bin", "container=vellum"] {
        ensure!(environment.lines().any(|one| one == line), "{line} is not in {environment}");
    }
    ensure_eq!(runs.run(&["--workdir", "/srv", "pwd"])?, "/srv\n", "--workdir");
    ensure_eq!(
        runs.run(&["--hostname", "box", "sh", "-c", "hostname; cat /etc/hostname"])?,
        "box\nbox\n",
        "--hostname"
    );
    ensure_eq!(runs.run(&["--name", "c-1", "hostname"])?, "c-1\n", "--name");
    ensure!(runs.run(&["--hostname", "box", "cat", "/etc/hosts"])?.contains("box"), "/etc/hosts");
    for (user, numbers) in
        [("web", "33 34 34 44"), ("33:44", "33 44 44"), ("5:6", "5 6 6"), ("root:web", "0 34 34")]
    {
        let said = runs.run(&["--user", user, "sh", "-c", "echo $(id -u) $(id -g) $(id -G)"])?;
        ensure_eq!(said.trim(), numbers, "--user {user}");
    }
    ensure_eq!(runs.run(&["--user", "web", "sh", "-c", "echo $HOME"])?, "/srv\n", "the user's home");
    let read_only =
        runs.run(&["--read-only", "sh", "-c", "touch /x 2>/dev/null || echo refused; touch /dev/shm/x"])?;
    ensure_eq!(read_only, "refused\n", "--read-only");
    ensure_eq!(runs.run(&["--entrypoint", "echo", "a", "b"])?, "a b\n", "--entrypoint");
    let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
    ensure_eq!(runs.run(&["--network", "host", "hostname"])?, host, "--network host");
    // Volumes, in both directions.
    let shared = cx.dir.join("shared");
    fs::create_dir(&shared)?;
    fs::write(shared.join("in"), "from the host\n")?;
    let volume = |rest: &str| format!("{}:{rest}", shared.display());
    let said = runs.run(&[
        "--volume",
        &volume("/srv/new/deep"),
        "sh",
        "-c",
        "cat /srv/new/deep/in; echo out > /srv/new/deep/out",
    ])?;
    ensure_eq!(said, "from the host\n", "--volume");
    ensure_eq!(fs::read_to_string(shared.join("out"))?, "out\n", "what it has written");
    let said = runs.run(&[
        "-v",
        &volume("/srv:ro"),
        "sh",
        "-c",
        "cat /srv/in; touch /srv/x 2>/dev/null || echo refused",
    ])?;
    ensure_eq!(said, "from the host\nrefused\n", "--volume ro");
    let privileges = ["--security-opt", "no-new-privileges=false", "cat", "/proc/self/status"];
    ensure!(runs.run(&privileges)?.contains("NoNewPrivs:\t0"), "--security-opt");
    Ok(())
}

/// One image, several containers at the same time: none sees what another does, and none takes another for dead.
fn several_at_once(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let before = listing(&runs.image)?;
    let mut all = Vec::new();
    for number in 0..4 {
        let line = format!("echo {number} > /srv/file; sleep 2; cat /srv/file; ls /srv");
        let mut command = runs.command(&["sh", "-c", &line]);
        all.push(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
    }
    for (number, child) in all.into_iter().enumerate() {
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure_eq!(
            said,
            format!("{number}\nfile\n"),
            "container {number}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    // Of one name there is one at a time.
    let first = runs.start(&["--name", "one", "sh", "-c", "echo ready; sleep 100"])?;
    shell::refused(&mut runs.command(&["--name", "one", "true"]), "--name one")?;
    shell::run(&mut runs.command(&["true"]))?;
    first.signal(Signal::KILL)?;
    drop(first);
    ensure_eq!(runs.run(&["--name", "one", "echo", "again"])?, "again\n", "a name that is free again");
    ensure_eq!(listing(&runs.image)?, before, "the image");
    Ok(())
}

/// With `--upper`, the next container goes on where this one was.
fn kept_upper(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let upper = cx.dir.join("kept");
    fs::create_dir(&upper)?;
    let shown = upper.display().to_string();
    runs.run(&["--upper", &shown, "sh", "-c", "echo kept > /srv/mine; rm /srv/file"])?;
    ensure_eq!(fs::read_to_string(upper.join("srv/mine"))?, "kept\n", "in the upper layer");
    ensure_eq!(
        runs.run(&["--upper", &shown, "sh", "-c", "cat /srv/mine; ls /srv"])?,
        "kept\nmine\n",
        "the next one"
    );
    // Also after a kill; the work directory beside it goes.
    let killed =
        runs.start(&["--upper", &shown, "sh", "-c", "echo more > /srv/more; echo ready; sleep 100"])?;
    killed.signal(Signal::KILL)?;
    drop(killed);
    ensure_eq!(runs.run(&["--upper", &shown, "cat", "/srv/more"])?, "more\n", "after a kill");
    let beside = names(&cx.dir)?;
    ensure!(!beside.iter().any(|name| name.contains(".work-")), "{beside:?}");
    Ok(())
}

/// What a container has written is on disk when it has ended, if it is kept.
fn kept_on_disk(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let disk = Disk::ext4(&cx.dir, "disk")?;
    let upper = disk.at().join("kept");
    fs::create_dir(&upper)?;
    disk.sync()?;
    let shown = upper.display().to_string();
    runs.run(&["--upper", &shown, "sh", "-c", "mkdir /srv/dir; echo kept > /srv/dir/mine"])?;
    let image = cx.dir.join("left.image");
    disk.snapshot(&image)?;
    drop(disk);
    let left = Disk::of(image, "left", "loop")?;
    let found = fs::read_to_string(left.at().join("kept/srv/dir/mine")).unwrap_or_default();
    ensure_eq!(found, "kept\n", "what a loss of power has left");
    Ok(())
}

/// An image layout: its layers are unpacked once, and its configuration says what runs.
fn layout(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let dir = cx.dir.join("layout");
    layout::write(&dir, &runs.image)?;
    let shown = format!("oci:{}:v1", dir.display());
    let run = |arguments: &[&str]| -> Outcome<String> {
        let mut command = runs.bare(&["--image", &shown]);
        let said = shell::run(command.args(arguments))?;
        runs.check_no_leftovers()?;
        Ok(said)
    };
    // Several at once unpack it, and do not disturb each other.
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(runs.bare(&["--image", &shown]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
    }
    for child in all {
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure_eq!(
            said,
            "33 /srv image entrypoint cmd\n",
            "defaults: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let layers = || listing(&runs.state.join("layers"));
    let before = layers()?;
    ensure_eq!(names(&runs.state.join("layers"))?.len(), 2, "layers");
    ensure_eq!(run(&["other"])?, "33 /srv image entrypoint other\n", "another command");
    // What the upper one takes away is gone, what is linked is linked, and owners are kept.
    let line = "ls /srv /gone /opaque 2>&1; stat -c '%h %u %a' /bin/linked /owned; cat /bin/sh > /dev/null && echo done";
    let said = run(&["--user", "0", "--entrypoint", "sh", "--", "-c", line])?;
    ensure!(said.contains("/gone: No such file") && !said.contains("below"), "whiteouts: {said}");
    ensure!(said.contains("2 0 755\n1 1234 640\ndone\n"), "attributes: {said}");
    let changed = "rm -r /srv; echo x > /bin/linked; chmod 777 /owned";
    run(&["--user", "0", "--entrypoint", "sh", "--", "-c", changed])?;
    ensure_eq!(layers()?, before, "the layers");
    // Damage is found before anything runs.
    for (blob, cause) in layout::damaged(&dir)? {
        let own = runs.elsewhere(cx.dir.join("state-of-its-own").join(&cause));
        shell::refused(own.bare(&["--image", &shown]).env("VELLUM_LOG", "error"), &cause)?;
        own.check_no_leftovers()?;
        fs::write(&blob.path, blob.contents)?;
    }
    // What is no file is not waited for.
    for (number, path) in layout::files(&dir)?.into_iter().enumerate() {
        let (kept, cause) = (path.with_extension("kept"), path.display().to_string());
        fs::rename(&path, &kept)?;
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0)?;
        // A layer that has been unpacked is not read again.
        let own = runs.elsewhere(cx.dir.join(format!("state-without-file-{number}")));
        shell::refused(own.bare(&["--image", &shown]).env("VELLUM_LOG", "error"), &cause)?;
        own.check_no_leftovers()?;
        fs::rename(&kept, &path)?;
    }
    shell::refused(&mut runs.bare(&["--image", &format!("oci:{}:v2", dir.display())]), "v1")
}

/// The container's processes are in the pool with their mount, and have no more memory than it has.
fn pool(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    if !fs::read_to_string("/proc/self/mounts")?.lines().any(|line| line.contains(" cgroup")) {
        return skip("no control groups are mounted here");
    }
    let name = format!("test-run-{}", UNIX_EPOCH.elapsed().doing("the time")?.as_nanos());
    let vellum = |arguments: &[&str]| -> Outcome<String> {
        let mut command = Command::new(&runs.program);
        shell::run(command.args(arguments).env("VELLUM_POOLS", cx.dir.join("pools")))
    };
    vellum(&["pool", "create", &name, "--memory", "64M"])?;
    let ended = (|| {
        let groups = runs.run(&["--pool", &name, "cat", "/proc/self/cgroup"])?;
        ensure!(groups.contains(&format!("/vellum/{name}/")), "{groups} is not in the pool");
        // What fits in the pool is fine; what does not is killed, not the host's.
        let fill = |mib: u32| {
            format!("busybox dd if=/dev/zero of=/dev/shm/x bs=1M count={mib} 2>/dev/null && echo full")
        };
        ensure_eq!(runs.run(&["--pool", &name, "sh", "-c", &fill(16)])?, "full\n", "16 MiB");
        let shown = vellum(&["pool", "show", &name, "--json"])?;
        let shown: serde_json::Value = serde_json::from_str(&shown).doing("pool show")?;
        let peak = shown["memory_peak_bytes"].as_u64();
        ensure!(peak.is_none_or(|peak| (16 << 20..=64 << 20).contains(&peak)), "the pool had {peak:?} bytes");
        // One that claims the storage need not be named.
        let storage = cx.dir.display().to_string();
        vellum(&["pool", "set", &name, "--storage", &storage])?;
        let groups = runs.run(&["cat", "/proc/self/cgroup"])?;
        ensure!(groups.contains(&format!("/vellum/{name}/")), "{groups} is not in the pool that claims it");
        Ok(())
    })();
    // A service ends a moment after its mount.
    let begin = Instant::now();
    while let Err(stop) = vellum(&["pool", "delete", &name]) {
        if begin.elapsed() > PATIENCE {
            return ended.and(Err(stop));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    ended?;
    // Groups of others go meanwhile.
    let find = format!("find /sys/fs/cgroup -ignore_readdir_race -maxdepth 3 -name '*{name}*'");
    let left = shell::run(&mut shell::bash(&find))?;
    ensure_eq!(left, "", "groups that are left");
    Ok(())
}

/// Killed without warning, it leaves things, and the next one takes them away: processes, mounts, directories.
fn killed(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let seconds = "31536";
    let sleeping = || -> Outcome<bool> {
        let mut found = false;
        for name in names(Path::new("/proc"))? {
            let line = fs::read(format!("/proc/{name}/cmdline")).unwrap_or_default();
            found |= line.split(|byte| *byte == 0).any(|word| word == seconds.as_bytes());
        }
        Ok(found)
    };
    let line = format!("echo ready; for i in a b c; do mkdir -p /srv/$i; done; exec sleep {seconds}");
    let started = runs.start(&["--name", "victim", "sh", "-c", &line])?;
    started.signal(Signal::KILL)?;
    drop(started);
    ensure!(runs.state.join("containers/victim").is_dir(), "nothing is left to be taken away");
    ensure_eq!(runs.run(&["echo", "next"])?, "next\n", "the next container");
    wait_while!(sleeping()?, "the process of the killed one goes on");
    // And at other moments: whatever it was doing.
    for delay in [1, 5, 15, 40, 80, 120] {
        let mut command = runs.command(&["--name", "victim", "sleep", seconds]);
        let child = RunProcess(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        std::thread::sleep(Duration::from_millis(delay));
        child.signal(Signal::KILL)?;
        drop(child);
    }
    // The runtime of the last one may have been about to start it.
    let begin = Instant::now();
    loop {
        runs.run(&["--name", "victim", "true"])?;
        if !sleeping()? {
            return Ok(());
        }
        ensure!(begin.elapsed() < PATIENCE, "a process of a killed one goes on");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Somebody on the host looks into a container's tree, its service dies: the end is the same.
fn in_use_elsewhere(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let line = "echo ready; while ! test -e /srv/end; do sleep 0.1; done; exit 5";
    let mut started = runs.start(&["--name", "seen", "sh", "-c", line])?;
    let inside = runs.state.join("containers/seen");
    let root = inside.join(names(&inside)?.join("")).join("merged");
    let held = fs::File::open(root.join("srv/file"))?;
    fs::write(root.join("srv/end"), "")?;
    ensure_eq!(started.0.wait()?.code(), Some(5), "exit status");
    runs.check_no_leftovers()?;
    // It has ended for all.
    let said = std::io::read_to_string(&held).map_err(|e| e.raw_os_error());
    ensure_eq!(said, Err(Some(Errno::NOTCONN.raw_os_error())), "what was opened before");
    // The service of the tree is killed: programs get errors, and the container ends as it ends.
    let mut started = runs.start(&[
        "--name",
        "seen",
        "sh",
        "-c",
        "echo ready; while cat /srv/file >/dev/null; do sleep 0.1; done; exit 6",
    ])?;
    // All of the mount's processes, before one of them can start another.
    let line = format!(
        "all() {{ for p in $(pgrep -f {}/containers/seen/.*/merged); do [ \"$(readlink /proc/$p/exe)\" = {} ] && echo $p || true; done; }}
        while p=$(all); [ -n \"$p\" ]; do kill -STOP $p || true; kill -KILL $p || true; done",
        runs.state.display(),
        runs.program.display()
    );
    shell::run(&mut shell::bash(&line))?;
    ensure!(started.0.wait()?.code() != Some(0), "it has noticed nothing");
    runs.check_no_leftovers()?;
    ensure_eq!(runs.run(&["echo", "next"])?, "next\n", "the next one");
    Ok(())
}

/// Stopped while layers are being unpacked, it leaves none half made; killed then, the next one does.
fn interrupted(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let tree = cx.dir.join("large");
    for number in 0..8_000 {
        if number % 100 == 0 {
            fs::create_dir_all(tree.join(format!("d{}", number / 100)))?;
        }
        fs::write(tree.join(format!("d{}/{number}", number / 100)), "words")?;
    }
    let dir = cx.dir.join("layout");
    layout::write(&dir, &tree)?;
    let layers = runs.state.join("layers");
    for (signal, status) in [(Signal::TERM, Some(143)), (Signal::KILL, None)] {
        let mut command = runs.bare(&["--image", &dir.display().to_string(), "true"]);
        let mut started = RunProcess(command.stderr(Stdio::null()).spawn()?);
        let begin = Instant::now();
        // The first layer has few entries: it is done, and the second has begun.
        let begun = |name: &String| {
            name.starts_with("unfinished-")
                && names(&layers.join(name).join("tree")).is_ok_and(|all| all.len() > 10)
        };
        while !names(&layers)?.iter().any(begun) {
            ensure!(begin.elapsed() < PATIENCE && started.0.try_wait()?.is_none(), "it does not unpack");
        }
        started.signal(signal)?;
        ensure_eq!(started.0.wait()?.code(), status, "exit status");
        let unfinished = names(&layers)?.into_iter().filter(|name| name.starts_with("unfinished")).count();
        ensure_eq!(unfinished, usize::from(status.is_none()), "unfinished layers");
    }
    runs.run(&["true"])?;
    Ok(())
}

/// Signals reach the container's process, once.
fn signals(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let count = cx.dir.join("count");
    fs::create_dir(&count)?;
    let volume = format!("{}:/count", count.display());
    for (signal, name, status) in
        [(Signal::TERM, "TERM", 41), (Signal::INT, "INT", 42), (Signal::HUP, "HUP", 43)]
    {
        let line = format!(
            "trap 'echo x >> /count/{name}; sleep 1; exit {status}' {name}; echo ready; while true; do sleep 0.1; done"
        );
        let mut started = runs.start(&["-v", &volume, "sh", "-c", &line])?;
        started.signal(signal)?;
        ensure_eq!(started.0.wait()?.code(), Some(status), "exit status after SIG{name}");
        ensure_eq!(fs::read_to_string(count.join(name))?, "x\n", "how often SIG{name} came");
        runs.check_no_leftovers()?;
    }
    Ok(())
}

/// Containers by crun, which works on hosts with one version of control groups only.
fn crun(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let unified = Path::new("/sys/fs/cgroup/unified");
    if unified.is_dir() {
        // In this case's own mount namespace.
        shell::run(&mut shell::words("mount -t tmpfs tmpfs /sys/fs/cgroup/unified"))?;
    }
    fn with<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
        [&["--runtime", "crun"], arguments].concat()
    }
    ensure_eq!(runs.run(&with(&["echo", "hello"]))?, "hello\n", "output");
    ensure_eq!(runs.output(&with(&["sh", "-c", "exit 9"]))?.status.code(), Some(9), "exit status");
    ensure_eq!(runs.output(&with(&["/no/such/program"]))?.status.code(), Some(127), "no program");
    ensure_eq!(runs.output(&with(&["/srv/file"]))?.status.code(), Some(126), "no executable");
    let started = runs.start(&with(&["sh", "-c", "echo ready; sleep 100"]))?;
    started.signal(Signal::KILL)?;
    drop(started);
    ensure_eq!(runs.run(&with(&["--user", "web", "id", "-u"]))?, "33\n", "after a kill");
    Ok(())
}

/// Root of a user namespace runs containers too.
fn user_namespace(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    if !shell::words("unshare --user --map-root-user --mount true").status()?.success() {
        return skip("no user namespaces here");
    }
    let mut command = shell::words("unshare --user --map-root-user --mount");
    command.arg(&runs.program).args(["run", "--runtime", "runc", "--image"]).arg(&runs.image);
    command.args(["sh", "-c", "echo $(id -u) > /srv/new; cat /srv/new /srv/file"]);
    command.env("XDG_DATA_HOME", cx.dir.join("data")).env("VELLUM_POOLS", cx.dir.join("pools"));
    ensure_eq!(shell::run(&mut command)?, "0\nof the image\n", "output");
    ensure_eq!(names(&cx.dir.join("data/vellum/containers"))?.len(), 0, "containers that are left");
    Ok(())
}

/// A library is shown to the container and named; without one nothing is.
fn preload(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let line = "ls -A / ; cat /.vellum/* 2>/dev/null; echo preload=$LD_PRELOAD";
    let without = runs.run(&["sh", "-c", line])?;
    ensure!(!without.contains(".vellum") && without.contains("preload=\n"), "{without}");
    let library = cx.dir.join("some.so");
    fs::write(&library, "a library\n")?;
    let before = listing(&runs.image)?;
    let with = shell::run(runs.command(&["sh", "-c", line]).env("VELLUM_LIBRARY", &library))?;
    ensure!(with.contains("a library\npreload=/.vellum/libvellum.so\n"), "{with}");
    let refused = shell::run(
        runs.command(&["sh", "-c", "echo x > /.vellum/libvellum.so || echo refused"])
            .env("VELLUM_LIBRARY", &library),
    )?;
    ensure_eq!(refused, "refused\n", "writing to it");
    ensure_eq!(listing(&runs.image)?, before, "the image");
    let missing = cx.dir.join("missing");
    shell::refused(
        runs.command(&["true"]).env("VELLUM_LIBRARY", &missing),
        &format!("VELLUM_LIBRARY {}", missing.display()),
    )?;
    runs.check_no_leftovers()
}

/// What cannot be started has podman's exit statuses, and leaves nothing.
fn not_started(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    for (command, status) in
        [("no-such-program", 127), ("/no/such/program", 127), ("/srv/file", 126), ("/srv", 126)]
    {
        let output = runs.output(&[command])?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure_eq!(output.status.code(), Some(status), "{command}: {said}");
        ensure!(said.contains(command), "{said} does not name {command}");
    }
    // Without a runtime, in this case's own mount namespace.
    let hide = "for r in crun runc; do for p in $(type -ap $r) /usr/sbin/$r /sbin/$r; do [ -x $p ] && mount --bind /dev/null $p; done; done; true";
    shell::run(&mut shell::bash(hide))?;
    let output = runs.output(&["true"])?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure_eq!(output.status.code(), Some(125), "without a runtime: {said}");
    ensure_eq!(said.lines().count(), 1, "lines of {said}");
    ensure!(["crun", "runc", "apt-get install"].iter().all(|word| said.contains(word)), "{said}");
    Ok(())
}

/// One line that names the cause, exit status 2, and nothing has been made.
fn bad_input(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let file = cx.dir.join("file");
    fs::write(&file, "x")?;
    let file = file.display().to_string();
    let empty = cx.dir.join("empty");
    fs::create_dir_all(empty.join("oci-layout-not"))?;
    let missing = cx.dir.join("missing").display().to_string();
    let (no_tag, no_volume) = (format!("oci:{missing}:tag"), format!("{missing}:/x"));
    for (arguments, cause) in [
        (&["true"][..], "no image"),
        (&["--image", &missing, "true"], &missing),
        (&["--image", &file, "true"], &file),
        (&["--image", &no_tag, "true"], &no_tag),
    ] {
        shell::refused(&mut runs.bare(arguments), cause)?;
    }
    for (arguments, cause) in [
        (&[][..], "no command"),
        (&["--nothing", "true"], "--nothing"),
        (&["--name", "a/b", "true"], "--name a/b"),
        (&["--name", "..", "true"], "--name .."),
        (&["--hostname", "a b", "true"], "--hostname a b"),
        (&["--workdir", "here", "true"], "--workdir here"),
        (&["--env", "=x", "true"], "--env =x"),
        (&["--user", "nobody", "true"], "nobody"),
        (&["--user", "0:nobody", "true"], "nobody"),
        (&["--volume", "/srv", "true"], "--volume /srv"),
        (&["--volume", &no_volume, "true"], &no_volume),
        (&["--volume", "/:/x:z", "true"], "--volume /:/x:z"),
        (&["--volume", "/:x", "true"], "--volume /:x"),
        (&["--network", "bridge", "true"], "bridge"),
        (&["--security-opt", "seccomp=x", "true"], "seccomp=x"),
        (&["--runtime", &missing, "true"], &missing),
        (&["--upper", &missing, "true"], &missing),
        (&["--upper", &file, "true"], "--upper"),
        (&["--pool", "no-such-pool", "true"], "no-such-pool"),
        (&["--pool", "a/b", "true"], "a/b"),
        (&["-it", "true"], "option --tty"),
        (&["--tty=maybe", "true"], "--tty"),
        (&["-d", "true"], "option --detach"),
        (&["--detach", "--rm", "true"], "option --detach"),
    ] {
        let mut command = runs.command(arguments);
        shell::refused(command.env("VELLUM_LOG", "error"), cause)?;
        runs.check_no_leftovers()?;
    }
    let runs = runs.elsewhere(file.clone().into());
    shell::refused(&mut runs.command(&["true"]), &file)
}
