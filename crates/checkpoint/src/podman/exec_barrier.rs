//! A gate: a program that podman starts comes here first, and waits until it may go on, is told that its work is done, or turned away.
//!
//! Podman is given a script in the program's place. For calls with a certain option the script becomes `vellum internal-gate`, which connects to
//! a socket, says its arguments, and does what it is told; for all others it becomes the program. When we are killed, whoever waits is
//! turned away, as soon as nobody has a certain lock any more: then what is left to be done by others is done.
//!
//! Who waits does what it is told with all rights. So the socket lies where only this user enters, and each side asks the kernel who the other one
//! is. A secret would say no more: on a command line everybody could read it, and a file is no better kept than the socket beside it.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::process::geteuid;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;
use vellum_sys::peer;

/// The subcommand of `vellum` that waits.
pub const GATE: &str = "internal-gate";
const SOCKET: &str = "gate";
/// How often it is looked whether podman has ended.
const LOOK: Duration = Duration::from_millis(2);
/// The most that is read of somebody's words, in bytes: as much as a program's arguments may be.
const WORDS_MAX: u64 = 4 << 20;
/// What one is told whose work is done, and one that is to go on.
const DONE: &[u8] = b"done";
const GO: &[u8] = b"go";
/// And one that is turned away.
const NO: &[u8] = b"no";
/// With this and the number of a socket a runtime calls CRIU, and says there what it is to do.
pub(crate) const AT_A_SOCKET: &str = "swrk";
/// How a request to CRIU begins (`CriuReq`, its field `type`), and the type of a dump.
const TYPE: u8 = 0x08;
const DUMP: u8 = 1;

/// A gate in a directory that nobody else can enter.
#[derive(Debug)]
pub(crate) struct Gate {
    dir: PathBuf,
    locked: PathBuf,
    listener: UnixListener,
}

/// One that waits. When this is dropped, it is turned away.
#[derive(Debug)]
pub(crate) struct GateWaiter {
    stream: UnixStream,
    told: bool,
    pub(crate) arguments: Vec<OsString>,
}

impl Gate {
    /// `locked`: a directory that is locked until all that is left to be done is done, should this process be killed.
    pub(crate) fn new(dir: &Path, locked: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(short(&private(dir)?).join(SOCKET))?;
        listener.set_nonblocking(true)?;
        Ok(Self { dir: dir.canonicalize()?, locked: locked.to_owned(), listener })
    }

    /// A script to be called instead of `program`. With `option` among its arguments it comes to the gate.
    pub(crate) fn script(
        &self,
        vellum: &Path,
        name: &str,
        option: &str,
        program: &Path,
    ) -> io::Result<PathBuf> {
        let path = self.dir.join(name);
        let mut text = b"#!/bin/sh\nfor word; do [ \"$word\" = ".to_vec();
        text.extend_from_slice(option.as_bytes());
        text.extend_from_slice(b" ] && exec ");
        let (socket, process) = (self.dir.join(SOCKET), std::process::id().to_string());
        let words =
            [vellum.as_os_str(), GATE.as_ref(), socket.as_ref(), process.as_ref(), self.locked.as_ref()];
        for word in words {
            text.extend_from_slice(&quoted(word));
        }
        let program = quoted(program.as_os_str());
        text.extend_from_slice(&program);
        text.extend_from_slice(b"\"$@\"; done\nexec ");
        text.extend_from_slice(&program);
        text.extend_from_slice(b"\"$@\"\n");
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o700).open(&path)?;
        file.write_all(&text)?;
        Ok(path)
    }

    /// Waits for one. None: `starter`, which was to start it, has ended.
    pub(crate) fn wait(&self, starter: &mut Child) -> io::Result<Option<GateWaiter>> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) if !is_own(&stream) => drop(stream),
                Ok((mut stream, _)) => {
                    stream.set_nonblocking(false)?;
                    let mut words = Vec::new();
                    Read::by_ref(&mut stream).take(WORDS_MAX).read_to_end(&mut words)?;
                    return Ok(Some(GateWaiter { stream, told: false, arguments: split(&words) }));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
            if starter.try_wait()?.is_some() {
                return Ok(None);
            }
            thread::sleep(LOOK);
        }
    }
}

impl GateWaiter {
    /// Its work is done.
    pub(super) fn done(mut self) -> io::Result<()> {
        self.told = true;
        self.stream.write_all(DONE)
    }

    /// It may do its work, with these arguments, when it has carried out another command. So that is done while podman waits, also if we are killed.
    pub(crate) fn go(mut self, first: &[OsString], arguments: &[OsString]) -> io::Result<()> {
        let mut words = GO.to_vec();
        push(&mut words, first.len().to_string().as_ref());
        first.iter().chain(arguments).for_each(|word| push(&mut words, word));
        self.told = true;
        self.stream.write_all(&words)
    }
}

