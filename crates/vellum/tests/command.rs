//! The program itself: what it refuses, how it becomes a daemon, and how mounts begin and end.
//!
//! Tests that mount need /dev/fuse and root; without them they say so and do nothing.
#![allow(clippy::unwrap_used)]

mod common;

use common::{
    PATIENCE, Place, VELLUM, can_mount, is_alive, is_mounted, line, run, signal, signal_if_there, wait_until,
};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_word_that_is_no_subcommand_is_answered_with_the_nearest() {
    for (words, line) in [
        (&["umont", "m"][..], "umont: no such subcommand; did you mean umount?"),
        (&["isnpect", "m"], "isnpect: no such subcommand; did you mean inspect?"),
        (
            &["merged"],
            "merged: no such subcommand; see vellum --help, or mount with -o lowerdir=DIR[:DIR...] MOUNTPOINT",
        ),
        (&["./merged"], "no lowerdir given; add -o lowerdir=DIR[:DIR...]"),
        (&["umont", "m", "-o", "ro"], "no lowerdir given; add -o lowerdir=DIR[:DIR...]"),
        (&["pool", "crate", "x"], "crate: no such subcommand; did you mean create?"),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert_eq!(self::line(&output), line, "{words:?}");
    }
    assert_eq!(run(&["version"]).stdout, run(&["--version"]).stdout);
}

/// `vellum bench` is another program, looked for beside this one.
#[test]
fn bench_executes_the_program_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("vellum");
    fs::copy(VELLUM, &program).unwrap();
    let run =
        |args: &[&str]| Command::new(&program).arg("bench").args(args).env("PATH", "").output().unwrap();
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(line(&output).starts_with("bench: there is no program vellum-bench; "), "{}", line(&output));
    assert!(line(&output).contains("--package vellum-bench makes it"), "{}", line(&output));
    let bench = dir.path().join("vellum-bench");
    fs::write(&bench, "#!/bin/sh\necho \"$@\"\nexit 7\n").unwrap();
    fs::set_permissions(&bench, fs::Permissions::from_mode(0o755)).unwrap();
    let output = run(&["compare", "--tasks", "lstat", "-h"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"compare --tasks lstat -h\n");
}

#[test]
fn uninstall_removes_all_installed_files() {
    let dir = tempfile::tempdir().unwrap();
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let script = |name: &str| {
        let mut command = Command::new(packaging.join(name));
        command.arg(VELLUM).env("DESTDIR", dir.path()).env("PREFIX", "/usr");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        let files = Command::new("find").arg(dir.path()).args(["-not", "-type", "d"]).output().unwrap();
        String::from_utf8(files.stdout).unwrap()
    };
    let installed = script("install");
    for file in ["usr/bin/vellum", "sbin/mount.fuse.vellum", "completions/vellum", "man8/vellum.8"] {
        assert!(installed.contains(file), "{file} is not in {installed}");
    }
    // As systemctl enable does it; and a name that is somebody else's.
    let wants = dir.path().join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir(&wants).unwrap();
    for (unit, name) in [
        ("vellum-pool@.service", "vellum-pool@blue.service"),
        ("vellum-balance.service", "vellum-balance.service"),
        ("other.service", "vellum-pool@other.service"),
    ] {
        std::os::unix::fs::symlink(format!("/etc/systemd/system/{unit}"), wants.join(name)).unwrap();
    }
    assert_eq!(script("uninstall"), format!("{}\n", wants.join("vellum-pool@other.service").display()));
}

/// Run where root has no ids to give, it ends with what it has started.
#[test]
fn a_user_namespace_that_cannot_be_made_leaves_no_process() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/rootless");
    let outer = "exec unshare --user --map-root-user --kill-child true";
    let can = Command::new("sh").args(["-c", outer]).output().is_ok_and(|done| done.status.success());
    if !can || Command::new("python3").arg("--version").output().is_err() {
        return println!("SKIPPED: needs user namespaces and python3");
    }
    // Of 65,536 ids only one is there.
    let mark = format!("rootless-mark-{}", std::process::id());
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user"]).arg(&script).args(["sleep", "60", &mark]);
    let (reader, writer) = std::io::pipe().unwrap();
    let mut child = command.stdout(writer.try_clone().unwrap()).stderr(writer).spawn().unwrap();
    drop(command);
    assert!(!child.wait().unwrap().success());
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(std::io::read_to_string(reader)));
    let said =
        is_done.recv_timeout(std::time::Duration::from_secs(20)).expect("somebody has its output open");
    assert!(said.unwrap().contains("rootless: "));
}

