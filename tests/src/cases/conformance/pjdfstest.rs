//! pjdfstest: what POSIX says about names, owners, modes, times and errors.

use super::{PLACE, plain_and_mount, tool};
use crate::harness::outcome::{DuringContext, Outcome, ensure};
use crate::harness::{Cx, MountKind, shell};
use crate::runner::child::note;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Fewest cases that a run of pjdfstest 0.2 must have seen, or something is wrong with the run.
const CASES_MIN: usize = 398;

/// Users that every Debian has, in place of ones made for the purpose. The times of files below a mount come
/// from the kernel's coarse clock, a tick of which is up to 10 ms.
const CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
secondary_fs = "SECOND"
[settings]
naptime = 0.011
allow_remount = REMOUNT
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
"#;

/// In place of mount(8): remounting is the kernel's matter here, and not that of a mount helper that may not be
/// installed.
const MOUNT: &str = "#!/bin/sh\nexec /bin/mount -i \"$@\"\n";

/// Cases that pass on the filesystem below and skip themselves on a mount. Name and reason.
const EXCEPT: &[(&str, &str)] =
    &[("link::link_count_max", "the C library knows the most links of some filesystem types only")];

/// Cases that fail because of what an upper layer lies on. Its place, name and reason.
const ELSEWHERE: &[(&str, &str, &str)] = &[(
    "ceph",
    "utimensat::y2038",
    "CephFS keeps 32 bits of a time's seconds, and the case sets one second more",
)];

pub(super) fn all(cx: &Cx) -> Outcome {
    let program = tool("pjdfstest")?;
    let (_held, plain, _layers, mut mount) = plain_and_mount(cx, |_| Ok(()))?;
    let config = cx.dir.join("pjdfstest.toml");
    // Another filesystem, for what must fail with EXDEV.
    let second = cx.dir.join("second");
    fs::create_dir(&second)?;
    shell::run(shell::words("mount -t tmpfs tmpfs").arg(&second))?;
    // What fails on a tree that is read-only needs one that can be remounted: an image for the filesystem below.
    let image = cx.dir.join("image");
    let make = "truncate -s 256M \"$0\"; mkfs.ext4 -q \"$0\"; mount -o loop \"$0\" \"$1\"; chmod 777 \"$1\"";
    let remount = match shell::run(shell::bash(make).arg(&image).arg(&plain)) {
        Ok(_) => "true",
        Err(stop) => {
            println!("no image of ext4 can be mounted, so nothing is remounted: {stop}");
            "false"
        }
    };
    let text = CONFIG.replace("SECOND", &second.display().to_string());
    fs::write(&config, text.replace("REMOUNT", "false"))?;
    let remounting = cx.dir.join("remounting.toml");
    fs::write(&remounting, text.replace("REMOUNT", remount))?;
    let bin = cx.dir.join("bin");
    fs::create_dir(&bin)?;
    fs::write(bin.join("mount"), MOUNT)?;
    fs::set_permissions(bin.join("mount"), fs::Permissions::from_mode(0o755))?;

    // Those that remount in a run of their own: the others leave descriptors open, with which nothing becomes
    // read-only.
    let all = |path: &Path| -> Outcome<_> {
        let mut results = run(&program, &config, &bin, path, "::")?;
        results.extend(run(&program, &remounting, &bin, path, "::erofs")?);
        Ok(results)
    };
    let expected = all(&plain)?;
    let seen = all(mount.root())?;
    ensure!(expected.len() >= CASES_MIN, "only {} cases ran below", expected.len());
    let mut worse = Vec::new();
    let place = std::env::var(PLACE).unwrap_or_default();
    for (name, (result, _)) in &expected {
        let (here, why) = seen.get(name).cloned().unwrap_or_default();
        let excepted = EXCEPT.iter().find(|(except, _)| except == name);
        let elsewhere = ELSEWHERE.iter().find(|(on, except, _)| *on == place && except == name);
        if let ("ok", "FAILED", Some((.., reason))) = (result.as_str(), here.as_str(), elsewhere) {
            note("skip", name, reason);
            continue;
        }
        match (result.as_str(), here.as_str(), excepted) {
            ("ok", "ok", _) => note("ok", name, ""),
            ("ok", "skipped", Some((_, reason))) => note("skip", name, reason),
            ("ok", ..) => {
                note("fail", name, &format!("{here} {why}"));
                worse.push(name.clone());
            }
            (_, "ok", _) => note("ok", name, "better than below"),
            ("skipped", _, _) => note("skip", name, &why),
            _ => note("skip", name, "fails on the filesystem below, too"),
        }
    }
    mount.unmount()?;
    if MountKind::under_test().is_vellum() || worse.is_empty() {
        ensure!(worse.is_empty(), "{} cases pass below and fail here", worse.len());
        return Ok(());
    }
    println!("a stand-in fails {} cases", worse.len());
    Ok(())
}

/// Each case's name, with its result and what is said about it.
fn run(
    program: &Path,
    config: &Path,
    bin: &Path,
    path: &Path,
    pattern: &str,
) -> Outcome<BTreeMap<String, (String, String)>> {
    let output = Command::new(program)
        .arg("-c")
        .arg(config)
        .arg("-p")
        .arg(path)
        .arg(pattern)
        .env("RUST_BACKTRACE", "0")
        .env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default()))
        .stdin(Stdio::null())
        .output()
        .doing("pjdfstest")?;
    let text = String::from_utf8_lossy(&output.stdout);
    println!("=== {}\n{text}", path.display());
    let mut results = BTreeMap::new();
    let mut last = String::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some(name), Some(result @ ("ok" | "skipped" | "FAILED")), None) if name.contains("::") => {
                last = name.to_owned();
                results.insert(last.clone(), (result.to_owned(), String::new()));
            }
            (Some(_), ..) if line.starts_with('\t') => {
                if let Some((_, why)) = results.get_mut(&last) {
                    why.push_str(line.trim());
                }
            }
            _ => {}
        }
    }
    Ok(results)
}
