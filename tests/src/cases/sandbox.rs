//! What a service may do, and what a layer that means ill cannot do.

use super::Case;
use crate::harness::mount::MountKind;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, fail, skip, wait_while};
use crate::harness::tree::{self, Ignore};
use crate::harness::{Cx, Mount, Profile, shell, user};
use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

pub(super) const CASES: &[Case] = &[
    Case::mounted("sandbox/privileges", 60, privileges),
    Case::once("sandbox/ordinary-user", 60, ordinary_user),
    Case::once("sandbox/ends-on-a-signal", 60, ends_on_a_signal),
    Case::once("sandbox/off-and-warn", 60, off_and_warn),
    Case::mounted("sandbox/hostile-layer", 120, hostile_layer),
    Case::mounted("sandbox/mount-in-a-lower", 60, mount_in_a_lower),
    Case::mounted("sandbox/lower-untouched", 60, lower_untouched),
];

/// CAP_CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SYS_ADMIN, MKNOD, SETFCAP.
const WRITABLE: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 21 | 1 << 27 | 1 << 31;
/// CAP_LEASE, in passthrough.
const LEASE: u64 = 1 << 28;
/// CAP_DAC_READ_SEARCH, FOWNER, SYS_ADMIN.
const READ_ONLY: u64 = 1 << 2 | 1 << 3 | 1 << 21;

/// What stands in a file that nobody may see through a mount.
const SECRET: &str = "not for you";

fn inspect(mount: &Mount) -> Outcome<Value> {
    let MountKind::Program(program, true) = MountKind::under_test() else {
        return skip("only Vellum can be asked");
    };
    let said = shell::run(Command::new(program).args(["inspect", "--json"]).arg(mount.root()))?;
    let all: Value = serde_json::from_str(&said).doing("inspect --json")?;
    Ok(all["instance"].clone())
}

/// The text after `name` in a status file of /proc.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim()
}

fn set(status: &str, name: &str) -> Outcome<u64> {
    u64::from_str_radix(field(status, name), 16).doing(name)
}

/// Every thread of the service has these capabilities and no way to others.
fn confined(service: &str, capabilities: u64, root: bool) -> Outcome {
    let mut threads = 0;
    for thread in fs::read_dir(format!("/proc/{service}/task"))? {
        let status = fs::read_to_string(thread?.path().join("status"))?;
        threads += 1;
        let name = field(&status, "Name:").to_owned();
        for (kind, expected) in
            [("CapEff:", capabilities), ("CapPrm:", capabilities), ("CapInh:", 0), ("CapAmb:", 0)]
        {
            let found = set(&status, kind)?;
            ensure_eq!(found, expected, "{kind} {found:x} of {name}, not {expected:x}");
        }
        if root {
            ensure_eq!(set(&status, "CapBnd:")?, capabilities, "bounding set of {name}");
        }
        ensure_eq!(field(&status, "NoNewPrivs:"), "1", "new privileges of {name}");
        ensure_eq!(field(&status, "Seccomp:"), "2", "filter of system calls of {name}");
    }
    // The one that waits for signals, the service's, the session's and a worker.
    ensure!(threads >= 4, "only {threads} threads");
    Ok(())
}

fn privileges(cx: &Cx) -> Outcome {
    let layers = cx.layers("l", 2)?;
    let mut mount = cx.mount(&layers)?;
    fs::write(mount.path("file"), "x")?;
    let report = inspect(&mount)?;
    let service = report["pid"].to_string();
    let lease = if cx.profile == Some(Profile::Passthrough) { LEASE } else { 0 };
    confined(&service, WRITABLE | lease, true)?;
    let sandbox = &report["sandbox"];
    let says = |part: &str, what: &str| sandbox[part].as_str().is_some_and(|text| text.contains(what));
    ensure!(says("mode", "on") && says("capabilities", "dac_override"), "in the report: {sandbox}");
    ensure!(says("calls", "seccomp"), "in the report: {sandbox}");
    if Path::new("/sys/kernel/security/lsm").exists() {
        let modules = fs::read_to_string("/sys/kernel/security/lsm")?;
        ensure!(!modules.contains("landlock") || says("files", "Landlock"), "in the report: {sandbox}");
    }
    // From a thread that is not the first of its process too.
    let root = mount.root().to_owned();
    let asked = std::thread::spawn(move || {
        let mut buf = [0; 4096];
        rustix::fs::getxattr(&root, "vellum.instance", &mut buf[..]).is_ok()
    });
    ensure!(asked.join().unwrap_or(false), "a thread's question is not answered");
    mount.unmount()?;
    let mut mount = cx.mount(&layers.as_lowers("read-only")?)?;
    confined(&inspect(&mount)?["pid"].to_string(), READ_ONLY, true)?;
    mount.unmount()
}