#[test]
fn a_directory_without_checkpoints_is_refused_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing").display().to_string();
    for words in [
        &["restore", &format!("{missing}/one")][..],
        &["checkpoints", "list", &missing],
        &["checkpoints", "show", &missing, "one"],
        &["checkpoints", "delete", &missing, "one"],
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let said = line(&output);
        assert!(said.contains(&missing) && said.contains("vellum checkpoint --to"), "{said}");
    }
}

#[test]
fn version_and_help_are_printed() {
    for switch in ["--version", "-V"] {
        let output = run(&[switch]);
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with("vellum: version "), "{text}");
    }
    for args in [&["--help"][..], &["-h"], &["help"], &["mount", "--help"], &["inspect", "--help"]] {
        let output = run(args);
        assert!(output.status.success() && !output.stdout.is_empty(), "{args:?}");
        assert!(output.stderr.is_empty());
    }
}

#[test]
fn bad_input_prints_one_line_and_changes_nothing() {
    let place = Place::new();
    let at = |name: &str| place.at(name).display().to_string();
    let (lower, upper, work, merged) = (at("lower"), at("upper"), at("work"), at("merged"));
    let file = format!("{lower}/file");
    fs::create_dir(place.at("upper/inner")).unwrap();
    let inner = at("upper/inner");
    for (options, target, expected) in [
        (
            format!("lowerdir={lower},nonsense=3"),
            &merged,
            "option nonsense=3: unknown; leave it out (vellum --help lists what there is)".to_owned(),
        ),
        (format!("upperdir={upper}"), &merged, "no lowerdir given; add -o lowerdir=DIR[:DIR...]".into()),
        (
            format!("lowerdir={lower}/none"),
            &merged,
            format!("lowerdir {lower}/none: no such directory; create it or correct the path"),
        ),
        (format!("lowerdir={file}"), &merged, format!("lowerdir {file}: not a directory; give one")),
        (format!("lowerdir={lower}"), &file, format!("mount point {file}: not a directory; give one")),
        (
            format!("lowerdir={lower}"),
            &at("none"),
            format!("mount point {}: no such directory; create it first", at("none")),
        ),
        (
            format!("lowerdir={lower},upperdir={upper},workdir={upper}"),
            &merged,
            format!("workdir {upper}: it is the upperdir; give a directory beside it"),
        ),
        (
            format!("lowerdir={lower},upperdir={upper},workdir={inner}"),
            &merged,
            format!("workdir {inner}: it and upperdir {upper} lie in each other; give a directory beside it"),
        ),
        (
            format!("lowerdir={lower}:{upper},upperdir={upper},workdir={work}"),
            &merged,
            format!("lowerdir {upper}: it is the upperdir too; name it once"),
        ),
        (
            format!("lowerdir={lower},upperdir={upper},workdir={work}"),
            &inner,
            format!("upperdir {upper}: the mount point {inner} lies in it; mount somewhere else"),
        ),
        (
            format!("lowerdir={lower},upperdir={upper},workdir=/proc"),
            &merged,
            format!(
                "workdir /proc: on another filesystem or mount than upperdir {upper}; give a directory beside it"
            ),
        ),
        (
            format!("lowerdir={lower},log=a=b=c"),
            &merged,
            "option log=a=b=c: no filter; write e.g. log=info or log=vellum_union=debug".into(),
        ),
    ] {
        for foreground in [false, true] {
            let mut args = vec!["-o", options.as_str(), target];
            if foreground {
                args.push("-f");
            }
            let output = run(&args);
            assert_eq!(line(&output), expected);
            assert_eq!(output.status.code(), Some(2), "{options}");
        }
    }
    assert!(!place.is_mounted());
    assert_eq!(fs::read_dir(&work).unwrap().count(), 0);
    let missing = place.at("missing").display().to_string();
    for args in
        [&["mount"][..], &["umount"], &["inspect", "/"], &["umount", &missing], &["inspect", "--what", "/"]]
    {
        let output = run(args);
        line(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
    let output = run(&["umount", "/proc"]);
    assert_eq!(line(&output), "/proc: a mount of type proc; use umount for it");
}

#[test]
fn a_mount_is_ready_when_the_command_returns_and_stderr_is_closed() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let begin = Instant::now();
    let mut child = place.command(",,").stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // The ends of both come without the service having ended.
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    assert_eq!(said, "");
    assert!(begin.elapsed() < PATIENCE);
    assert!(place.is_mounted());
    assert_eq!(fs::read_to_string(place.at("merged/file")).unwrap(), "from below");
    fs::write(place.at("merged/file"), "changed").unwrap();
    assert_eq!(fs::read_to_string(place.at("lower/file")).unwrap(), "from below");
    let pid = place.service();
    let cwd = fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
    assert_eq!(cwd, Path::new("/"));
    for descriptor in 0..3 {
        assert_eq!(fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).unwrap(), Path::new("/dev/null"));
    }
    place.unmount();
    assert_eq!(fs::read_to_string(place.at("upper/file")).unwrap(), "changed");
    wait_until("the service ends with its mount", || !is_alive(pid));
}

