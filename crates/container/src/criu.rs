//! CRIU: found, checked, and understood when it fails. The OCI runtime calls it; here is what the runtime does not say.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vellum_service::Failure;

/// The program.
pub const CRIU: &str = "criu";
/// Older ones do not know the kernels that Vellum runs on: 3.17 dumps nothing on Linux 6.18.
const OLDEST: (u32, u32) = (4, 0);
/// What to do.
const REMEDY: &str = "install CRIU 4.0 or later (Debian 13 has 4.1: apt-get install criu)";
/// The most of a log that is read, in bytes from its end.
const LOG_MAX: usize = 1 << 20;
/// The largest file without a name that is kept in the images, in bytes: CRIU's own limit of 1 MiB is less than a database's.
const NAMELESS_MAX: u64 = 64 << 30;

/// What names a file with more options, beside the one that the container's own configuration may name.
pub const CONFIGURATION: &str = "CRIU_CONFIG_FILE";

/// How a runtime dumps and restores every container.
pub const ALWAYS: [&str; 1] = ["--file-locks"];
/// And one with a network of its own, whose connections all end in it.
pub const OWN_NETWORK: [&str; 1] = ["--tcp-established"];

/// CRIU on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Criu {
    program: PathBuf,
    version: String,
}

/// The version of the CRIU in PATH, if it is new enough for checkpoints.
pub fn criu_version() -> Result<String, Failure> {
    Criu::find().map(|criu| criu.version)
}

impl Criu {
    /// The one in PATH, if it is new enough.
    pub fn find() -> Result<Self, Failure> {
        let none = || Failure::input("no criu in PATH, which does the work").remedy(REMEDY);
        let program = crate::in_path(Path::new(CRIU)).ok_or_else(none)?;
        let shown = program.display();
        let said = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
        let said = said.map_err(|e| Failure::input(format!("{shown}")).because(e).remedy(REMEDY))?;
        let text = String::from_utf8_lossy(&said.stdout);
        let (version, number) = version(&text)
            .ok_or_else(|| Failure::input(format!("{shown}: it does not say its version")).remedy(REMEDY))?;
        if number < OLDEST {
            return Err(Failure::input(format!("{shown}: version {version} is too old")).remedy(REMEDY));
        }
        Ok(Self { program, version })
    }

    pub fn version(&self) -> &str {
        &self.version
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    /// PATH for a runtime that is to find it.
    pub fn path(&self) -> OsString {
        path_with(self.program.parent())
    }

    /// PATH for a runtime that is to find what is called so in a directory.
    pub fn path_behind(&self, dir: &Path) -> OsString {
        path_with([dir].into_iter().chain(self.program.parent()))
    }
}

/// PATH with more directories in front.
fn path_with<'a>(dirs: impl IntoIterator<Item = &'a Path>) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = dirs.into_iter().map(Path::to_owned);
    std::env::join_paths(dirs.chain(std::env::split_paths(&path))).unwrap_or(path)
}

/// `Version: 4.1.1`, as text and as numbers.
fn version(said: &str) -> Option<(String, (u32, u32))> {
    let text = said.lines().find_map(|line| line.strip_prefix("Version:"))?.trim();
    let mut parts = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let number = (parts.next()?.ok()?, parts.next().and_then(Result::ok).unwrap_or(0));
    Some((text.to_owned(), number))
}

/// What CRIU is to do that the runtime has no option for: the text of its configuration file. `keeps_out`: whether packets are kept out of the
/// container's network meanwhile, so that no connection sees one end without the other. That takes tables of packet filters, and half of the time
/// that a small container stands still.
pub fn configuration(keeps_out: bool) -> String {
    let lock = if keeps_out { "" } else { "network-lock skip\n" };
    format!("ghost-limit {NAMELESS_MAX}\n{lock}")
}

/// Why a dump or a restore failed, from its log: what is known of it, or what it said.
pub fn explain(log: &Path) -> Option<String> {
    let bytes = fs::read(log).ok()?;
    let end = bytes.get(bytes.len().saturating_sub(LOG_MAX)..)?;
    let text = String::from_utf8_lossy(end);
    let errors: Vec<&str> =
        text.lines().filter_map(|line| line.split_once(" Error ").map(|(_, said)| said)).collect();
    let has = |words: &str| errors.iter().any(|line| line.contains(words));
    let known = [
        (
            "Can't get 1:16 opt",
            "a TCP or UDP socket: CRIU before 4.2 cannot read one on Linux 6.16 and later; use CRIU 4.2, or sockets of the kind AF_UNIX",
        ),
        ("Connected TCP socket", "a TCP connection that leaves the container; close it first"),
        ("external socket", "a socket to a process outside of the container; close it first"),
        ("External socket", "a socket to a process outside of the container; close it first"),
        (
            "Locking network failed: iptables",
            "CRIU needs iptables-restore, to stop connections meanwhile; apt-get install iptables",
        ),
        ("Unix socket", "a socket to a process outside of the container; close it first"),
        ("Can't lookup mount", "an open file of the host; close it first, or show it as a volume"),
        ("No space left on device", "no space is left where the checkpoint is written; free some"),
        ("Broken pipe", "stream: whoever reads it has ended"),
        ("Can't create link remap", "an open file that was removed, and has other names; close it first"),
    ];
    if let Some((_, why)) = known.iter().find(|(words, _)| has(words)) {
        return Some((*why).to_owned());
    }
    // The first one has led to the others, but for those that stop nothing.
    let first = errors.iter().find(|line| !line.contains("rlimit:"))?;
    // `(criu/file.c:123): what happened`.
    Some(first.split_once("): ").map_or(*first, |(_, said)| said).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version("Version: 4.1.1\n"), Some(("4.1.1".into(), (4, 1))));
        assert_eq!(version("Version: 3.17.1-2\nGitID: v3\n"), Some(("3.17.1-2".into(), (3, 17))));
        assert_eq!(version("Version: 5"), Some(("5".into(), (5, 0))));
        assert_eq!(version("criu 4\n"), None);
        assert!((3, 17) < OLDEST && (4, 1) >= OLDEST && (10, 0) >= OLDEST);
    }

    #[test]
    fn criu_errors_are_explained_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("dump.log");
        assert_eq!(explain(&log), None);
        let rlimit = "(00.03) Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n";
        for (text, word) in [
            (
                "(00.09) Error (criu/sockets.c:628): sockets: Can't get 1:16 opt: Operation not supported\n",
                "4.2",
            ),
            (
                "(00.1) Error (criu/x.c:1): odd thing\n(00.2) Error (criu/y.c:2): Dumping FAILED.\n",
                "odd thing",
            ),
        ] {
            fs::write(&log, format!("(00.00) Warn  (criu/a.c:1): x\n{rlimit}{text}")).unwrap();
            assert!(explain(&log).is_some_and(|why| why.contains(word)), "{:?}", explain(&log));
        }
    }
}