/// What the user does: $1 is the mount program, $2 the directory.
const ORDINARY: &str = r#"
cd "$2"
"$1" -o lowerdir=lower,upperdir=upper,workdir=work merged
[ "$(cat merged/file)" = below ]
echo changed > merged/file; mkdir merged/dir; mv merged/file merged/dir/moved; ln -s x merged/symlink
"$1" inspect --json merged > report
grep -q '"processors": "left to sleep: ' report
pid=$(sed -n 's/.*"pid": \([0-9]*\).*/\1/p' report)
cat /proc/$pid/status
kill -TERM $pid
for i in $(seq 600); do mountpoint -q merged || break; sleep 0.1; done
if mountpoint -q merged; then echo "still mounted"; exit 1; fi
"#;

/// An ordinary user, without a namespace of his own: fusermount3 mounts, and unmounts for a service that could not start it.
fn ordinary_user(cx: &Cx) -> Outcome {
    let output = user::ordinary_user(cx, ORDINARY)?.output()?;
    let (status, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "the user's script ended with {}: {status}{err}", output.status);
    ensure_eq!(set(&status, "CapEff:")?, 0, "capabilities of a user's service");
    ensure_eq!(set(&status, "CapPrm:")?, 0, "capabilities that it could have");
    ensure_eq!(field(&status, "NoNewPrivs:"), "1", "new privileges");
    ensure_eq!(field(&status, "Seccomp:"), "2", "filter of system calls");
    Ok(())
}

/// The service may not unmount itself any more, and still ends in order.
fn ends_on_a_signal(cx: &Cx) -> Outcome {
    let mut layers = cx.layers("l", 1)?;
    for options in [&[][..], &["auto_unmount"]] {
        let mount = cx.mount_with(&layers, options)?;
        fs::write(mount.path("file"), "kept")?;
        let held = fs::File::open(mount.path("file"))?;
        let service = inspect(&mount)?["pid"].to_string();
        shell::run(shell::bash("kill -TERM \"$0\"").arg(&service))?;
        // In use: it goes from the tree at once, and who has a file open is served on.
        wait_while!(fs::symlink_metadata(mount.path("file")).is_ok(), "still mounted with {options:?}");
        let mut text = String::new();
        (&held).read_to_string(&mut text)?;
        ensure_eq!(text, "kept", "an open file after the signal");
        drop(held);
        wait_while!(!mount.daemons().is_empty(), "processes stay: {:?}", mount.daemons());
        drop(mount);
        layers = cx.layers(&format!("l{}", options.len() + 1), 1)?;
    }
    Ok(())
}