#[test]
fn relative_paths_begin_where_the_command_was_called() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let status = Command::new(VELLUM)
        .current_dir(place.0.path())
        .args(["overlay", "merged", "-o", "workdir=work,upperdir=upper,lowerdir=lower,dev,suid"])
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(fs::read_to_string(place.at("merged/file")).unwrap(), "from below");
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = table.lines().find(|line| line.contains(place.at("merged").to_str().unwrap())).unwrap();
    assert!(mount.contains(" - fuse.vellum overlay "), "{mount}");
    assert!(!mount.contains("nodev") && !mount.contains("nosuid"), "{mount}");
    place.unmount();
}

#[test]
fn one_writer_per_upper() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount("");
    fs::create_dir(place.at("second")).unwrap();
    fs::create_dir(place.at("work2")).unwrap();
    let second = place.at("second");
    let options = place.options().replace("/work", "/work2");
    let begin = Instant::now();
    let output = run(&["-o", &options, second.to_str().unwrap()]);
    let waited = begin.elapsed();
    assert_eq!(
        line(&output),
        format!(
            "upperdir {}: another mount writes to it; unmount that first, or mount with ro",
            place.at("upper").display()
        )
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(waited >= Duration::from_millis(1500) && waited < Duration::from_secs(10), "{waited:?}");
    assert!(!is_mounted(&second));
    // Nor may two share a work directory, whatever their uppers are.
    fs::create_dir(place.at("upper2")).unwrap();
    let shared = place.options().replace("/upper", "/upper2");
    let output = run(&["-o", &shared, second.to_str().unwrap()]);
    let work = place.at("work");
    assert_eq!(
        line(&output),
        format!("workdir {}: another mount uses it; give each mount a workdir of its own", work.display())
    );
    // Reading it is free.
    let output = run(&["-o", &format!("{options},ro"), second.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_to_string(second.join("file")).unwrap(), "from below");
    assert!(fs::write(second.join("new"), "").is_err());
    assert!(run(&["umount", second.to_str().unwrap()]).status.success());
    place.unmount();
    place.mount("");
}

#[test]
fn a_killed_service_leaves_no_lock() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount("");
    fs::write(place.at("merged/kept"), "x").unwrap();
    fs::File::open(place.at("merged/kept")).unwrap().sync_all().unwrap();
    // All three of its processes, before one of them can start another.
    let family = place.family();
    assert_eq!(family.len(), 3, "{family:?}");
    for name in ["STOP", "KILL"] {
        family.iter().for_each(|pid| signal(*pid, name));
    }
    wait_until("the service is dead", || place.family().is_empty());
    let doctor = run(&["doctor"]);
    assert_eq!(doctor.status.code(), Some(1));
    let at = place.at("merged");
    let dead = format!("{}: its service has ended; run vellum umount --lazy {}", at.display(), at.display());
    assert!(String::from_utf8_lossy(&doctor.stdout).contains(&dead), "{doctor:?}");
    // The dead mount is taken away by the next one.
    place.mount("");
    assert_eq!(fs::read_to_string(place.at("merged/kept")).unwrap(), "x");
    place.unmount();
    assert!(!place.is_mounted());
}

#[test]
fn a_watched_mount_ends_with_its_service() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount(",auto_unmount");
    // As if it died by itself whenever it is started.
    let end = Instant::now() + PATIENCE;
    while place.is_mounted() {
        assert!(Instant::now() < end, "the mount stays");
        for pid in place.family() {
            let is_service = fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|all| all.count() > 1);
            if is_service {
                signal_if_there(pid, "SEGV");
            }
        }
    }
    place.mount(",auto_unmount");
    place.unmount();
}

