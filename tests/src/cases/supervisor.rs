//! Every mount has three processes, and one of them is enough: whichever is killed, nobody who uses the mount notices. When nothing can
//! serve it any more, nothing says that it has been done.

mod between_services;

use super::Case;
use super::checkpoint::support::eventually;
use super::handover::{fill, under_load};
use super::pool::Pools;
use crate::harness::PATIENCE;
use crate::harness::mount::{MountKind, only_vellum};
use crate::harness::outcome::{DuringContext, Outcome, Stop, ensure, ensure_eq, fail, skip};
use crate::harness::{Cx, Mount, Profile, Rng, rng, shell, user};
use rustix::fs::{Advice, fadvise, syncfs};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(super) const CASES: &[Case] = &[
    Case::mounted("supervisor/killed-under-load", 120, killed_under_load),
    Case::of(Profile::Cached, "supervisor/killed-in-a-long-write", 120, killed_in_a_long_write),
    Case::mounted("supervisor/killed-with-sidecars", 60, killed_with_sidecars),
    Case::mounted("supervisor/killed-before-it-serves", 60, between_services::killed_before_it_serves),
    Case::of(
        Profile::Cached,
        "supervisor/killed-before-it-serves-in-a-row",
        120,
        between_services::killed_in_a_row,
    ),
    Case::once("supervisor/asked-while-replaced", 60, between_services::queried_during_replacement),
    Case::mounted("supervisor/each-in-turn", 60, each_in_turn),
    Case::once("supervisor/ordinary-user", 60, ordinary_user),
    Case::once("supervisor/foreground", 60, foreground),
    Case::once("supervisor/pool", 60, pool),
    Case::once("supervisor/of-the-caller", 60, of_the_caller),
    Case::once("supervisor/missing-mount-tools", 60, missing_mount_tools),
    Case::once("supervisor/another-format", 60, another_format),
    Case::mounted("supervisor/repeated-crashes", 60, repeated_crashes),
    Case::mounted("supervisor/state-cannot-be-read", 60, state_cannot_be_read),
    Case::mounted("supervisor/all-killed-at-once", 60, all_killed_at_once),
];

/// How long processes are killed under load.
const SECONDS: u64 = 5;
/// Processes of a mount: its supervisor, that one's standby, and the service.
const FAMILY: usize = 3;

/// The processes of a mount, all of which are there: none is in another's place, or dying with another.
fn family(mount: &Mount) -> Outcome<Vec<Pid>> {
    let begin = Instant::now();
    let name =
        |pid: &Pid| fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap_or_default();
    loop {
        let all: Vec<Pid> = mount.daemons().into_iter().filter_map(Pid::from_raw).collect();
        let mut names: Vec<String> = all.iter().map(name).collect();
        names.sort();
        let keeper =
            all.iter().find(|pid| name(pid) == "vellum-keeper\n").map(|pid| pid.as_raw_nonzero().get());
        let others = all.iter().filter(|pid| keeper.is_some() && parent(**pid).ok() == keeper).count();
        if names == ["vellum\n", "vellum-keeper\n", "vellum-standby\n"] && others == 2 {
            return Ok(all);
        }
        ensure!(begin.elapsed() < PATIENCE, "the mount's processes: {names:?}");
        sleep(Duration::from_millis(1));
    }
}

fn parent(process: Pid) -> Outcome<i32> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()))?;
    let after = stat.rsplit(')').next().unwrap_or_default();
    after.split_whitespace().nth(1).and_then(|ppid| ppid.parse().ok()).ok_or(Stop::Fail(stat))
}

/// The supervisor, its standby, and the service.
fn roles(mount: &Mount) -> Outcome<[Pid; FAMILY]> {
    let all = family(mount)?;
    let service = mount.service()?;
    let supervisor = Pid::from_raw(parent(service)?).ok_or_else(|| Stop::Fail("no supervisor".into()))?;
    let standby = all.into_iter().find(|one| *one != service && *one != supervisor);
    Ok([supervisor, standby.ok_or_else(|| Stop::Fail("no standby".into()))?, service])
}

