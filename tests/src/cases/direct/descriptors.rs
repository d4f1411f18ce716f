//! What can be done with a descriptor that was handed out: no more than by one of the mount's, and nothing that is not seen.

use super::{Ground, SETTLED, status};
use crate::cases::library::library;
use crate::cases::monitoring::stats_of;
use crate::cases::pool::PoolMount;
use crate::harness::outcome::{Outcome, ensure, ensure_eq, skip};
use crate::harness::raw::maps_to_run;
use crate::harness::{Cx, shell};
use libc::{O_CREAT, O_EXCL, O_RDWR, O_TRUNC, O_WRONLY};
use rustix::fs::StatVfsMountFlags;
use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use vellum_ring::files::ASK_KERNEL;

/// What a program has removed it makes again: the place of a whiteout is the kernel's to take.
pub(super) fn made_again(cx: &Cx) -> Outcome {
    const PROGRAM: &str = r#"
import os, sys
os.chdir(sys.argv[1])
for i in range(60):
    with open(f"part{i}", "w") as f: f.write("x")
    name = f"old{i % 20}"
    if i < 20: os.remove(name)
    with open(name, ["w", "a", "x", "w+"][i % 4] if i < 20 else "a") as f: f.write(f"again {i} ")
    os.remove(name) if i >= 40 else None
print(*sorted(os.listdir(".")), *(open(f"old{i}").read() for i in range(20) if os.path.exists(f"old{i}")))
"#;
    if !shell::have("python3") {
        return skip("python3 is missing: run make deps");
    }
    let fill = |dir: &Path| -> Outcome {
        fs::create_dir(dir.join("d"))?;
        Ok((0..20).try_for_each(|n| fs::write(dir.join(format!("d/old{n}")), "lower"))?)
    };
    let ground = Ground::new(cx, fill)?;
    let plain = cx.dir.join("plain");
    fs::create_dir(&plain)?;
    fill(&plain)?;
    let run = |dir: &Path| {
        let mut command = Command::new("python3");
        ground.preload(&mut command, &library()?);
        // However slowly the interpreter comes from one to the next.
        shell::run(command.env("VELLUM_RING", "on").args(["-c", PROGRAM]).arg(dir))
    };
    // A directory of the upper layer.
    fs::write(ground.path("d/old0"), "upper")?;
    ensure_eq!(run(&ground.path("d"))?, run(&plain.join("d"))?, "what is there afterwards");
    let opens = stats_of(&ground.mount)?["figures"]["ring_opens"].as_u64().unwrap_or_default();
    ensure!(opens >= 40, "only {opens} files were made over a ring");
    Ok(())
}

/// A program that runs is not written to, and what is written to is not run.
pub(super) fn running(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx, |_| Ok(()))?;
    let sleep = ["/usr/bin/sleep", "/bin/sleep"].into_iter().find(|path| Path::new(path).exists());
    let Some(sleep) = sleep else { return skip("sleep is missing") };
    let path = ground.path("new/sleep");
    fs::copy(sleep, &path)?;
    let mut running = Command::new(&path).arg("60").stdin(Stdio::null()).spawn()?;
    let program = ground.program()?;
    let outcome = (|| {
        let dir = program.enter(&ground.path("new"))?.or_else(status)?;
        std::thread::sleep(SETTLED);
        for flags in [O_WRONLY, O_RDWR, O_WRONLY | O_TRUNC, O_CREAT | O_WRONLY] {
            ensure_eq!(program.open(dir, "sleep", flags, 0o755)?.err(), Some(ASK_KERNEL), "flags {flags:o}");
        }
        ensure_eq!(fs::metadata(&path)?.len(), fs::metadata(sleep)?.len(), "length of what runs");
        Ok(dir)
    })();
    running.kill()?;
    running.wait()?;
    let dir = outcome?;
    // The other way round.
    let mut made = program.opened(dir, "made", O_CREAT | O_EXCL | O_WRONLY, 0o755)?;
    made.write_all(&fs::read(sleep)?)?;
    let run = || Command::new(ground.path("new/made")).arg("0").status().map_err(|e| e.raw_os_error());
    ensure_eq!(run().err(), Some(Some(libc::ETXTBSY)), "a program that is written to");
    drop(made);
    ensure!(run().is_ok_and(|status| status.success()), "a program that nobody writes to any more");
    // What the kernel has open is no writer, also when somebody looks.
    let mut beside = Command::new(ground.path("new/made")).arg("60").stdin(Stdio::null()).spawn()?;
    let all = (0..20).try_for_each(|_| {
        fs::metadata(ground.path("new/made")).map_err(|e| e.raw_os_error())?;
        run().map(drop)
    });
    beside.kill()?;
    beside.wait()?;
    ensure_eq!(all, Ok(()), "a program that runs, once more");
    let plain = program.opened(dir, "plain", O_CREAT | O_EXCL | O_WRONLY, 0o644)?;
    (&plain).write_all(&fs::read(sleep)?)?;
    fs::set_permissions(ground.path("new/plain"), fs::Permissions::from_mode(0o755))?;
    let run = Command::new(ground.path("new/plain")).arg("0").status().map_err(|e| e.raw_os_error());
    ensure_eq!(run.err(), Some(Some(libc::ETXTBSY)), "one that has become one while it is written to");
    Ok(())
}

/// What the mount's options forbid is not done by what is handed out either.
pub(super) fn mount_options(cx: &Cx) -> Outcome {
    for (options, expected) in [(&[][..], false), (&["noexec"][..], true)] {
        let ground = Ground::of(PoolMount::with(cx, |_| Ok(()), options)?)?;
        let program = ground.program()?;
        let dir = program.enter(&ground.path("new"))?.or_else(status)?;
        std::thread::sleep(SETTLED);
        let name = format!("f{expected}");
        let written = program.opened(dir, &name, O_CREAT | O_EXCL | O_RDWR, 0o755)?;
        written.set_len(4096)?;
        let flags = rustix::fs::fstatvfs(&written)?.f_flag;
        let always = StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV;
        ensure!(flags.contains(always), "{flags:?}");
        ensure_eq!(flags.contains(StatVfsMountFlags::NOEXEC), expected, "noexec of {options:?}");
        ensure_eq!(maps_to_run(written.as_fd()), !expected, "mapped to be run");
    }
    Ok(())
}