fn off_and_warn(cx: &Cx) -> Outcome {
    let layers = cx.layers("l", 1)?;
    for (mode, filter) in [("off", "0"), ("warn", "2")] {
        let variables = [("VELLUM_SANDBOX", mode)];
        let mut mount = Mount::with_variables(MountKind::under_test(), None, &layers, &[], &variables)?;
        let report = inspect(&mount)?;
        ensure_eq!(report["sandbox"]["mode"].as_str(), Some(mode), "mode in the report");
        let status = fs::read_to_string(format!("/proc/{}/status", report["pid"]))?;
        ensure_eq!(field(&status, "NoNewPrivs:"), "0", "new privileges with {mode}");
        ensure_eq!(field(&status, "Seccomp:"), filter, "filter of system calls with {mode}");
        ensure!(set(&status, "CapEff:")? & (1 << 19) != 0, "CAP_SYS_PTRACE with {mode}");
        fs::write(mount.path(mode), "x")?;
        mount.unmount()?;
    }
    let mut wrong = Mount::with_variables(MountKind::under_test(), None, &layers, &[], &[])?;
    wrong.unmount()?;
    shell::refused(wrong.command().env("VELLUM_SANDBOX", "none"), "VELLUM_SANDBOX=none")
}

fn mark(path: &Path, name: &str, value: &[u8]) -> Outcome {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty())
        .doing(format!("{name} on {}", path.display()))
}

/// A file without blocks, as one whose data are elsewhere; of the size of the secret, so that it would show.
fn hollow(path: &Path) -> Outcome {
    Ok(fs::File::create(path)?.set_len(SECRET.len() as u64)?)
}

/// Fills `layer` with everything that could lead to `outside`, which holds a secret.
fn fill(layer: &Path, outside: &Path) -> Outcome {
    mark(layer, "trusted.overlay.impure", b"y")?;
    symlink(outside, layer.join("dir"))?;
    symlink("../outside/secret", layer.join("symlink"))?;
    symlink("../outside", layer.join("way"))?;
    let long = "n".repeat(255);
    let deep = format!("/{}", ["x"; 2000].join("/"));
    let redirects = [
        "../outside".to_owned(),
        "/../outside".into(),
        "/../../outside".into(),
        "/below/../../outside".into(),
        "/way".into(),
        "/way/sub".into(),
        outside.to_string_lossy().into_owned(),
        "..".into(),
        "/..".into(),
        ".".into(),
        "/".into(),
        format!("/{long}"),
        deep,
        format!("/{}", "n".repeat(3000)),
    ];
    for (number, redirect) in redirects.iter().enumerate() {
        for space in ["trusted", "user"] {
            let dir = layer.join(format!("{space}-dir{number}"));
            fs::create_dir(&dir)?;
            mark(&dir, &format!("{space}.overlay.redirect"), redirect.as_bytes())?;
            let file = layer.join(format!("{space}-file{number}"));
            hollow(&file)?;
            mark(&file, &format!("{space}.overlay.metacopy"), b"")?;
            let target =
                if redirect.ends_with("outside") { format!("{redirect}/secret") } else { redirect.clone() };
            mark(&file, &format!("{space}.overlay.redirect"), target.as_bytes())?;
        }
    }
    for (name, value) in [("p", &b"p"[..]), ("rubbish", &[0xff; 40]), ("empty", b"")] {
        let file = layer.join(name);
        hollow(&file)?;
        mark(&file, "trusted.overlay.metacopy", value)?;
        mark(&file, "trusted.vellum.p", &[0xff; 32])?;
        mark(&file, "trusted.vellum.o", &[0xff; 28])?;
    }
    // Data that would be in a device, a fifo, a symbolic link.
    for target in ["disk", "fifo", "symlink", "below-is-a-link"] {
        let file = layer.join(format!("data-in-{target}"));
        hollow(&file)?;
        mark(&file, "trusted.overlay.metacopy", b"")?;
        mark(&file, "trusted.overlay.redirect", format!("/{target}").as_bytes())?;
    }
    let node = |name: &str, kind, number| {
        rustix::fs::mknodat(CWD, layer.join(name), kind, Mode::RUSR | Mode::WUSR, number)
    };
    node("disk", FileType::BlockDevice, rustix::fs::makedev(254, 0))?;
    node("mem", FileType::CharacterDevice, rustix::fs::makedev(1, 1))?;
    node("fifo", FileType::Fifo, 0)?;
    fs::write(layer.join(&long), "long")?;
    Ok(fs::hard_link(outside.join("linked"), layer.join("hard-link"))?)
}

