//! Attributes that the kernel knows, where the mount is a program's root directory.

use super::{compile, library};
use crate::cases::monitoring::stats_of;
use crate::cases::pool::PoolMount;
use crate::harness::outcome::{Outcome, ensure, ensure_eq, skip};
use crate::harness::{Cx, Profile, shell};
use rustix::fs::XattrFlags;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What is read, of each layer.
const FILES: [&str; 2] = ["/below", "/above"];
/// The program that starts programs for glibc.
const LOADER: &str =
    if cfg!(target_arch = "x86_64") { "/lib64/ld-linux-x86-64.so.2" } else { "/lib/ld-linux-aarch64.so.1" };
/// How often a file is read.
const READS: u64 = 100;

/// The program, what it needs of libc, and a file below.
fn fill(lower: &Path, program: &Path) -> Outcome {
    fs::copy(program, lower.join("program"))?;
    fs::copy(library()?, lower.join("libvellum.so"))?;
    let linked = shell::run(Command::new("ldd").arg(program))?;
    for needed in linked.split_whitespace().filter(|word| word.starts_with('/')) {
        let to = lower.join(needed.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap_or(lower))?;
        fs::copy(needed, to)?;
    }
    fs::create_dir_all(lower.join(".vellum"))?;
    fs::write(lower.join("below"), "something to be read")?;
    fs::create_dir_all(lower.join("quiet"))?;
    fs::create_dir_all(lower.join("named"))?;
    rustix::fs::setxattr(lower.join("named"), "user.name", b"value", XattrFlags::empty())?;
    // What changed a moment ago is believed to be about to change again.
    std::thread::sleep(Duration::from_secs(4));
    Ok(())
}

/// Runs the program with the mount as its root directory, with and without the library: what it says.
fn run(ground: &PoolMount<'_>, preload: &[&str], file: &str, reads: u64, times: bool) -> Outcome<String> {
    const LINE: &str = "mount --bind \"$SOCKETS\" \"$ROOT/.vellum\" && exec chroot \"$ROOT\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", LINE, "sh", LOADER]);
    command.args(preload).args(["/program", file, &reads.to_string(), if times { "1" } else { "0" }]);
    command.env("SOCKETS", ground.socket.parent().unwrap_or(Path::new("/")));
    shell::run(command.env("ROOT", ground.mount.root()))
}

/// Requests for attributes, and for names of extended attributes.
fn requests(ground: &PoolMount<'_>) -> Outcome<[u64; 2]> {
    let stats = stats_of(&ground.mount)?;
    let of = |name: &str| stats["operations"][name]["count"].as_u64().unwrap_or(0);
    Ok([of("GETATTR") + of("STATX"), of("LISTXATTR")])
}

/// They are what the service says after whatever has happened to a file, and so are the names of extended attributes. Where reading sets no
/// access times, which is usual, reading a file costs no request for attributes, and that it or a directory has no extended ones is asked once.
pub(super) fn attributes(cx: &Cx) -> Outcome {
    if !shell::have("gcc") {
        return skip("gcc is missing: run make deps");
    }
    let program = compile(cx, "gcc", "attributes")?;
    let is_by_kernel = cx.profile == Some(Profile::Passthrough);
    for option in ["noatime", "relatime", "strictatime"] {
        let ground = PoolMount::with(cx, |lower| fill(lower, &program), &[option])?;
        fs::write(ground.mount.path("above"), "something else to be read")?;
        for file in FILES {
            let before = requests(&ground)?;
            let expected = run(&ground, &[], file, READS, true)?;
            let between = requests(&ground)?;
            let found = run(&ground, &["--preload", "/libvellum.so"], file, READS, true)?;
            let after = requests(&ground)?;
            let [without, with] = [[between, before], [after, between]].map(|[end, begin]| {
                let [attributes, names] = [0, 1].map(|which| end[which] - begin[which]);
                (attributes, names)
            });
            if option == "noatime" {
                ensure_eq!(expected, "access time kept\n", "{file}, without the library");
                // Elsewhere the kernel asks for sizes on disks after each close, for it keeps what is written.
                let is_less = with.0 < READS / 2 || !is_by_kernel;
                ensure!(
                    is_less,
                    "{file}: {} requests for attributes, {} without the library",
                    with.0,
                    without.0
                );
            }
            // A file that has just been made is asked about each time.
            let is_less = with.1 < READS / 2 || file == FILES[1];
            ensure!(
                is_less && without.1 >= READS,
                "{file}: {} requests for names, {} without",
                with.1,
                without.1
            );
            let often = option == "strictatime" || option == "noatime";
            ensure!(!often || found == expected, "{option}, {file}: {found}, without the library {expected}");
            // The service's own reads may set access times in the layer, of which the kernel is not told.
            run(&ground, &["--preload", "/libvellum.so"], file, 0, is_by_kernel)?;
        }
    }
    Ok(())
}
