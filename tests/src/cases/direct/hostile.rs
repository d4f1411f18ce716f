//! Programs that take nothing of what they are sent, and send what nobody wants.

use super::client::settled;
use super::{Ground, SETTLED, status};
use crate::cases::library::library;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, skip};
use crate::harness::{Cx, PATIENCE, shell};
use libc::{O_CREAT, O_EXCL, O_WRONLY};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use vellum_ring::files::{ASK_KERNEL, GREETING};

/// Asks for memories, and for rings, and takes nothing; says so, and waits for its end.
const GREEDY: &str = r#"
import os, socket, struct, sys
path, node = sys.argv[1:3]
id = os.getxattr(node, "vellum.map")[24:32]
ring = b"gnirllev"
all = []
for i in range(400):
    s = socket.socket(socket.AF_UNIX); s.connect(path)
    try: s.send([id, ring, b"nonsense"][i % 3])
    except OSError: pass
    if i % 5 == 0: s.shutdown(socket.SHUT_RDWR)
    all.append(s)
print("sent", flush=True)
sys.stdin.read()
"#;

/// Sends a descriptor, by a process of root's without capabilities; says what has come of it.
const VICTIM: &str = r#"
import os, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
a, b = socket.socketpair()
socket.send_fds(a, [b"x"], [0]); print("sent")
"#;

/// Whoever takes nothing gets little, and nobody else has less for it, neither with this service nor with the kernel, which counts
/// what is under way for all processes of a user together.
pub(super) fn takes_nothing(cx: &Cx) -> Outcome {
    if let Some(missing) = ["python3", "capsh"].into_iter().find(|program| !shell::have(program)) {
        return skip(format!("{missing} is missing: run make deps"));
    }
    let ground = Ground::new(cx, |_| Ok(()))?;
    std::fs::write(ground.path("new/file"), "file")?;
    let mut greedy = Command::new("python3");
    greedy.args(["-c", GREEDY]).arg(&ground.socket).arg(ground.path("new/file"));
    let mut greedy = greedy.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut said = String::new();
    if let Some(out) = greedy.stdout.take() {
        BufReader::new(out).read_line(&mut said)?;
    }
    ensure_eq!(said, "sent\n", "what the greedy one says");
    std::thread::sleep(2 * SETTLED);
    let mut victim = Command::new("capsh");
    victim.args(["--drop=all", "--", "-c", "exec python3 -c \"$VICTIM\""]).env("VICTIM", VICTIM);
    let outcome = shell::run(&mut victim);
    drop(greedy.stdin.take());
    greedy.wait()?;
    ensure_eq!(outcome?, "sent\n", "another process of root's");
    // One that takes none of its files is asked to have the kernel open them, and goes on as soon as it does.
    // The service may still have connections of the greedy one to close, and refuses others of the same user until it has.
    let begin = Instant::now();
    let program = loop {
        match ground.program() {
            Err(_) if begin.elapsed() < PATIENCE => std::thread::sleep(SETTLED),
            program => break program?,
        }
    };
    let dir = program.enter(&ground.path("new"))?.or_else(status)?;
    std::thread::sleep(SETTLED);
    settled(|| program.open_untaken(dir, "first", O_CREAT | O_EXCL | O_WRONLY))?.or_else(status)?;
    for n in 0..10 {
        let next = program.open_untaken(dir, &format!("next{n}"), O_CREAT | O_EXCL | O_WRONLY)?;
        ensure_eq!(next.err(), Some(ASK_KERNEL), "a second one that is under way");
        ensure!(!ground.path(&format!("new/next{n}")).exists(), "it has been made all the same");
    }
    program.made_dir(dir, "made", 0o700).doing("the ring has ended")?;
    program.take_all()?;
    program.opened(dir, "later", O_CREAT | O_EXCL | O_WRONLY, 0o600)?;
    Ok(())
}

/// Sends a socket whose last close waits, and ends.
const LINGERING: &str = r#"
import array, socket, struct, sys
path = sys.argv[1]
sent = refused = 0
keep = []
for i in range(8):
    l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048); l.bind(("127.0.0.1", 0)); l.listen(1)
    c = socket.socket(); c.connect(l.getsockname()); keep += [l, l.accept()[0]]
    c.setblocking(False)
    try:
        while True: c.send(b"x" * 65536)
    except BlockingIOError: pass
    c.setblocking(True)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    u = socket.socket(socket.AF_UNIX); u.connect(path)
    try:
        u.sendmsg([[b"nonsense", b"gnirllev", b"x"][i % 3]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [c.fileno()]))])
        sent += 1
    except PermissionError: refused += 1
    # Its own close must not be the last one.
    keep.append(u)
    if sent == 0: c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
    c.close()
print(sent, refused, flush=True)
sys.stdin.read()
"#;