#[test]
fn a_predecessor_that_dies_slowly_is_waited_for() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount("");
    let pid = place.service();
    // It cannot notice that its mount is gone before it may run again.
    signal(pid, "STOP");
    assert!(Command::new("umount").args(["-l"]).arg(place.at("merged")).status().unwrap().success());
    let waking = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        signal(pid, "CONT");
    });
    place.mount("");
    waking.join().unwrap();
    assert_ne!(place.service(), pid);
    place.unmount();
}

#[test]
fn signals_unmount() {
    if !can_mount() {
        return;
    }
    for name in ["TERM", "INT", "HUP"] {
        let place = Place::new();
        place.mount("");
        fs::write(place.at("merged/new"), name).unwrap();
        let pid = place.service();
        signal(pid, name);
        wait_until("the service has ended", || !is_alive(pid));
        assert!(!place.is_mounted());
        assert_eq!(fs::read_to_string(place.at("upper/new")).unwrap(), name);
    }
}

#[test]
fn a_signal_leaves_users_time() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount("");
    let open = fs::File::open(place.at("merged/file")).unwrap();
    let pid = place.service();
    signal(pid, "TERM");
    wait_until("the mount is gone from the tree", || !place.is_mounted());
    let mut text = String::new();
    (&open).read_to_string(&mut text).unwrap();
    assert_eq!(text, "from below");
    assert!(is_alive(pid));
    drop(open);
    wait_until("the service has ended", || !is_alive(pid));
}

#[test]
fn the_foreground_serves_until_unmounted() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mut child = place.command("").arg("-f").spawn().unwrap();
    wait_until("it is mounted", || place.is_mounted());
    assert_eq!(fs::read_to_string(place.at("merged/file")).unwrap(), "from below");
    assert!(child.try_wait().unwrap().is_none());
    place.unmount();
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_mount_point_may_be_a_layer_or_in_one() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let lower = place.at("lower");
    fs::create_dir(lower.join("deep")).unwrap();
    fs::write(lower.join("deep/below"), "").unwrap();
    for target in [lower.clone(), lower.join("deep")] {
        let output = run(&["-o", &place.options(), target.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "from below");
        // Through ourselves would be for ever.
        assert!(target.join("deep/below").exists());
        assert!(!target.join("deep/deep").exists());
        assert!(run(&["umount", target.to_str().unwrap()]).status.success());
    }
}

