//! The library and the service: without one, before there is one, after its death, and what its socket gives.

use super::{
    BLOCK, BLOCKS, Ground, PATIENCE, Reader, blocks, compile, compilers, five_files, library, served,
    without_rings,
};
use crate::cases::pool::Pools;
use crate::harness::outcome::{Outcome, ensure, ensure_eq, skip, wait_while};
use crate::harness::{Cx, shell};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Mappings stay good over a death of the service, and its successor says as well when a file becomes shorter.
pub(super) fn killed_service(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx, five_files)?;
    if !shell::have("python3") {
        return skip("python3 is missing: run make deps");
    }
    let [program, _] = compilers()?[..] else { return skip("a compiler is missing") };
    let program = compile(cx, program, "stress")?;
    let path = ground.mount.path("f5");
    // In the upper already: in `passthrough` a descriptor from before a copy-up goes on with the file below.
    let file = fs::OpenOptions::new().write(true).open(&path)?;
    rustix::io::pwrite(&file, &blocks(5, 1), 0)?;
    file.sync_all()?;
    let mut reader = Reader::start(&ground, &path)?;
    let first = reader.at(10_000)?;
    let (mut kills, mut reports, begin) = (0, String::new(), Instant::now());
    // Once more where a busy machine has brought few successors in the time that the program takes.
    while kills <= 5 && begin.elapsed() < PATIENCE {
        let mut stress = ground.preloaded(&program);
        let mut stress = without_rings(&mut stress)
            .arg(ground.mount.root())
            .arg("6")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        while stress.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_millis(300));
            if let Some(pid) = ground.pools.show()?["service"]["service"].as_i64()
                && let Some(pid) = rustix::process::Pid::from_raw(pid as i32)
            {
                kills += u32::from(kill_process(pid, Signal::KILL).is_ok());
            }
            ensure_eq!(reader.at(10_000)?, first, "after {kills} kills");
        }
        let output = stress.wait_with_output()?;
        let report = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{report}");
        reports.push_str(&report);
    }
    ensure!(kills > 5 && served(&reports) > 1000, "{kills} kills, {reports}");
    file.set_len(10_010)?;
    ensure_eq!(reader.at(10_000)?, first.get(..20).unwrap_or_default(), "cut by a successor");
    ensure_eq!(reader.at(20_000)?, "-", "beyond the end");
    let served = reader.end()?;
    ensure!(served > 40, "only {served} reads came from mappings");
    Ok(())
}

/// A mount outside of a pool has no socket; the library does nothing.
pub(super) fn without_a_pool(cx: &Cx) -> Outcome {
    if !shell::have("python3") {
        return skip("python3 is missing: run make deps");
    }
    crate::harness::mount::only_vellum("the library is for its mounts")?;
    let layers = cx.layers("l", 1)?;
    five_files(layers.lower())?;
    let mount = cx.mount(&layers)?;
    let line = "import os,sys,hashlib; f=os.open(sys.argv[1],os.O_RDONLY); print(hashlib.sha256(b''.join(os.pread(f,512,i*512) for i in range(200))).hexdigest())";
    let mut command = Command::new("python3");
    command.args(["-c", line]).arg(mount.path("f1")).env_remove("VELLUM_SOCKET");
    let without = shell::run(&mut command)?;
    let missing = cx.dir.join("missing").display().to_string();
    for socket in [None, Some(missing.as_str()), Some("/dev/null"), Some("")] {
        let mut command = Command::new("python3");
        command
            .args(["-c", line])
            .arg(mount.path("f1"))
            .env("LD_PRELOAD", library()?)
            .env("VELLUM_REPORT", "1");
        command.envs(socket.map(|socket| ("VELLUM_SOCKET", socket)));
        let output = command.output()?;
        let report = String::from_utf8_lossy(&output.stderr);
        ensure_eq!(String::from_utf8_lossy(&output.stdout), without, "with {socket:?}: {report}");
        ensure_eq!(served(&report), 0, "with {socket:?}: {report}");
    }
    Ok(())
}

