//! What the sandbox costs per system call: the shortest time of many short rounds, with it and without, in turns.
//!
//!     cargo run --release -p vellum-service --example sandbox_cost -- DIR
//!
//! DIR is made and must not be there. Each process measures one mode, for the sandbox cannot be left.
#![allow(clippy::unwrap_used, reason = "a measurement that stops at the first error")]

use rustix::fs::{AtFlags, Mode as Bits, OFlags};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use vellum_service::sandbox::{Mode, Plan, Roots, enter};

/// Calls of each kind in a round.
const CALLS: u32 = 500;
/// Rounds of a process.
const ROUNDS: u32 = 60;
/// Processes of each mode.
const TURNS: usize = 12;
/// How deep the directory lies below the layer's root.
const DEEP: &str = "a/b/c/d/e/f/g/h";

const MODES: [&str; 3] = ["off", "nofiles", "on"];
const KINDS: [&str; 4] = ["statx", "open and close", "create, close, unlink", "pread"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [dir] => compare(Path::new(dir)),
        [dir, mode] => measure(Path::new(dir), mode),
        _ => eprintln!("give a directory to be made"),
    }
}

fn compare(dir: &Path) {
    fs::create_dir(dir).unwrap();
    fs::create_dir_all(dir.join("upper").join(DEEP)).unwrap();
    fs::create_dir(dir.join("work")).unwrap();
    fs::write(dir.join("upper").join(DEEP).join("file"), "text").unwrap();
    let mut best = [[f64::MAX; KINDS.len()]; MODES.len()];
    for turn in 0..TURNS {
        for at in 0..MODES.len() {
            let at = (at + turn) % MODES.len();
            let output =
                Command::new(std::env::current_exe().unwrap()).arg(dir).arg(MODES[at]).output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            for (best, word) in best[at].iter_mut().zip(said.split_whitespace()) {
                *best = best.min(word.parse().unwrap());
            }
        }
    }
    for (kind, name) in KINDS.iter().enumerate() {
        print!("{name:<22}");
        for (mode, times) in MODES.iter().zip(&best) {
            print!(" {mode} {:.3}", times[kind] / best[0][kind]);
        }
        println!("   (1 is {:.0} ns)", best[0][kind]);
    }
    fs::remove_dir_all(dir).unwrap();
}

fn measure(dir: &Path, mode: &str) {
    let open = |path: &Path| -> OwnedFd {
        rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Bits::empty()).unwrap()
    };
    let roots =
        Roots { read_only: Vec::new(), writable: vec![open(&dir.join("upper")), open(&dir.join("work"))] };
    let plan = Plan {
        mode: match mode {
            "off" => Mode::Off,
            "nofiles" => Mode::NoFiles,
            _ => Mode::On,
        },
        roots: Some(roots),
        passthrough: false,
        writable: true,
        keep_awake: false,
        cache: false,
        ceph: None,
        zoned: false,
    };
    let deep = open(&dir.join("upper").join(DEEP));
    let _entered = enter(&plan);
    let file = rustix::fs::openat(&deep, "file", OFlags::RDONLY | OFlags::CLOEXEC, Bits::empty()).unwrap();
    let times = [
        shortest(|| {
            rustix::fs::statx(&deep, "file", AtFlags::SYMLINK_NOFOLLOW, rustix::fs::StatxFlags::BASIC_STATS)
                .unwrap();
        }),
        shortest(|| {
            drop(rustix::fs::openat(&deep, "file", OFlags::RDONLY | OFlags::CLOEXEC, Bits::empty()).unwrap())
        }),
        shortest(|| {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            drop(rustix::fs::openat(&deep, "new", flags, Bits::RUSR).unwrap());
            rustix::fs::unlinkat(&deep, "new", AtFlags::empty()).unwrap();
        }),
        shortest(|| {
            rustix::io::pread(&file, &mut [0_u8; 4], 0).unwrap();
        }),
    ];
    println!("{}", times.map(|time| time.to_string()).join(" "));
}

/// Nanoseconds of one call, in the shortest of the rounds.
fn shortest(call: impl Fn()) -> f64 {
    let round = || {
        let begin = Instant::now();
        (0..CALLS).for_each(|_| call());
        begin.elapsed()
    };
    let best = (0..ROUNDS).map(|_| round()).min().unwrap_or(Duration::MAX);
    best.as_nanos() as f64 / f64::from(CALLS)
}