#[test]
fn inspect_names_the_layers_of_a_file() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount(",profile=cached,workers=3");
    fs::write(place.at("merged/new"), "x").unwrap();
    let inspect = |name: &str| -> serde_json::Value {
        let output = run(&["inspect", "--json", place.at(name).to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let upper = place.at("upper").display().to_string();
    let lower = place.at("lower").display().to_string();
    let found = inspect("merged/file");
    assert_eq!((&found["node"]["layer"], &found["node"]["in_upper"]), (&1.into(), &false.into()));
    assert_eq!(found["layers"], serde_json::json!([upper, lower]));
    assert_eq!(found["instance"]["profile"], "cached");
    assert_eq!(found["instance"]["workers"], 3);
    assert_eq!(found["instance"]["upper"], upper.as_str());
    assert!(!found["instance"]["features"].as_array().unwrap().is_empty());
    let found = inspect("merged/new");
    assert_eq!((&found["node"]["layer"], &found["node"]["in_upper"]), (&0.into(), &true.into()));
    assert_eq!(found["upper_content"]["files"], 1);
    let text = run(&["inspect", place.at("merged/new").to_str().unwrap()]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains(&format!("served by   layer 0, the upper: {upper}/new")), "{text}");
    // Containers with processes of their own are told nothing, not even their root.
    let inside =
        Command::new("unshare").args(["-pf", VELLUM, "inspect"]).arg(place.at("merged")).output().unwrap();
    assert_eq!(
        line(&inside),
        format!("{}: not in a vellum mount of yours; give a path in one", place.at("merged").display())
    );
    // Nor are others.
    let other = Command::new("setpriv")
        .args(["--reuid=12345", "--regid=12345", "--clear-groups", VELLUM, "inspect"])
        .arg(place.at("merged"))
        .output();
    match other {
        Ok(output) => assert_ne!(output.status.code(), Some(0), "{output:?}"),
        Err(e) => eprintln!("SKIPPED: setpriv: {e}"),
    }
    place.unmount();
}

#[test]
fn flags_can_be_changed_by_remount() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount("");
    let merged = place.at("merged");
    let output = run(&["src", merged.to_str().unwrap(), "-o", "ro,remount,dev,suid"]);
    assert!(output.status.success(), "{output:?}");
    assert!(fs::write(merged.join("new"), "").is_err());
    let output = run(&["src", merged.to_str().unwrap(), "-o", "rw,remount"]);
    assert!(output.status.success(), "{output:?}");
    fs::write(merged.join("new"), "").unwrap();
    place.unmount();
    let output = run(&["src", merged.to_str().unwrap(), "-o", "ro,remount"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// Puts the program where mount(8) finds it, in a mount namespace of its own, and goes the ways of fstab and of -t.
const BY_MOUNT: &str = r#"
set -eu
merged=$1 options=$2 fstab=$3 bin=$4
mount --bind "$bin" /usr/local/bin
check() {
    [ "$(cat "$merged/file")" = "from below" ]
    [ "$(findmnt -n -o SOURCE,FSTYPE "$merged" | tr -s ' ')" = "layers fuse.vellum" ]
}
echo "layers $merged fuse.vellum $options,nofail,_netdev,user,comment=x,x-systemd.automount 0 0" > "$fstab"
mount -T "$fstab" -a
check
mount -T "$fstab" -a    # it sees that nothing is left to do
[ "$(grep -c " $merged " /proc/self/mountinfo)" = 1 ]
umount "$merged"
mount -t fuse.vellum layers "$merged" -o "$options,ro"
check
! touch "$merged/new" 2>/dev/null
umount "$merged"
"#;

#[test]
fn mount_and_fstab_run_the_program() {
    if !can_mount() {
        return;
    }
    if !Path::new("/sbin/mount.fuse3").exists() {
        eprintln!("SKIPPED: /sbin/mount.fuse3 is missing (package fuse3)");
        return;
    }
    let place = Place::new();
    let bin = place.at("bin");
    fs::create_dir(&bin).unwrap();
    fs::copy(VELLUM, bin.join("vellum")).unwrap();
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", BY_MOUNT, "sh"])
        .args([place.at("merged").into_os_string(), place.options().into()])
        .args([place.at("fstab"), bin])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_mount_subcommand_takes_layers_one_by_one() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let at = |name: &str| place.at(name).display().to_string();
    fs::create_dir(place.at("a:b")).unwrap();
    fs::write(place.at("a:b/file"), "on top").unwrap();
    let layers = [at("a:b"), at("lower"), at("upper"), at("work"), at("merged")];
    let [top, lower, upper, work, merged] = layers.each_ref().map(String::as_str);
    let output = run(&[
        "mount", "--lower", top, "--lower", lower, "--upper", upper, "--work", work, "-o", "noexec", merged,
    ]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_to_string(place.at("merged/file")).unwrap(), "on top");
    fs::write(place.at("merged/new"), "").unwrap();
    place.unmount();
    let output = run(&["mount", "--lower", lower, "--upper", upper, merged]);
    assert!(line(&output).contains("--work"), "{output:?}");
    let output = run(&["mount", "--read-only", "--lower", lower, "disk", merged]);
    assert!(output.status.success(), "{output:?}");
    assert!(fs::write(place.at("merged/new"), "").is_err());
    place.unmount();
}

#[test]
fn the_log_is_quiet_unless_asked() {
    if !can_mount() {
        return;
    }
    for (more, lines) in [("", false), (",log=info", true)] {
        let place = Place::new();
        let log = place.at("log");
        place.mount(&format!("{more},log_to={}", log.display()));
        place.unmount();
        let text = || fs::read_to_string(&log).unwrap();
        if lines {
            wait_until("the end is logged", || text().contains("session has ended"));
            assert!(text().lines().count() < 10, "{}", text());
        } else {
            assert_eq!(text(), "");
        }
    }
}

#[test]
fn the_name_of_the_program_means_nothing() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let link = place.at("fuse-overlayfs");
    std::os::unix::fs::symlink(VELLUM, &link).unwrap();
    let output = Command::new(&link).arg("-o").arg(place.options()).arg(place.at("merged")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        fs::metadata(place.at("merged")).unwrap().mode(),
        fs::metadata(place.at("upper")).unwrap().mode()
    );
    place.unmount();
}
