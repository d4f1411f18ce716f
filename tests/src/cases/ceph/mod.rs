//! Lower layers on CephFS, in a cluster of its own on this machine: they show what local copies of them show, what goes wrong is said,
//! and what the cluster goes through is waited for.

mod bench;
mod cache_handover;
mod checkpoint_uppers;
mod checkpoints;
pub(in crate::cases) mod cluster;
mod containers;
mod failures;
mod file_size;
mod forget;
mod images;
mod loans;
mod metadata_cache;
mod settings;
mod snapshots;
mod trees;
mod upper;
mod writeback;

use super::Case;
use crate::harness::mount::only_vellum;
use crate::harness::outcome::ensure;
use crate::harness::{Cx, MountKind, Outcome, Stop, shell, skip, source_root};
use crate::runner::child::note;
use cluster::Cluster;
use std::process::Command;
use std::time::Instant;

pub(super) const CASES: &[Case] = &[Case::once("ceph", 900, ceph), Case::once("demo/tenants", 600, demo)];

/// The part that tests nothing, and is run where VELLUM_MEASURE is set.
const MEASURED: &str = "behind-measured";

/// A part of the case.
type Part = fn(&Cx, &mut Cluster) -> Outcome;

/// In this order: what is done to the cluster comes last.
const PARTS: &[(&str, Part)] = &[
    ("as-local", trees::as_local),
    ("changed", trees::changed),
    ("large-file", trees::large_file),
    ("lent", loans::lent),
    ("lent-mapped", loans::mapped),
    ("warm", cache_handover::warm),
    ("read-past", cache_handover::read_past),
    ("refused", failures::refused),
    ("snapshots", snapshots::layered),
    ("snapshots-known", snapshots::known),
    ("long-links", snapshots::long_links),
    ("pool", trees::pool),
    ("pool-settings", settings::settings),
    ("successor", trees::successor),
    ("successor-waits", trees::successor_waits),
    ("upper-changed", upper::changed),
    ("upper-large-file", upper::large_file),
    ("upper-forgotten", forget::forgotten),
    ("upper-moved", upper::moved),
    ("upper-pool", upper::pool),
    ("upper-killed", upper::killed),
    ("upper-removed", upper::removed),
    ("upper-quota", upper::quota),
    ("upper-file-size", file_size::file_size),
    ("upper-expelled", upper::expelled),
    ("behind-killed", writeback::killed),
    ("behind-changing", writeback::changing),
    ("behind-synced", writeback::synced),
    ("behind-limits", writeback::limits),
    ("behind-quota", writeback::quota),
    ("behind-expelled", writeback::expelled),
    ("behind-pool", writeback::pool),
    ("behind-tampered", writeback::tampered),
    (MEASURED, writeback::measured),
    ("run", containers::run),
    ("counted-starts", containers::counted),
    ("known-counted", metadata_cache::counted),
    ("known-changed", metadata_cache::changed),
    ("image-layouts", images::layouts),
    ("checkpoints", checkpoints::checkpoints),
    ("kept-uppers", checkpoint_uppers::kept),
    ("flatten", images::flatten),
    ("bench", bench::compared),
    ("bench-tenants", bench::tenants),
    ("storage-stopped", failures::storage_stopped),
    ("others-answered", failures::others_answered),
    ("server-restarted", failures::server_restarted),
    ("expelled", failures::expelled),
    // A client that was killed is waited for by a metadata server that starts.
    ("bench-given-up", bench::given_up),
    // These leave clients, which the cluster waits a minute for.
    ("bench-ended", bench::ended),
    ("bench-away", bench::away),
];

/// All parts beside one cluster: it takes longer to start than most of them.
fn ceph(cx: &Cx) -> Outcome {
    only_vellum("cannot reach a cluster")?;
    let mut cluster = Cluster::start()?;
    let mut failed = Vec::new();
    let chosen = std::env::var("VELLUM_TEST_PARTS").unwrap_or_default();
    let measures = std::env::var_os("VELLUM_MEASURE").is_some();
    let is_chosen =
        |name: &str| chosen.split(',').any(|part| name.contains(part)) && (measures || name != MEASURED);
    for (name, part) in PARTS.iter().filter(|(name, _)| is_chosen(name)) {
        let begin = Instant::now();
        let dir = cx.dir.join(name);
        std::fs::create_dir_all(&dir)?;
        let outcome = part(&Cx { dir, profile: None }, &mut cluster);
        println!("{name}: {outcome:?} ({} ms)", begin.elapsed().as_millis());
        match outcome {
            Ok(()) => note("ok", name, ""),
            Err(Stop::Skip(why)) => note("skip", name, &why),
            Err(Stop::Fail(why)) => {
                note("fail", name, &why);
                failed.push(*name);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { crate::harness::fail(failed.join(", ")) }
}

/// What `make demo-ceph` shows, it shows to its end.
fn demo(cx: &Cx) -> Outcome {
    let MountKind::Program(vellum, _) = MountKind::under_test() else { return skip("no program") };
    let tools = ["ceph-mon", "ceph-mgr", "ceph-osd", "ceph-mds", "ceph-fuse", "busybox", "unshare"];
    if let Some(missing) = tools.into_iter().find(|tool| !shell::have(tool)) {
        return skip(format!("{missing} is missing: run make deps"));
    }
    let mut command = Command::new(source_root().join("scripts/demo-ceph"));
    let said = shell::run(command.env("VELLUM", vellum).env("TMPDIR", &cx.dir))?;
    ensure!(said.contains("10. A container moves"), "{said}");
    Ok(())
}