/// Kills a process, and waits until it is dead. It may have gone by itself: a service goes with its supervisor.
fn kill(process: Pid) -> Outcome {
    let begin = Instant::now();
    let _ = kill_process(process, Signal::KILL);
    // Who has not been waited for yet is dead as well.
    while fs::read(format!("/proc/{}/cmdline", process.as_raw_nonzero())).is_ok_and(|line| !line.is_empty()) {
        ensure!(begin.elapsed() < PATIENCE, "process {process:?} does not die");
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn killed_under_load(cx: &Cx) -> Outcome {
    const ENOUGH: u64 = 11;
    only_vellum("has no supervisor")?;
    let layers = cx.layers("l", 1)?;
    fill(layers.lower())?;
    let mount = cx.mount(&layers)?;
    let same = mount.another();
    let mut kills = 0;
    let kills = under_load(cx, &layers, mount, (Duration::from_secs(SECONDS), ENOUGH), |rng| {
        sleep(Duration::from_millis(5 + rng.below(60)));
        // On a busy machine a service would never get as far as to serve; many of those in a row are given up.
        kills += 1;
        if kills % 5 == 0 {
            same.service()?;
        }
        let family = family(&same)?;
        family.get(rng.below(FAMILY as u64) as usize).map_or_else(|| fail("nobody to kill"), |one| kill(*one))
    })?;
    ensure!(kills >= ENOUGH, "only {kills} processes were killed");
    Ok(())
}

/// A service is killed while it reads the first long request of its mount: the request is carried out by the next one.
fn killed_in_a_long_write(cx: &Cx) -> Outcome {
    const LEN: usize = 1 << 20;
    const ROUNDS: u64 = 80;
    only_vellum("has no supervisor")?;
    let layers = cx.layers("l", 1)?;
    let seed = rng::seed();
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    for round in 0..ROUNDS {
        let mut mount = cx.mount(&layers)?;
        let file = File::create(mount.path("file"))?;
        let data = vec![1 + (round % 250) as u8; LEN];
        file.write_all_at(&data, 0)?;
        let service = mount.service()?;
        let delay = Duration::from_micros(rng.below(400));
        let begin = Instant::now();
        let killer = std::thread::spawn(move || {
            while begin.elapsed() < delay {
                std::hint::spin_loop();
            }
            kill_process(service, Signal::KILL)
        });
        let synced = file.sync_data();
        let killed = killer.join();
        synced.doing(format!("fdatasync in round {round}, killed after {delay:?}"))?;
        ensure!(matches!(killed, Ok(Ok(()))), "nothing was killed in round {round}: {killed:?}");
        drop(file);
        mount.unmount()?;
        ensure!(fs::read(layers.upper().join("file"))? == data, "the data of round {round} are not there");
    }
    Ok(())
}

/// With `block_map=sidecar`, blocks that the service has written, and that nobody has synced, are there for the next one.
fn killed_with_sidecars(cx: &Cx) -> Outcome {
    const LEN: usize = 4 << 20;
    only_vellum("has no supervisor")?;
    let layers = cx.layers("l", 1)?;
    let mut data: Vec<u8> = (0..LEN).map(|at| (at / 5) as u8).collect();
    fs::write(layers.lower().join("file"), &data)?;
    let mut mount = cx.mount_with(&layers, &["block_map=sidecar"])?;
    for round in 0..4_usize {
        let file = File::options().read(true).write(true).open(mount.path("file"))?;
        for at in [100 + round, (round + 1) * 500_000, LEN - 1 - round] {
            file.write_all_at(&[7], at as u64)?;
            *data.get_mut(at).ok_or("no such byte").doing("the file")? = 7;
        }
        // From the kernel to the service, and no further.
        syncfs(&file)?;
        kill_process(mount.service()?, Signal::KILL)?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        let mut found = vec![0; LEN];
        file.read_exact_at(&mut found, 0)?;
        ensure!(found == data, "what was written before the death in round {round} is not there");
        drop(file);
        if round % 2 == 1 {
            mount.remount()?;
            ensure!(fs::read(mount.path("file"))? == data, "after another mount, round {round}");
        }
    }
    mount.unmount()
}

/// Whoever is killed, the three are there again, and the mount with all that is open.
fn each_in_turn(cx: &Cx) -> Outcome {
    only_vellum("has no supervisor")?;
    let layers = cx.layers("l", 1)?;
    fs::write(layers.lower().join("below"), "below")?;
    let mut mount = cx.mount(&layers)?;
    let mut log = File::options().create(true).append(true).open(mount.path("log"))?;
    let mut expected = String::new();
    let mut seen = BTreeSet::new();
    for round in 0..2 {
        for role in 0..FAMILY {
            let roles = roles(&mount)?;
            seen.extend(roles.map(Pid::as_raw_nonzero));
            let chosen = *roles.get(role).ok_or_else(|| Stop::Fail("no such role".into()))?;
            kill(chosen)?;
            let line = format!("{round} {role}\n");
            log.write_all(line.as_bytes()).doing(format!("writing after {role} was killed"))?;
            log.sync_all().doing(format!("fsync after {role} was killed"))?;
            expected += &line;
            ensure_eq!(fs::read_to_string(mount.path("log"))?, expected, "what was written");
            ensure_eq!(fs::read_to_string(mount.path("below"))?, "below", "a lower file");
            fs::write(mount.path(&format!("new{round}{role}")), "new")?;
        }
    }
    // Three at first; a killed standby makes one more, a killed service one, a killed supervisor a standby and a service.
    ensure!(seen.len() >= FAMILY + 5, "only {} processes were seen", seen.len());
    drop(log);
    mount.unmount()?;
    ensure_eq!(fs::read_to_string(layers.upper().join("log"))?, expected, "what the upper holds");
    Ok(())
}

/// What the user does: $1 is the mount program, $2 the directory.
const ORDINARY: &str = r#"
cd "$2"
"$1" -o lowerdir=lower,upperdir=upper,workdir=work merged
service() { "$1" inspect --json merged | sed -n 's/.*"pid": \([0-9]*\).*/\1/p'; }
# A service goes a moment after its supervisor, and is to answer no question any more. Who has not been waited for yet is dead as well.
gone() { for one; do for i in $(seq 600); do [ -n "$(tr -d '\0' 2>/dev/null </proc/$one/cmdline)" ] || break; sleep 0.1; done; done; }
exec 9>>merged/log
for round in 1 2 3; do
    pid=$(service "$1"); supervisor=$(ps -o ppid= -p $pid)
    echo "service $round" >&9; kill -9 $pid; echo after >> merged/log
    [ "$(cat merged/file)" = below ]; gone $pid
    pid=$(service "$1"); supervisor=$(ps -o ppid= -p $pid)
    echo "supervisor $round" >&9; kill -9 $supervisor; echo after >> merged/log
    [ "$(cat merged/file)" = below ]; gone $pid $supervisor
done
exec 9>&-
grep CapEff /proc/$(service "$1")/status
# The supervisor can still do what takes a set-user-ID helper.
kill -TERM $(service "$1")
for i in $(seq 600); do mountpoint -q merged || break; sleep 0.1; done
if mountpoint -q merged; then echo "still mounted"; exit 1; fi
cat upper/log
"#;

/// A mount that fusermount3 has made.
fn ordinary_user(cx: &Cx) -> Outcome {
    let said = shell::run(&mut user::ordinary_user(cx, ORDINARY)?)?;
    let (capabilities, log) = said.split_once('\n').unwrap_or_default();
    ensure_eq!(capabilities.split_whitespace().last(), Some("0000000000000000"), "capabilities in {said}");
    let rounds = (1..=3).map(|n| format!("service {n}\nafter\nsupervisor {n}\nafter\n"));
    ensure_eq!(log, rounds.collect::<String>(), "what the upper holds");
    Ok(())
}

/// With `-f` the process that was started is the supervisor, and its mount goes on without it.
fn foreground(cx: &Cx) -> Outcome {
    only_vellum("has no supervisor")?;
    let layers = cx.layers("l", 1)?;
    let mut mount = cx.mount(&layers)?;
    let mut command = mount.command();
    mount.unmount()?;
    let mut child = command.arg("-f").spawn()?;
    let begin = Instant::now();
    while rustix::fs::getxattr(mount.root(), c"vellum.instance", &mut [0; 1 << 16][..]).is_err() {
        ensure!(begin.elapsed() < PATIENCE, "it is not mounted");
        sleep(Duration::from_millis(2));
    }
    ensure_eq!(parent(mount.service()?)?, child.id().cast_signed(), "the parent of the service");
    child.kill()?;
    child.wait()?;
    fs::write(mount.path("after"), "after")?;
    ensure!(parent(mount.service()?)? != child.id().cast_signed(), "the service is an orphan");
    mount.unmount()
}

/// What the caller of the mount program limits, ignores or has open is not the service's.
fn of_the_caller(cx: &Cx) -> Outcome {
    only_vellum("may do as it likes")?;
    let layers = cx.layers("l", 1)?;
    let mut mount = cx.mount(&layers)?;
    let command = mount.command();
    mount.unmount()?;
    let held = cx.dir.join("held");
    fs::write(&held, "held")?;
    let log = cx.dir.join("log");
    // In a shell that says nothing of signals: the service has to hear of its children, and live on when a file becomes too large.
    let line = "exec 9<\"$0\"; ulimit -Sf 64; ulimit -St 1; trap '' CHLD XFSZ; \"$@\"";
    let mut caller = Command::new("bash");
    caller.args(["-c", line]).arg(&held).arg(command.get_program()).args(command.get_args());
    shell::run(caller.env("VELLUM_LOG_TO", &log).env("VELLUM_LOG", "info").stdin(Stdio::null()))?;
    for process in family(&mount)? {
        for entry in fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero()))?.flatten() {
            ensure!(
                // One that it closes meanwhile has no name any more.
                !fs::read_link(entry.path()).is_ok_and(|link| link == held),
                "{process:?} has the caller's file"
            );
        }
    }
    ensure_eq!(fs::metadata(&log)?.permissions().mode() & 0o777, 0o600, "mode of the log");
    let large = File::create(mount.path("large"))?;
    large.write_all_at(&vec![b'x'; 1 << 20], 0).doing("writing more than the caller's limit")?;
    large.sync_all().doing("fsync of more than the caller's limit")?;
    fs::write(mount.path("small"), "small")?;
    let service = mount.service()?;
    ensure!(!fs::read_to_string(&log)?.contains("has died"), "a service has died");
    kill(service)?;
    ensure_eq!(fs::read_to_string(mount.path("small"))?, "small", "contents with another service");
    mount.another().kill_all()?;
    drop(mount);
    // A hard limit that cannot be lifted, and is less than what the service needs for itself.
    let mut caller = Command::new("setpriv");
    caller.args(["--bounding-set=-sys_resource", "bash", "-c", "ulimit -f 64; \"$0\" \"$@\""]);
    shell::refused(
        caller.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null()),
        "ulimit -f",
    )
}

