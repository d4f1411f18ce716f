//! The argument lists that mount programs are called with.
//!
//! * podman, buildah, Docker: `PROGRAM -o OPTIONS TARGET`
//! * containerd: `PROGRAM overlay TARGET -o OPTIONS`
//! * mount(8): `mount.fuse.vellum SOURCE TARGET [-sfnv] [-o OPTIONS]`, or through mount.fuse3 `vellum SOURCE TARGET
//!   -o OPTIONS`
//!
//! Any name may stand for PROGRAM, and switches may stand anywhere.

use super::bad_input::{BadInput, quote};
use super::{Options, Request};
use crate::cli;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// What a classic argument list asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Classic {
    /// Print help.
    Help,
    /// Print the version.
    Version,
    /// Mount, or change a mount.
    Mount(Box<Request>),
    /// Everything is in order, and nothing is to be done (`mount -f`).
    Pretend,
}

/// Whether the arguments are for the subcommands: the first is one of their names, and there is no `-o` that makes
/// the list classic after all. (`mount` with `-o` means the same both ways, and the command after `run --image` may have one.)
/// A word that is no path, in a list without any `-o`, is meant to be one as well: classic lists do nothing without.
#[must_use]
pub fn is_subcommand(args: &[OsString]) -> bool {
    let [program, first, rest @ ..] = args else { return false };
    let is_word =
        !first.is_empty() && !first.as_bytes().starts_with(b"-") && !first.as_bytes().contains(&b'/');
    let named = is_word && cli::is_command(first);
    let any = |begin: &[u8]| rest.iter().any(|arg| arg.as_bytes().starts_with(begin));
    let mounts_a_store = first == "zoned" && rest.first().is_some_and(|word| word == "mount");
    // With words of other programs.
    #[cfg(feature = "containers")]
    let others = ["internal-tied", vellum_checkpoint::podman::APART, vellum_checkpoint::podman::GATE];
    #[cfg(not(feature = "containers"))]
    let others = [""; 0];
    let free = first == "mount"
        || mounts_a_store
        || others.iter().any(|name| first == *name)
        || (first == "run" && any(b"--image"));
    let switch = |arg: &OsString| matches!(arg.as_bytes(), [b'-', letters @ ..] if letters.first() != Some(&b'-') && letters.contains(&b'o'));
    let meant = if named { free || !any(b"-o") } else { is_word && !rest.iter().any(switch) };
    meant && !is_mount_helper(program)
}

/// Reads a classic argument list; the first of `args` is the program's name.
pub fn parse(args: &[OsString]) -> Result<Classic, BadInput> {
    let (program, args) =
        args.split_first().map_or((OsStr::new("vellum"), args), |(p, rest)| (p.as_os_str(), rest));
    let mut list = List { helper: is_mount_helper(program), ..List::default() };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_bytes() {
            b"--" => list.places.extend(args.by_ref().cloned()),
            b"--help" => list.help = true,
            b"--version" => list.version = true,
            b"--debug" => list.debug = true,
            b"--foreground" => list.foreground = true,
            [b'-', b'-', ..] => return Err(unknown_switch(arg.as_bytes())),
            [b'-', letters @ ..] if !letters.is_empty() => list.switches(letters, &mut args)?,
            _ => list.places.push(arg.clone()),
        }
    }
    list.finish()
}

/// Whether mount(8) calls: then `-f` and `-s` are its own, not libfuse's.
fn is_mount_helper(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name.as_bytes().starts_with(b"mount."))
}

fn unknown_switch(arg: &[u8]) -> BadInput {
    BadInput::new(format!(
        "argument {}: unknown; leave it out (vellum --help lists what there is)",
        quote(arg)
    ))
}

#[derive(Default)]
struct List {
    helper: bool,
    help: bool,
    version: bool,
    debug: bool,
    foreground: bool,
    pretend: bool,
    sloppy: bool,
    single: bool,
    read_only: Option<bool>,
    options: Vec<OsString>,
    places: Vec<OsString>,
}

impl List {
    fn switches(
        &mut self,
        letters: &[u8],
        args: &mut std::slice::Iter<'_, OsString>,
    ) -> Result<(), BadInput> {
        for (at, letter) in letters.iter().enumerate() {
            match letter {
                b'f' if self.helper => self.pretend = true,
                b's' if self.helper => self.sloppy = true,
                b'f' => self.foreground = true,
                b's' => self.single = true,
                b'd' => self.debug = true,
                b'h' => self.help = true,
                b'V' => self.version = true,
                b'n' | b'v' => {}
                b'r' => self.read_only = Some(true),
                b'w' => self.read_only = Some(false),
                b'o' | b't' | b'N' => {
                    let joined = letters.get(at + 1..).unwrap_or_default();
                    let value = match joined {
                        [] => args.next().cloned(),
                        _ => Some(OsString::from_vec(joined.to_vec())),
                    };
                    let switch = char::from(*letter);
                    let value = value.ok_or_else(|| {
                        BadInput::new(format!("argument -{switch}: it needs a value after it"))
                    })?;
                    if *letter == b'o' {
                        self.options.push(value);
                    }
                    return Ok(());
                }
                _ => return Err(unknown_switch(&[b"-", letters].concat())),
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Classic, BadInput> {
        if self.help {
            return Ok(Classic::Help);
        }
        if self.version {
            return Ok(Classic::Version);
        }
        let mut options = Options::default();
        for text in &self.options {
            options.take(text, self.sloppy)?;
        }
        let mut places = self.places.into_iter();
        let target = match (places.next(), places.next(), places.next()) {
            (Some(target), None, _) => target,
            (Some(source), Some(target), None) => {
                options.set_source(source);
                target
            }
            (None, ..) => {
                return Err(BadInput::new(
                    "no mount point given; add the directory to mount on as the last argument",
                ));
            }
            (_, _, Some(extra)) => {
                let extra = quote(extra.as_bytes());
                return Err(BadInput::new(format!(
                    "argument {extra}: one too many; give [SOURCE] MOUNTPOINT"
                )));
            }
        };
        if target.is_empty() {
            return Err(BadInput::new("the mount point is empty; give the directory to mount on"));
        }
        if self.debug {
            options.set_debug();
        }
        if self.single {
            options.set_single_threaded();
        }
        if let Some(read_only) = self.read_only {
            options.set_read_only(read_only);
        }
        let request = options.finish(target.into(), self.foreground)?;
        Ok(if self.pretend { Classic::Pretend } else { Classic::Mount(Box::new(request)) })
    }
}