/// Everything in the tree is looked at, and whatever can be read is read; where the secret shows.
fn look(root: &Path, dir: &Path, found: &mut Vec<String>, depth: usize) {
    let shown = dir.strip_prefix(root).unwrap_or(dir).display().to_string();
    if depth >= 20 {
        found.push(format!("{shown}: without an end"));
    }
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && depth < 20 {
            look(root, &path, found, depth + 1);
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        if let Ok(file) = rustix::fs::open(&path, flags, Mode::empty()) {
            let mut bytes = Vec::new();
            let _ = fs::File::from(file).take(1 << 20).read_to_end(&mut bytes);
            let part = SECRET.as_bytes();
            if bytes.windows(part.len()).any(|window| window == part) || entry.file_name() == "secret" {
                found.push(format!("{shown}/{}", entry.file_name().display()));
            }
        }
    }
}

/// Everything that can be done to a file is tried on each entry of the mount's root.
fn disturb(mount: &Mount) -> Outcome {
    for (number, entry) in fs::read_dir(mount.root())?.flatten().enumerate() {
        let path = entry.path();
        let kind = entry.file_type()?;
        let _ = rustix::fs::chownat(
            CWD,
            &path,
            Some(rustix::fs::Uid::from_raw(7)),
            None,
            rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
        );
        if !kind.is_symlink() {
            let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o600));
            let _ = rustix::fs::lsetxattr(&path, "trusted.disturbed", b"y", XattrFlags::empty());
        }
        if kind.is_file() {
            let _ = fs::write(&path, "disturbed");
        }
        if kind.is_dir() {
            let _ = fs::write(path.join("secret"), "disturbed");
            let _ = fs::write(path.join("linked"), "disturbed");
        }
        let _ = fs::rename(&path, mount.path(&format!("moved{number}")));
        let _ = fs::remove_file(mount.path(&format!("moved{number}")));
    }
    Ok(())
}

