//! The log: one line per notable event, quiet unless asked.

use crate::options::{BadInput, LogTarget, Request};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::sync::Mutex;
use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use vellum_service::Failure;

/// The environment's say in what is logged.
pub const VARIABLE: &str = "VELLUM_LOG";

/// The environment's say in where.
pub const TARGET_VARIABLE: &str = "VELLUM_LOG_TO";

/// What is logged when nobody says otherwise.
const QUIET: &str = "warn";

/// Longest line that goes to the system's logs, in bytes.
const LINE_MAX: usize = 900;

/// Sets the log of a pool's service up, as the environment asks: it has no mount's options.
pub fn start_service(foreground: bool) -> Result<(), Failure> {
    start(&Request { foreground, ..Request::default() })
}

/// Sets the log of this process up, as `request` and the environment ask.
pub fn start(request: &Request) -> Result<(), Failure> {
    let usual = if request.debug { "debug" } else { QUIET };
    let named = std::env::var_os(TARGET_VARIABLE).filter(|name| !name.is_empty());
    let target = match &request.log_to {
        LogTarget::Auto if named.is_some() => LogTarget::named(named.unwrap_or_default().into_vec()),
        LogTarget::Auto if request.foreground => LogTarget::Stderr,
        LogTarget::Auto => LogTarget::Syslog,
        other => other.clone(),
    };
    begin(request.log.clone(), usual, &target)
}

/// Sets the log of a command up that stays in the foreground.
pub fn to_stderr() -> Result<(), Failure> {
    begin(None, QUIET, &LogTarget::Stderr)
}

fn begin(asked: Option<String>, usual: &str, target: &LogTarget) -> Result<(), Failure> {
    let asked = asked.or_else(|| std::env::var(VARIABLE).ok().filter(|text| !text.is_empty()));
    let text = asked.unwrap_or_else(|| usual.to_owned());
    let filter: Targets = text
        .parse()
        .map_err(|_| {
            BadInput::value(
                "log",
                text.as_bytes(),
                "no filter",
                "write e.g. log=info or log=vellum_union=debug",
            )
        })
        .map_err(|bad| Failure::input(bad.to_string()))?;
    let sink = Sink::open(target)?;
    let plain = matches!(sink, Sink::Syslog(_) | Sink::Kmsg(_));
    let all = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(Log(Mutex::new(sink)));
    let started = if plain {
        all.without_time().with_level(false).finish().with(filter).try_init()
    } else {
        all.finish().with(filter).try_init()
    };
    started.map_err(|e| Failure::system("cannot start the log").because(e))
}

enum Sink {
    Stderr,
    File(File),
    Kmsg(File),
    /// None: nobody listens there.
    Syslog(Option<UnixDatagram>),
}

impl Sink {
    fn open(target: &LogTarget) -> Result<Self, Failure> {
        Ok(match target {
            LogTarget::Auto | LogTarget::Stderr => Self::Stderr,
            LogTarget::Syslog => Self::Syslog(syslog()),
            LogTarget::Kmsg => Self::Kmsg(OpenOptions::new().write(true).open("/dev/kmsg").map_err(|e| {
                let failure = Failure::input("option log_to=kmsg").because(e);
                failure.remedy("write log_to=syslog or a file's path")
            })?),
            LogTarget::File(path) => {
                // Names of files stand in it, and a service has no mask.
                let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
                Self::File(opened.map_err(|e| {
                    let failure = Failure::input(format!("option log_to={}", path.display()));
                    failure.because(e).remedy("give a file that can be written")
                })?)
            }
        })
    }

    fn put(&mut self, level: Level, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Stderr => io::stderr().write_all(line),
            Self::File(file) => file.write_all(line),
            Self::Kmsg(file) => file.write_all(&framed("vellum", level, line)),
            Self::Syslog(socket) => {
                // Never opened again: a service may not, and shares its descriptors with its supervisor.
                let Some(socket) = socket else { return Ok(()) };
                let tag = format!("vellum[{}]", std::process::id());
                socket.send(&framed(&tag, level, line)).map(drop)
            }
        }
    }
}

fn syslog() -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect("/dev/log").ok()?;
    // A log that nobody reads must not stop the filesystem.
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}

/// `<priority>tag: line`, as syslog and the kernel's log take it.
fn framed(tag: &str, level: Level, line: &[u8]) -> Vec<u8> {
    let severity = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    };
    let mut framed = format!("<{}>{tag}: ", (3 << 3) | severity).into_bytes();
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    framed.extend_from_slice(line.get(..LINE_MAX).unwrap_or(line));
    framed
}

struct Log(Mutex<Sink>);

struct Line<'a> {
    log: &'a Log,
    level: Level,
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { log: self, level: Level::INFO }
    }

    fn make_writer_for(&'a self, meta: &tracing::Metadata<'_>) -> Line<'a> {
        Line { log: self, level: *meta.level() }
    }
}

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A panic while logging must not silence the log, nor a full disk disturb the filesystem.
        let mut sink = self.log.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = sink.put(self.level, line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_framed_for_the_system() {
        assert_eq!(framed("vellum[7]", Level::WARN, b"x\n"), b"<28>vellum[7]: x");
        let long = vec![b'x'; 5000];
        assert_eq!(framed("v", Level::DEBUG, &long).len(), "<31>v: ".len() + LINE_MAX);
    }
}
