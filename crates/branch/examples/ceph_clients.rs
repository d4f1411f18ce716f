//! What several clients of one process are worth where threads read what no client has: `scripts/ceph-local cargo run --release -p
//! vellum-branch --example ceph_clients [MIB] [ROUNDS]`. Four threads read each block of 64 KiB of a file once, in an order by chance,
//! by 1, 2 and 4 clients, which are new each time; and then the same blocks once more, which their clients have. Rounds alternate.

use std::ffi::CStr;
use std::io::{Error, Result};
use std::sync::Arc;
use std::time::Instant;
use vellum_branch::{CephAccess, CephBranch, CephClient};
use vellum_vfs::{Branch, BranchFile, Name, OpenMode};

const BLOCK: usize = 64 << 10;
const THREADS: usize = 4;
const CLIENTS: [usize; 3] = [1, 2, 4];
const FILE: &CStr = c"clients";

fn failed(error: impl std::fmt::Display) -> Error {
    Error::other(error.to_string())
}

fn open(client: &Arc<CephClient>) -> Result<Arc<dyn BranchFile>> {
    let root = CephBranch::open(client, c"").map_err(failed)?.root();
    root.open_file(Name::new(FILE).map_err(failed)?, OpenMode::READ).map_err(failed)
}

/// Milliseconds until all blocks are read.
fn read(files: &[Arc<dyn BranchFile>], order: &[u64]) -> Result<f64> {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let part = order.len().div_ceil(THREADS);
        let threads: Vec<_> = order
            .chunks(part)
            .zip(files.iter().cycle())
            .map(|(blocks, file)| {
                scope.spawn(move || -> Result<()> {
                    let mut buf = vec![0; BLOCK];
                    for block in blocks {
                        let read = file.read_at(&mut buf, block * BLOCK as u64).map_err(failed)?;
                        if read != BLOCK {
                            return Err(failed("a short read"));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| failed("a panic"))?)
    })?;
    Ok(begin.elapsed().as_secs_f64() * 1e3)
}

fn main() -> Result<()> {
    let number =
        |at: usize, usual: u64| std::env::args().nth(at).and_then(|text| text.parse().ok()).unwrap_or(usual);
    let (mib, rounds) = (number(1, 128), number(2, 5));
    let connect = || CephClient::connect(CephAccess::default()).map_err(failed);
    {
        let client = connect()?;
        let root = CephBranch::open(&client, c"").map_err(failed)?.root();
        let file = root.create(Name::new(FILE).map_err(failed)?, 0o644).map_err(failed)?;
        for at in 0..mib {
            file.write_at(&vec![at as u8; 1 << 20], at << 20).map_err(failed)?;
        }
        client.sync().map_err(failed)?;
    }
    // The same order each time.
    let mut order: Vec<u64> = (0..(mib << 20) / BLOCK as u64).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    let mut all = vec![(Vec::new(), Vec::new()); CLIENTS.len()];
    for round in 0..rounds as usize {
        for turn in 0..CLIENTS.len() {
            let at = (round + turn) % CLIENTS.len();
            let clients = (0..CLIENTS[at]).map(|_| connect()).collect::<Result<Vec<_>>>()?;
            let files = clients.iter().map(open).collect::<Result<Vec<_>>>()?;
            all[at].0.push(read(&files, &order)?);
            all[at].1.push(read(&files, &order)?);
        }
    }
    for (count, (cold, warm)) in CLIENTS.iter().zip(&mut all) {
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            (times[times.len() / 2], times[0], times[times.len() - 1])
        };
        let ((cold, least, most), (warm, warm_least, warm_most)) = (median(cold), median(warm));
        println!(
            "{count} clients: missing {cold:.0} ms ({least:.0} to {most:.0}), once more {warm:.0} ms ({warm_least:.0} to {warm_most:.0})"
        );
    }
    // The library's threads may go on.
    std::process::exit(0)
}