/// A `/dev/fuse` that is another device, or none, and a helper that may not run: one line says so, and what helps.
fn missing_mount_tools(cx: &Cx) -> Outcome {
    let MountKind::Program(program, true) = MountKind::under_test() else {
        return skip("a stand-in says what it likes");
    };
    let layers = cx.layers("l", 1)?;
    let mut mount = cx.mount(&layers)?;
    let mut command = mount.command();
    mount.unmount()?;
    let mut said = |line: &str| -> Outcome<String> {
        let device = cx.dir.join("device");
        shell::run(shell::bash(line).arg(&device))?;
        shell::run(Command::new("mount").arg("--bind").arg(&device).arg("/dev/fuse"))?;
        let output = command.output();
        shell::run(Command::new("umount").arg("/dev/fuse"))?;
        let output = output?;
        ensure_eq!(output.status.code(), Some(1), "exit status");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for line in ["mknod \"$0\" c 1 3", "rm \"$0\"; echo > \"$0\""] {
        let said = said(line)?;
        ensure!(said.lines().count() == 1 && said.contains("mknod -m 666 /dev/fuse c 10 229"), "{said}");
    }
    // Of an ordinary user.
    let home = cx.dir.join("home");
    for dir in ["lower", "merged", "bin"] {
        fs::create_dir_all(home.join(dir))?;
    }
    fs::copy(program, home.join("vellum"))?;
    fs::write(home.join("bin/fusermount3"), "not to be run")?;
    shell::run(Command::new("chown").args(["-R", "1000:1000"]).arg(&home))?;
    let fuse = cx.dir.join("fuse");
    shell::run(
        shell::bash("mknod \"$0\" c 10 229; chmod 666 \"$0\"; mount --bind \"$0\" /dev/fuse").arg(&fuse),
    )?;
    let output = Command::new("setpriv")
        .args(["--reuid=1000", "--regid=1000", "--clear-groups", "--inh-caps=-all"])
        .args(["env", &format!("PATH={}", home.join("bin").display()), "./vellum"])
        .args(["-o", "lowerdir=lower", "merged"])
        .current_dir(&home)
        .env("HOME", &home)
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure_eq!(output.status.code(), Some(1), "exit status; {said}");
    ensure!(said.lines().count() == 1 && said.contains("fusermount3 may not be run"), "{said}");
    Ok(())
}

/// A pool is as healthy as it looks: it shows a supervisor that is there, and takes mounts.
fn pool(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    let layers = cx.layers("l", 1)?;
    let mount = pools.mount(&layers, true)?;
    let process = |name: &str| -> Outcome<Pid> {
        let shown = pools.show()?;
        let number = shown["service"][name].as_i64().and_then(|pid| i32::try_from(pid).ok());
        number.and_then(Pid::from_raw).ok_or_else(|| Stop::Fail(format!("no {name} in {shown}")))
    };
    for round in 0..3 {
        let killed = process("supervisor")?;
        kill(killed)?;
        fs::write(mount.path(&format!("new{round}")), "new").doing("writing")?;
        let now = process("supervisor")?;
        ensure!(now != killed, "the supervisor that was killed is shown");
        ensure_eq!(parent(process("service")?)?, now.as_raw_nonzero().get(), "the service's parent");
        let more = cx.layers(&format!("more{round}"), 1)?;
        let more = pools.mount(&more, true)?;
        fs::write(more.path("new"), "new")?;
        ensure_eq!(more.service()?, process("service")?, "the service");
        pools.run("restart", &[])?;
        ensure_eq!(process("supervisor")?, now, "the supervisor after another program has taken its place");
        ensure_eq!(fs::read_to_string(more.path("new"))?, "new", "contents after that");
    }
    Ok(())
}

/// A program that could not go on takes no service's place: it is asked before anything ends, and named.
fn another_format(cx: &Cx) -> Outcome {
    let MountKind::Program(program, true) = MountKind::under_test() else {
        return skip("only Vellum has pools");
    };
    let mut pools = Pools::new(cx)?;
    let installed = cx.dir.join("vellum");
    fs::copy(&program, &installed)?;
    pools.run("create", &[])?;
    let layers = cx.layers("l", 1)?;
    pools.program = Some(installed.clone());
    let mount = pools.mount_by(&installed, &layers)?;
    fs::write(mount.path("before"), "before")?;
    let service = mount.service()?;
    let supervisor = parent(service)?;
    let old = cx.dir.join("old");
    fs::rename(&installed, &old)?;
    pools.program = Some(program);
    for (round, (script, words)) in [
        (Some("#!/bin/sh\necho 99999\n"), "format 99999"),
        (Some("#!/bin/sh\nexit 2\n"), "exit status: 2"),
        (None, "No such file"),
    ]
    .into_iter()
    .enumerate()
    {
        if let Some(script) = script {
            // Another file: the supervisor may be running the one from before.
            let new = cx.dir.join("new");
            fs::write(&new, script)?;
            fs::rename(&new, &installed)?;
            fs::set_permissions(&installed, fs::Permissions::from_mode(0o755))?;
        } else {
            fs::remove_file(&installed)?;
        }
        let refused = pools.attempt("restart", &[])?;
        let said = String::from_utf8_lossy(&refused.stderr);
        ensure_eq!(refused.status.code(), Some(2), "exit status; {said}");
        ensure!(said.lines().count() == 1 && said.contains(words), "{said}");
        // Nor is it asked for otherwise.
        kill_process(
            Pid::from_raw(supervisor).ok_or_else(|| Stop::Fail("no supervisor".into()))?,
            Signal::HUP,
        )?;
        // Before the next program is there, which may be one that it goes on with.
        eventually("the supervisor has refused the program", || {
            let refused = fs::read_to_string(pools.log())?.matches("going on with the old program").count();
            Ok(refused > round)
        })?;
        ensure_eq!(fs::read_to_string(mount.path("before"))?, "before", "contents");
        ensure_eq!(mount.service()?, service, "the service");
    }
    fs::rename(&old, &installed)?;
    pools.run("restart", &[])?;
    ensure!(mount.service()? != service, "the service has not been replaced");
    ensure_eq!(fs::read_to_string(mount.path("before"))?, "before", "contents");
    Ok(())
}

/// Whether a call says that the mount has ended, before it or meanwhile.
fn is_over(outcome: &std::io::Result<()>) -> bool {
    let errno = outcome.as_ref().err().and_then(Errno::from_io_error);
    matches!(errno, Some(Errno::NOTCONN | Errno::CONNABORTED))
}

/// What is open, and known to the kernel, when the end comes.
struct Open<'a> {
    mount: &'a Mount,
    written: File,
    dir: rustix::fd::OwnedFd,
}

