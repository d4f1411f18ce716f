//! A web server in each clone of an image: Danaus (Kappes and Anastasiadis, Middleware 2021) starts up to 256 containers
//! of Lighttpd from one image, and times them until all answer. The program, its libraries and what it serves come
//! through the mount, by exec and mmap.

use crate::failure::{Failure, Result, While};
use crate::interrupt;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The program, in an image.
const PROGRAM: &str = "/usr/sbin/lighttpd";
/// Its configuration, in an image.
const SETTINGS: &str = "/etc/lighttpd.conf";
/// Without modules that are files: the one for files is built in. The port is another in every clone.
const SETTINGS_TEXT: &str = r#"server.compat-module-load = "disable"
server.modules = ( "mod_staticfile" )
server.document-root = "/www"
server.bind = "127.0.0.1"
server.port = env.PORT
mimetype.assign = ( ".html" => "text/html" )
"#;
/// The page that is asked for, in bytes.
const PAGE_BYTES: usize = 16 * 1024;
/// How long a server may take until it answers.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two tries to connect.
const PAUSE: Duration = Duration::from_micros(200);

/// Lighttpd's program on this machine.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(sbin).map(|dir| dir.join("lighttpd")).find(|program| program.is_file())
}

/// Why no server can be started here, if so.
#[must_use]
pub fn missing_requirement() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("starting a server in a clone needs root, for chroot".into());
    }
    program().is_none().then(|| "there is no lighttpd; install the package lighttpd".into())
}

/// Makes an image of the server in `layer`: the program, the libraries that it is linked with, settings and a page.
pub fn make(layer: &Path) -> Result<()> {
    let program = program().ok_or_else(|| Failure::new("there is no lighttpd"))?;
    let inside = |path: &str| layer.join(path.trim_start_matches('/'));
    let put = |from: &Path, to: PathBuf| {
        fs::create_dir_all(to.parent().unwrap_or(layer)).doing(|| "making an image")?;
        fs::copy(from, &to).map(drop).doing(|| format!("copying {}", from.display()))
    };
    put(&program, inside(PROGRAM))?;
    let output = Command::new("ldd").arg(&program).output().doing(|| "ldd")?;
    for library in libraries(&String::from_utf8_lossy(&output.stdout)) {
        put(Path::new(library), inside(library))?;
    }
    for dir in ["/www", "/etc", "/dev", "/tmp"] {
        fs::create_dir_all(inside(dir)).doing(|| "making an image")?;
    }
    fs::write(inside(SETTINGS), SETTINGS_TEXT).doing(|| "making an image")?;
    // A file does for a device that is only opened in place of a closed descriptor.
    fs::write(inside("/dev/null"), "").doing(|| "making an image")?;
    fs::write(inside("/www/index.html"), "x".repeat(PAGE_BYTES)).doing(|| "making an image")
}

/// The files in what ldd prints: `name => /path (address)`, or `/path (address)` for the loader.
fn libraries(ldd: &str) -> impl Iterator<Item = &str> {
    ldd.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
}

/// A port for each of so many servers, which nobody listens on.
pub fn ports(count: usize) -> Result<Vec<u16>> {
    // All are held until the last is there, so that they differ.
    let held = (0..count)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<std::io::Result<Vec<_>>>()
        .doing(|| "looking for free ports")?;
    held.iter().map(|socket| Ok(socket.local_addr().doing(|| "a port")?.port())).collect()
}

/// Makes a clone's root this process's root.
pub(crate) fn enter(root: &Path) -> Result<()> {
    rustix::process::chroot(root).doing(|| format!("chroot to {}", root.display()))?;
    std::env::set_current_dir("/").doing(|| "chdir")
}

/// Becomes the server; returns only when that failed.
pub(crate) fn exec_program(port: u16) -> Failure {
    let mut command = Command::new(PROGRAM);
    command.args(["-D", "-f", SETTINGS]).env_clear().env("PORT", port.to_string());
    Failure::new(format!("{PROGRAM}: {}", command.exec()))
}

/// Waits until the server at a port answers a request. `check_alive` fails when it has ended.
pub fn wait_answer(port: u16, mut check_alive: impl FnMut() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(stream) => return ask(stream),
            Err(error) if start.elapsed() > PATIENCE => {
                return Err(error).doing(|| "lighttpd does not answer");
            }
            Err(_) => {
                interrupt::check()?;
                check_alive()?;
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Asks for the page.
fn ask(mut stream: TcpStream) -> Result<()> {
    let mut answer = Vec::new();
    stream.set_read_timeout(Some(PATIENCE)).doing(|| "a request")?;
    stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").doing(|| "a request")?;
    stream.read_to_end(&mut answer).doing(|| "an answer")?;
    let good = answer.split(|byte| *byte == b' ').nth(1) == Some(b"200") && answer.len() > PAGE_BYTES;
    if good {
        return Ok(());
    }
    let answer = String::from_utf8_lossy(&answer);
    Err(Failure::new(format!("lighttpd answers {:?}", answer.lines().next().unwrap_or("nothing"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_taken_from_ldd() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x2)\n\t/lib64/ld.so.2 (0x3)\n";
        assert_eq!(libraries(text).collect::<Vec<_>>(), ["/lib/x/libc.so.6", "/lib64/ld.so.2"]);
    }

    #[test]
    fn ports_differ() {
        let ports = ports(16).unwrap();
        assert_eq!(ports.iter().collect::<std::collections::BTreeSet<_>>().len(), 16);
    }
}