/// Whatever a layer claims, nothing outside of the layers is shown or changed.
fn hostile_layer(cx: &Cx) -> Outcome {
    let layers = cx.layers("l", 2)?;
    let outside = cx.dir.join("l/outside");
    fs::create_dir_all(outside.join("sub"))?;
    fs::write(outside.join("secret"), SECRET)?;
    fs::write(outside.join("sub/secret"), SECRET)?;
    // Whoever can link a file into his layer can read it there; changed it must not be.
    fs::write(outside.join("linked"), "shared")?;
    fill(&layers.lowers[0], &outside)?;
    fs::create_dir_all(layers.lowers[1].join("dir/sub"))?;
    fs::create_dir(layers.lowers[1].join("below"))?;
    symlink(outside.join("secret"), layers.lowers[1].join("below-is-a-link"))?;
    let before = tree::take(&outside, i64::MAX)?;
    let lower_before = tree::take(&layers.lowers[0], i64::MAX)?;

    let options: &[&[&str]] = if cx.profile == Some(Profile::Cached) { &[&[], &["dev"]] } else { &[&[]] };
    for options in options {
        let mut mount = cx.mount_with(&layers, options)?;
        let link = fs::symlink_metadata(mount.path("dir"))?;
        ensure!(link.is_symlink(), "a symbolic link over a directory is followed");
        let mut found = Vec::new();
        look(mount.root(), mount.root(), &mut found, 0);
        ensure!(found.is_empty(), "shown with {options:?}: {found:?}");
        for name in ["data-in-disk", "data-in-fifo", "data-in-symlink", "data-in-below-is-a-link"] {
            let read = fs::read(mount.path(name));
            ensure!(read.is_err(), "{name}: {read:?}");
        }
        ensure!(fs::read(mount.path("hard-link"))? == b"shared", "a hard link in a layer");
        disturb(&mount)?;
        mount.unmount()?;
        ensure!(fs::read(layers.lower().join("hard-link"))? == b"shared", "the layer below was changed");
        // The upper as it was.
        for entry in fs::read_dir(layers.upper())?.flatten() {
            let path = entry.path();
            if entry.file_type()?.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
    }
    // As the upper, all of it is only data too.
    let mut turned = layers.clone();
    turned.upper = turned.lowers.first().cloned();
    turned.lowers.remove(0);
    let ignore = Ignore { mtime: false, nlink: false };
    tree::same(
        "left: the lower before, right: after",
        &lower_before,
        &tree::take(layers.lower(), i64::MAX)?,
        ignore,
    )?;
    fs::remove_file(layers.lower().join("hard-link"))?;
    let mut mount = cx.mount(&turned)?;
    let mut found = Vec::new();
    look(mount.root(), mount.root(), &mut found, 0);
    ensure!(found.is_empty(), "shown of an upper: {found:?}");
    disturb(&mount)?;
    mount.unmount()?;
    tree::same(
        "left: outside before, right: after",
        &before,
        &tree::take(&outside, i64::MAX)?,
        Ignore { mtime: false, nlink: true },
    )
}

/// Reading through a mount leaves no trace in a lower layer: who shares it does not see when somebody else reads.
fn lower_untouched(cx: &Cx) -> Outcome {
    let layers = cx.layers("l", 1)?;
    let dir = layers.lower().join("dir");
    fs::create_dir(&dir)?;
    fs::write(dir.join("file"), "text")?;
    fs::copy("/bin/true", dir.join("true"))?;
    symlink("file", dir.join("link"))?;
    let all = ["dir", "dir/file", "dir/true", "dir/link"];
    let accessed = || -> Outcome<Vec<i64>> {
        Ok(all
            .iter()
            .map(|name| fs::symlink_metadata(layers.lower().join(name)).map(|at| at.atime()))
            .collect::<Result<_, _>>()?)
    };
    let long_ago = || -> Outcome {
        let all = all.map(|name| layers.lower().join(name));
        shell::run(Command::new("touch").args(["-h", "-a", "-d", "2020-01-01"]).args(all)).map(drop)
    };
    let read = |root: &Path| -> Outcome {
        fs::read_dir(root.join("dir"))?.count();
        fs::read(root.join("dir/link"))?;
        fs::read_link(root.join("dir/link"))?;
        shell::run(&mut Command::new(root.join("dir/true"))).map(drop)
    };
    long_ago()?;
    let before = accessed()?;
    read(layers.lower())?;
    if accessed()?.iter().zip(&before).any(|(now, before)| now == before) {
        return skip("access times are not kept here");
    }
    long_ago()?;
    let mut mount = cx.mount(&layers)?;
    read(mount.root())?;
    mount.unmount()?;
    ensure_eq!(accessed()?, before, "access times of {all:?}");
    Ok(())
}

/// What is mounted in a lower layer is not part of it, whether it was there before or comes later.
fn mount_in_a_lower(cx: &Cx) -> Outcome {
    let layers = cx.layers("l", 1)?;
    let point = layers.lower().join("point");
    let later = layers.lower().join("later");
    for dir in [&point, &later] {
        fs::create_dir(dir)?;
        fs::write(dir.join("own"), "own")?;
    }
    let cover = |dir: &Path| -> Outcome {
        shell::run(Command::new("mount").args(["-t", "tmpfs", "secret"]).arg(dir))?;
        Ok(fs::write(dir.join("secret"), SECRET)?)
    };
    cover(&point)?;
    let mut mount = cx.mount(&layers)?;
    cover(&later)?;
    for name in ["point", "later"] {
        let names: Vec<_> =
            fs::read_dir(mount.path(name))?.flatten().map(|entry| entry.file_name()).collect();
        ensure_eq!(names, ["own"], "entries of {name}");
        ensure_eq!(fs::read_to_string(mount.path(&format!("{name}/own")))?, "own", "text in {name}");
        if fs::read(mount.path(&format!("{name}/secret"))).is_ok() {
            return fail(format!("what is mounted on {name} shows"));
        }
    }
    mount.unmount()?;
    shell::run(Command::new("umount").arg(&point).arg(&later))?;
    Ok(())
}