impl Drop for GateWaiter {
    fn drop(&mut self) {
        if !self.told {
            let _ = self.stream.write_all(NO);
        }
    }
}

/// A directory that only this user enters.
fn private(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(dir, flags, Mode::empty())?;
    let found = fstat(&opened)?;
    if found.st_uid != geteuid().as_raw() || found.st_mode & 0o077 != 0 {
        return Err(io::Error::other(format!("{}: others can enter it", dir.display())));
    }
    Ok(opened)
}

/// A path of a directory that is short, wherever it is: a socket's path may not be long.
fn short(dir: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", dir.as_raw_fd()).into()
}

/// Whether this user is at the other end.
fn is_own(stream: &UnixStream) -> bool {
    peer(stream.as_fd()).is_ok_and(|peer| peer.uid == geteuid().as_raw())
}

/// Connects to the gate that a process has made.
fn connected(socket: &Path, process: i32) -> io::Result<UnixStream> {
    let (dir, name) = socket.parent().zip(socket.file_name()).ok_or(io::ErrorKind::InvalidInput)?;
    let stream = UnixStream::connect(short(&private(dir)?).join(name))?;
    if !is_own(&stream) || peer(stream.as_fd())?.process != Some(process) {
        return Err(io::Error::other("another process has answered"));
    }
    Ok(stream)
}

/// A word for a shell, and a blank.
pub(crate) fn quoted(word: &OsStr) -> Vec<u8> {
    let mut text = b"'".to_vec();
    for byte in word.as_bytes() {
        match byte {
            b'\'' => text.extend_from_slice(b"'\\''"),
            byte => text.push(*byte),
        }
    }
    text.extend_from_slice(b"' ");
    text
}

/// Each word begins with a 0, which is in none.
fn push(words: &mut Vec<u8>, word: &OsStr) {
    words.push(0);
    words.extend_from_slice(word.as_bytes());
}

fn split(words: &[u8]) -> Vec<OsString> {
    words.split(|byte| *byte == 0).skip(1).map(|word| OsString::from_vec(word.to_vec())).collect()
}

/// Waits at a gate of a process, and does what it is told. Returns, with an exit status, when the work is done or this one is turned away.
#[must_use]
pub fn pass(socket: &Path, process: i32, locked: &Path, program: &OsString, arguments: &[OsString]) -> u8 {
    let asked = || -> io::Result<Vec<u8>> {
        let mut stream = connected(socket, process)?;
        let mut words = Vec::new();
        arguments.iter().for_each(|word| push(&mut words, word));
        stream.write_all(&words)?;
        stream.shutdown(Shutdown::Write)?;
        let mut told = Vec::new();
        stream.take(WORDS_MAX).read_to_end(&mut told)?;
        Ok(told)
    };
    if asks_criu(arguments) {
        let _ = Command::new(program).args(arguments).exec();
        return 1;
    }
    match asked() {
        Ok(told) if told == DONE => 0,
        Ok(told) if told.starts_with(GO) => go(program, &split(&told)).map_or(1, |()| 0),
        Ok(told) if told == NO => 1,
        // Whoever was to say it was killed.
        _ => {
            let _ = File::open(locked).map(|dir| flock(&dir, FlockOperation::LockExclusive));
            1
        }
    }
}

/// Whether CRIU is called to say something of itself, and not to dump: that need not wait.
fn asks_criu(arguments: &[OsString]) -> bool {
    let [word, socket, ..] = arguments else { return false };
    let number = socket.to_str().and_then(|number| number.parse().ok()).filter(|_| word == AT_A_SOCKET);
    let mut begin = [0; 2];
    let got = number.and_then(|number| vellum_sys::peek_message(number, &mut begin).ok());
    got == Some(begin.len()) && is_question(begin)
}

/// Whether a request that begins so is surely no dump.
fn is_question([field, kind]: [u8; 2]) -> bool {
    field == TYPE && kind != DUMP
}