impl<'a> Open<'a> {
    fn new(mount: &'a Mount) -> Outcome<Self> {
        fs::create_dir(mount.path("dir"))?;
        fs::write(mount.path("dir/known"), "known")?;
        let mut written =
            File::options().read(true).append(true).create(true).open(mount.path("dir/written"))?;
        written.write_all(b"before")?;
        written.sync_all()?;
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        let dir = rustix::fs::open(mount.path("dir"), flags, rustix::fs::Mode::empty())?;
        // All is known: names, attributes, pages.
        fs::metadata(mount.path("dir/known"))?;
        ensure_eq!(fs::read_to_string(mount.path("dir/written"))?, "before", "contents");
        Ok(Self { mount, written, dir })
    }

    /// What needs the service fails with ENOTCONN, or ECONNABORTED if it began before; nothing is taken.
    fn is_over(&self) -> Outcome {
        let over = |what: &str, outcome: std::io::Result<()>| -> Outcome {
            ensure!(is_over(&outcome), "{what}: {outcome:?}");
            Ok(())
        };
        let known = self.mount.path("dir/known");
        over("opening to append", File::options().append(true).open(&known).map(drop))?;
        over("opening to read", File::open(&known).map(drop))?;
        let flags = rustix::fs::OFlags::WRONLY;
        let relative = rustix::fs::openat(&self.dir, "known", flags, rustix::fs::Mode::empty());
        over("opening in an open directory", relative.map(drop).map_err(Into::into))?;
        over("stat", fs::metadata(&known).map(drop))?;
        over("mkdir", fs::create_dir(self.mount.path("new")))?;
        over("removing", fs::remove_file(&known))?;
        let said = Command::new("bash").args(["-c", "echo y >> \"$0\""]).arg(&known).output()?;
        ensure!(!said.status.success(), "echo says that it has been done");
        Ok(())
    }
}