/// The directory that containers have mounted is there as soon as the pool is, and stays when services come and go.
pub(super) fn before_the_first_service(cx: &Cx) -> Outcome {
    if !shell::have("python3") {
        return skip("python3 is missing: run make deps");
    }
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    let shown = pools.show()?;
    ensure!(shown["service"].is_null(), "a service before there is a mount: {shown}");
    let dir = PathBuf::from(shown["session_directory"].as_str().unwrap_or_default());
    ensure!(
        pools.run("show", &[])?.contains(&*dir.to_string_lossy()),
        "pool show does not name {}",
        dir.display()
    );
    let inside = cx.dir.join("inside");
    fs::create_dir(&inside)?;
    shell::run(
        shell::bash("mount --bind \"$0\" \"$1\" && mount -o remount,bind,ro \"$1\"").arg(&dir).arg(&inside),
    )?;
    let socket = inside.join("socket");
    let layers = cx.layers("l", 1)?;
    five_files(layers.lower())?;
    let line = "import os,sys; f=os.open(sys.argv[1],os.O_RDONLY); [os.pread(f,512,i*512) for _ in range(9) for i in range(200)]";
    for round in 0..2 {
        ensure!(!socket.exists(), "a socket in round {round} before there is a mount");
        let mut mount = pools.mount(&layers, true)?;
        let mut command = Command::new("python3");
        command.args(["-c", line]).arg(mount.path("f1")).env("VELLUM_SOCKET", &socket);
        let output = command.env("LD_PRELOAD", library()?).env("VELLUM_REPORT", "1").output()?;
        let report = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && served(&report) > 0, "round {round}: {report}");
        drop(command);
        mount.unmount()?;
        wait_while!(socket.exists(), "the service does not end");
    }
    pools.run("delete", &[])?;
    ensure!(!dir.exists(), "{} is left of the pool", dir.display());
    Ok(())
}

/// What the socket for programs gives can be read, and neither written nor made shorter.
pub(super) fn memory_is_read_only(cx: &Cx) -> Outcome {
    if !shell::have("python3") {
        return skip("python3 is missing: run make deps");
    }
    let ground = Ground::new(cx, five_files)?;
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| Ok::<_, crate::harness::Stop>(fs::metadata(path)?.permissions().mode() & 0o777);
    ensure_eq!(mode(&ground.socket)?, 0o666, "mode of the socket");
    // Who has the directory mounted reaches it; on the host nobody comes so far.
    let above: Vec<u32> = ground.socket.ancestors().skip(1).take(2).map(mode).collect::<Outcome<_>>()?;
    ensure_eq!(above, [0o755, 0o700], "modes of its directory and of that above");
    let line = "import socket,mmap,os,struct,sys
# A thousand that connect, of whom many stay and say nothing.
crowd=[]
for i in range(1000):
    s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
    if i%2: crowd.append(s)
s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
m,fds,_,_=socket.recv_fds(s,4000,128)
assert len(m)==260*8 and len(fds)==0,(len(m),fds)
# Those that ask for none of the service's memories get nothing.
def ask(id):
    s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.send(struct.pack('Q',id)); s.recv(260*8,socket.MSG_WAITALL)
    try: return socket.recv_fds(s,8,128)[:2]
    except ConnectionResetError: return (b'',[])
assert ask(12345)==(b'',[])
id=struct.unpack_from('Q',os.getxattr(sys.argv[2],'vellum.map'),24)[0]
m,fds=ask(id)
assert m==struct.pack('Q',id) and len(fds)==1,(m,fds)
fd=fds[0]; mmap.mmap(fd,4096,prot=mmap.PROT_READ)
def refused(what):
    try: what()
    except (PermissionError,OSError,ValueError): return
    raise SystemExit('not refused: '+str(what))
refused(lambda: mmap.mmap(fd,4096,prot=mmap.PROT_READ|mmap.PROT_WRITE))
refused(lambda: os.ftruncate(fd,0)); refused(lambda: os.write(fd,b'x'))
os.setgroups([]); os.setgid(1234); os.setuid(1234)
refused(lambda: os.open('/proc/self/fd/%d'%fd,os.O_RDWR))";
    shell::run(Command::new("python3").args(["-c", line]).arg(&ground.socket).arg(ground.mount.path("f1")))?;
    ensure_eq!(fs::read(ground.mount.path("f1"))?.len(), BLOCKS as usize * BLOCK, "the mount afterwards");
    Ok(())
}