/// Carries out what is to be done first, and becomes `program`.
fn go(program: &OsString, told: &[OsString]) -> Option<()> {
    let (number, words) = told.split_first()?;
    let (first, arguments) = words.split_at_checked(number.to_str()?.parse().ok()?)?;
    if let Some((first, words)) = first.split_first() {
        Command::new(first).args(words).status().ok()?.success().then_some(())?;
    }
    let _ = Command::new(program).args(arguments).exec();
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only_own() -> fs::Permissions {
        std::os::unix::fs::PermissionsExt::from_mode(0o700)
    }

    /// A gate, and whoever comes to it by its script; `vellum` is stood in for by a program that is none.
    #[test]
    fn runtime_calls_without_the_option_pass_the_gate() {
        let dir = tempfile::Builder::new().prefix("it's ").permissions(only_own()).tempdir().unwrap();
        let gate = Gate::new(dir.path(), dir.path()).unwrap();
        let vellum = dir.path().join("vellum");
        fs::write(&vellum, "#!/bin/sh\necho \"gate: $*\"\n").unwrap();
        fs::set_permissions(&vellum, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let script = gate.script(&vellum, "tool", "--stop", Path::new("/bin/echo")).unwrap();
        let said = |arguments: &[&str]| {
            let output = Command::new(&script).args(arguments).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(said(&["a b", "--stopped"]), "a b --stopped\n");
        let stopped = said(&["x", "--stop"]);
        // No number of a process or a descriptor leads there: another process may get it.
        let socket = dir.path().canonicalize().unwrap().join(SOCKET);
        let begins = format!("gate: internal-gate {} {} ", socket.display(), std::process::id());
        assert!(stopped.starts_with(&begins) && stopped.ends_with(" /bin/echo x --stop\n"), "{stopped}");
    }

    #[test]
    fn only_criu_queries_pass_the_gate() {
        // VERSION, FEATURE_CHECK.
        assert!(is_question([TYPE, 7]) && is_question([TYPE, 9]));
        assert!(!is_question([TYPE, DUMP]) && !is_question([0x12, 9]));
        let words = |words: [&str; 2]| words.map(OsString::from).to_vec();
        assert!(!asks_criu(&words(["swrk", "9999"])) && !asks_criu(&words(["dump", "0"])));
    }

    #[test]
    fn a_waiting_runtime_receives_its_decision() {
        let dir = tempfile::Builder::new().permissions(only_own()).tempdir().unwrap();
        let gate = Gate::new(dir.path(), dir.path()).unwrap();
        let socket = dir.path().join(SOCKET);
        let words: Vec<OsString> = ["", "two words", "\n"].map(OsString::from).to_vec();
        let own = std::process::id().cast_signed();
        let come = || {
            let (socket, words, missing) = (socket.clone(), words.clone(), dir.path().join("missing"));
            thread::spawn(move || pass(&socket, own, &missing, &missing.clone().into(), &words))
        };
        let mut starter = Command::new("sleep").arg("60").spawn().unwrap();
        let first = come();
        let waiting = gate.wait(&mut starter).unwrap().unwrap();
        assert_eq!(waiting.arguments, words);
        waiting.done().unwrap();
        assert_eq!(first.join().unwrap(), 0);
        // What is to be done first fails.
        let failing = come();
        gate.wait(&mut starter).unwrap().unwrap().go(&["false".into()], &[]).unwrap();
        assert_eq!(failing.join().unwrap(), 1);
        let second = come();
        drop(gate.wait(&mut starter).unwrap().unwrap());
        assert_eq!(second.join().unwrap(), 1);
        starter.kill().unwrap();
        assert!(gate.wait(&mut starter).unwrap().is_none());
    }

    /// A listener that tells whoever comes to make a file.
    fn serve_test_gate(dir: &Path, process: u32, mode: u32) -> bool {
        fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let (socket, made) = (dir.join(SOCKET), dir.join("made"));
        let listener = UnixListener::bind(&socket).unwrap();
        fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        let script = OsString::from(format!(": > {}", made.display()));
        let answering = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let _ = stream.read_to_end(&mut Vec::new());
            let first = ["/bin/sh".into(), "-c".into(), script];
            let _ = GateWaiter { stream, told: false, arguments: Vec::new() }.go(&first, &[]);
        });
        let gone = dir.join("missing");
        assert_eq!(pass(&socket, process.cast_signed(), &gone, &gone.clone().into(), &[]), 1);
        // Whoever was not asked still waits.
        let _ = UnixStream::connect(&socket);
        answering.join().unwrap();
        fs::remove_file(&socket).unwrap();
        fs::remove_file(&made).is_ok()
    }

    #[test]
    fn only_the_creator_of_the_gate_is_obeyed() {
        let dir = tempfile::tempdir().unwrap();
        let own = std::process::id();
        assert!(serve_test_gate(dir.path(), own, 0o700));
        assert!(!serve_test_gate(dir.path(), std::os::unix::process::parent_id(), 0o700), "another process");
        assert!(!serve_test_gate(dir.path(), own, 0o711), "others can enter the directory");
        if !geteuid().is_root() {
            return println!("SKIPPED: needs root, to give a directory to another user");
        }
        std::os::unix::fs::chown(dir.path(), Some(65_534), None).unwrap();
        assert!(!serve_test_gate(dir.path(), own, 0o700), "a directory of somebody else");
    }
}