/// A service that cannot live: the mount is ended so that nothing goes on by what the kernel knows.
fn repeated_crashes(cx: &Cx) -> Outcome {
    only_vellum("has no supervisor")?;
    let layers = cx.layers("l", 1)?;
    let log = cx.dir.join("log");
    let variables = [("VELLUM_LOG_TO", log.to_str().unwrap_or_default())];
    let mount = Mount::with_variables(MountKind::under_test(), cx.profile, &layers, &[], &variables)?;
    let mut open = Open::new(&mount)?;
    let begin = Instant::now();
    while let Ok(service) = mount.service() {
        ensure!(begin.elapsed() < PATIENCE, "it goes on");
        // Not killed by somebody: by itself, as far as its supervisor can tell.
        let _ = kill_process(service, Signal::SEGV);
    }
    while !mount.daemons().is_empty() {
        ensure!(begin.elapsed() < PATIENCE, "processes stay: {:?}", mount.daemons());
        sleep(Duration::from_millis(1));
    }
    let said = fs::read_to_string(&log)?;
    ensure!(said.matches("has died (signal 11)").count() >= 9, "too few services had a successor: {said}");
    ensure!(said.contains("dies as soon as it is started (signal 11); its mounts end"), "{said}");
    open.is_over()?;
    // What is open: in passthrough the file is the layer's own.
    let wrote = open.written.write_all(b"after");
    if cx.profile == Some(Profile::Cached) {
        ensure!(wrote.is_err(), "a write to an open file says that it has been done");
    }
    drop(mount);
    let upper = fs::read(layers.upper().join("dir/written"))?;
    let expected: &[u8] = if wrote.is_ok() { b"beforeafter" } else { b"before" };
    ensure!(upper == expected, "the upper holds {upper:?}");
    Ok(())
}