/// Whatever a program sends, the service goes on hearing who mounts and who asks for a ring.
pub(super) fn sends_lingering_sockets(cx: &Cx) -> Outcome {
    const SOON: Duration = Duration::from_secs(20);
    if !shell::have("python3") {
        return skip("python3 is missing: run make deps");
    }
    let ground = Ground::new(cx, |_| Ok(()))?;
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    let mut hostile = Command::new("python3");
    hostile.args(["-c", LINGERING]).arg(&ground.socket);
    let mut hostile = hostile.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut said = String::new();
    if let Some(out) = hostile.stdout.take() {
        BufReader::new(out).read_line(&mut said)?;
    }
    let begin = Instant::now();
    let outcome = (|| {
        ensure!(said.trim() == "8 0" || said.trim() == "0 8", "sent and refused: {said:?} {up:?}");
        std::thread::sleep(Duration::from_millis(700));
        ground.pools.run("show", &[])?;
        ground.program()?;
        Ok(())
    })();
    let took = begin.elapsed();
    drop(hostile.stdin.take());
    hostile.kill()?;
    hostile.wait()?;
    outcome?;
    ensure!(took < SOON, "it took {took:?}");
    std::io::stdout().flush()?;
    Ok(())
}

/// In a program with rights that who starts it does not have the library does nothing: a socket that he names would be a service of his.
pub(super) fn set_user_id(cx: &Cx) -> Outcome {
    const PROGRAM: &str = "#include <fcntl.h>\n#include <unistd.h>\n
        int main(int n, char **v) { char b[8]; int f = open(v[1], O_RDONLY); for (n = 0; n < 9; n++) pread(f, b, 8, 0); return f < 0; }";
    if !shell::have("gcc") || !shell::have("setpriv") {
        return skip("gcc or setpriv is missing: run make deps");
    }
    let ground = Ground::new(cx, |lower| Ok(std::fs::write(lower.join("file"), "contents")?))?;
    // Where another user comes to.
    cx.dir.ancestors().take(2).try_for_each(|dir| set_mode(dir, 0o755))?;
    let at = |name: &str| cx.dir.join(name);
    std::fs::copy(library()?, at("libvellum.so"))?;
    std::fs::write(at("program.c"), PROGRAM)?;
    std::fs::copy(ground.path("file"), at("file"))?;
    let mut compiler = Command::new("gcc");
    compiler.arg("-o").arg(at("plain")).arg(at("program.c")).arg(at("libvellum.so"));
    shell::run(compiler.arg(format!("-Wl,--no-as-needed,-rpath,{}", cx.dir.display())))?;
    std::fs::copy(at("plain"), at("set"))?;
    set_mode(&at("libvellum.so"), 0o755)?;
    set_mode(&at("plain"), 0o755)?;
    set_mode(&at("set"), 0o4755)?;
    // Whatever is there is looked for, and a listener is what would be asked.
    let socket = UnixListener::bind(at("socket"))?;
    set_mode(&at("socket"), 0o666)?;
    for (name, expected) in [("plain", true), ("set", false)] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=1000", "--regid=1000", "--clear-groups"]).arg(at(name)).arg(at("file"));
        command.env("VELLUM_SOCKET", at("socket")).env("VELLUM_REPORT", "1");
        let output = command.output()?;
        let report = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{name}: {} {report}", output.status);
        ensure_eq!(report.contains("vellum: preads"), expected, "{name} reports: {report}");
    }
    drop(socket);
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> Outcome {
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?)
}

/// Who connects while the service has no descriptor left is let in later, and the service does not ask for him all the time.
pub(super) fn without_descriptors(cx: &Cx) -> Outcome {
    const WAIT: Duration = Duration::from_secs(1);
    let ground = Ground::new(cx, |_| Ok(()))?;
    let service = ground.mount.service()?;
    // Hundredths of a second of all its threads, user's and system's.
    let worked = || -> Outcome<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", service.as_raw_nonzero()))?;
        let times = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
        Ok(times.filter_map(|time| time.parse::<u64>().ok()).sum())
    };
    let pid = service.as_raw_nonzero().to_string();
    let limit =
        |arguments: &[&str]| shell::run(Command::new("prlimit").args(["--pid", &pid]).args(arguments));
    let usual = limit(&["--nofile", "--output", "SOFT", "--noheadings"])?;
    // What it has open stays open.
    limit(&["--nofile=3:"])?;
    let mut client = UnixStream::connect(&ground.socket)?;
    let before = worked()?;
    std::thread::sleep(WAIT);
    let used = worked()? - before;
    limit(&[&format!("--nofile={}:", usual.trim())])?;
    ensure!(used < 20, "while nobody could be let in it has worked for {used} hundredths of a second");
    client.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut greeting = [0; 8];
    client.read_exact(&mut greeting).doing("waiting for the greeting")?;
    ensure_eq!(u64::from_ne_bytes(greeting), GREETING, "what it says first");
    Ok(())
}
