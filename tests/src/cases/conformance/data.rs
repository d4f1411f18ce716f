//! fsx, fio and dbench: what is written is what is read.

use super::{plain_and_mount, tool};
use crate::harness::outcome::{Outcome, ensure, fail};
use crate::harness::{Cx, rng, shell};
use crate::runner::child::note;
use std::fs;
use std::path::Path;
use std::process::Command;

const FSX_CONFIG: &str = "
flen = 262144
[opsize]
min = 1
max = 65536
[weights]
close_open = 1.0
invalidate = 1.0
mapread = 10.0
mapwrite = 10.0
read = 10.0
write = 10.0
truncate = 8.0
fsync = 1.0
fdatasync = 1.0
posix_fallocate = 3.0
punch_hole = 5.0
sendfile = 5.0
posix_fadvise = 2.0
copy_file_range = 5.0
";

/// Seeds of a run, and operations each.
const FSX_SEEDS: u64 = 3;
const FSX_OPS: &str = "10000";

pub(super) fn fsx(cx: &Cx) -> Outcome {
    let program = tool("fsx")?;
    let first = rng::seed();
    let (_held, plain, _layers, mut mount) = plain_and_mount(cx, |layers| {
        // A file of lower data, large enough to be copied block by block, is under every second one.
        for seed in (first..first + FSX_SEEDS).filter(|seed| seed % 2 == 0) {
            fs::write(layers.lower().join(format!("fsx{seed}")), vec![0xaa; 262_144])?;
        }
        Ok(())
    })?;
    let config = cx.dir.join("fsx.toml");
    fs::write(&config, FSX_CONFIG)?;
    let mut failed = Vec::new();
    for seed in first..first + FSX_SEEDS {
        let go = |dir: &Path| {
            let mut command = Command::new(&program);
            command.arg("-f").arg(&config).args(["-N", FSX_OPS, "-S", &seed.to_string(), "-P"]).arg(&cx.dir);
            shell::run(command.arg(dir.join(format!("fsx{seed}"))))
        };
        let name = format!("seed-{seed}");
        match go(mount.root()) {
            Ok(_) => note("ok", &name, ""),
            Err(stop) => {
                println!("{stop}");
                // It must be the mount's fault and not the suite's.
                if go(&plain).is_err() {
                    note("skip", &name, "fails on the filesystem below, too");
                    continue;
                }
                note("fail", &name, "see the log; VELLUM_TEST_SEED repeats it");
                failed.push(seed);
            }
        }
    }
    mount.unmount()?;
    ensure!(failed.is_empty(), "seeds {failed:?} failed");
    Ok(())
}

/// Name and options of each fio job. All write with a checksum in every block and read it back.
const FIO: &[(&str, &str)] = &[
    ("psync-random", "--ioengine=psync --rw=randwrite --bs=4k --size=32m"),
    ("psync-mixed-sizes", "--ioengine=psync --rw=randwrite --bsrange=512-128k --bs_unaligned=1 --size=24m"),
    ("psync-sequential", "--ioengine=psync --rw=write --bs=1m --size=128m --end_fsync=1"),
    ("mmap-random", "--ioengine=mmap --rw=randwrite --bs=4k --size=24m"),
    ("mmap-sequential", "--ioengine=mmap --rw=write --bs=64k --size=48m"),
    ("libaio-random", "--ioengine=libaio --iodepth=16 --rw=randwrite --bs=4k --size=24m"),
    ("libaio-direct", "--ioengine=libaio --iodepth=16 --direct=1 --rw=randwrite --bs=4k --size=16m"),
    ("psync-fdatasync", "--ioengine=psync --rw=randwrite --bs=4k --size=4m --fdatasync=8"),
    ("four-writers", "--ioengine=psync --rw=randwrite --bs=8k --size=12m --numjobs=4"),
    ("overwrite", "--ioengine=psync --rw=randwrite --bs=4k --size=16m --norandommap=1 --overwrite=1"),
];

pub(super) fn fio(cx: &Cx) -> Outcome {
    let program = tool("fio")?;
    let (_held, plain, _layers, mut mount) = plain_and_mount(cx, |layers| {
        // The file of one job exists in a lower: every write is to a copied-up file.
        Ok(fs::write(layers.lower().join("overwrite.0.0"), vec![0x55; 16 << 20])?)
    })?;
    let mut failed = 0;
    for (name, options) in FIO {
        let go = |dir: &Path| {
            let mut command = Command::new(&program);
            command.arg(format!("--name={name}")).arg(format!("--directory={}", dir.display()));
            command.args("--verify=crc32c --do_verify=1 --verify_fatal=1 --fallocate=none".split(' '));
            // A fixed seed, so that a failure comes back.
            command.args(["--randseed=42", "--thread"]).args(options.split(' '));
            shell::run(command.current_dir(&cx.dir))
        };
        let Err(stop) = go(mount.root()) else {
            note("ok", name, "");
            continue;
        };
        println!("{name}: {stop}");
        if let Err(stop) = go(&plain) {
            note("skip", name, &format!("fails on the filesystem below, too: {stop}"));
            continue;
        }
        note("fail", name, "see the log");
        failed += 1;
    }
    mount.unmount()?;
    ensure!(failed == 0, "{failed} jobs failed");
    Ok(())
}

/// Seconds that dbench runs on each.
const DBENCH_SECONDS: &str = "8";

pub(super) fn dbench(cx: &Cx) -> Outcome {
    tool("dbench")?;
    let (_held, plain, _layers, mut mount) = plain_and_mount(cx, |_| Ok(()))?;
    for dir in [plain.as_path(), mount.root()] {
        let out = shell::run(Command::new("dbench").args(["-t", DBENCH_SECONDS, "-D"]).arg(dir).arg("4"))?;
        println!("{out}");
        // dbench reports a failed operation as a line and goes on.
        let bad = out.lines().find(|line| line.starts_with('[') || line.contains("ERROR"));
        if let Some(line) = bad {
            return fail(format!("on {}: {line}", dir.display()));
        }
        ensure!(out.contains("Throughput"), "dbench says no throughput on {}", dir.display());
    }
    mount.unmount()
}