/// The record of a mount is spoilt: its next service ends what it cannot serve.
fn state_cannot_be_read(cx: &Cx) -> Outcome {
    only_vellum("leaves no state")?;
    let layers = cx.layers("l", 1)?;
    let mount = cx.mount(&layers)?;
    let open = Open::new(&mount)?;
    let service = mount.service()?;
    let mut spoilt = false;
    for entry in fs::read_dir(format!("/proc/{}/fd", service.as_raw_nonzero()))?.flatten() {
        if fs::read_link(entry.path()).is_ok_and(|link| link.to_string_lossy().contains("vellum-card")) {
            let mut record = File::options().write(true).open(entry.path())?;
            record.rewind()?;
            record.write_all(b"{ nonsense")?;
            spoilt = true;
        }
    }
    ensure!(spoilt, "no record was found");
    kill_process(service, Signal::KILL)?;
    let begin = Instant::now();
    while !mount.daemons().is_empty() {
        ensure!(begin.elapsed() < PATIENCE, "processes stay: {:?}", mount.daemons());
        sleep(Duration::from_millis(1));
    }
    open.is_over()
}

/// Nobody is left to tell the kernel: it goes on by what it knows, takes a write to a file that it knows, and says at fsync that the
/// mount has ended. Whatever needs a request fails.
fn all_killed_at_once(cx: &Cx) -> Outcome {
    only_vellum("has no supervisor")?;
    let layers = cx.layers("l", 1)?;
    let mount = cx.mount(&layers)?;
    let open = Open::new(&mount)?;
    mount.kill_all()?;
    let made = fs::create_dir(mount.path("new"));
    ensure!(is_over(&made), "mkdir: {made:?}");
    let wrote = open.written.write_at(b"after", 0);
    println!("a write to an open file: {wrote:?}");
    let synced = open.written.sync_all();
    ensure!(
        wrote.is_err() || is_over(&synced) || cx.profile == Some(Profile::Passthrough),
        "fsync: {synced:?}"
    );
    Ok(())
}
