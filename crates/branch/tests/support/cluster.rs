//! A Ceph cluster for a test.

use std::ffi::CString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vellum_branch::{CephBranch, CephClient};
use vellum_vfs::{Branch, Name};

/// Set in a process that has a cluster beside it.
const INSIDE: &str = "VELLUM_TEST_CEPH";
/// The exit status of scripts/ceph-local where something is not installed.
const MISSING: i32 = 77;
/// Seconds that a cluster may take with all its cases. A client of a cluster that does not answer waits for ever.
const LONGEST: &str = "300";

/// Runs `cases` beside a cluster: this program starts one, and in it itself again for the test named `test`. Skipped, with a line that
/// says why, where Ceph is not installed.
pub fn beside_a_cluster(test: &str, cases: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return cases();
    }
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/ceph-local");
    let this = std::env::current_exe().expect("this program");
    let output = Command::new("timeout")
        .args(["--kill-after=5", LONGEST])
        .arg(script)
        .arg(this)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("run the script");
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(MISSING) {
        println!("SKIPPED: {}", said.trim());
        return;
    }
    let report = String::from_utf8_lossy(&output.stdout);
    // Results beside the cluster are not counted as those of this process; what was skipped there, was.
    for line in report.lines().chain(said.lines()) {
        println!("{}{line}", if line.starts_with("SKIPPED: ") { "" } else { "| " });
    }
    assert!(output.status.success() && report.contains("1 passed"), "beside a cluster: {}", output.status);
}

/// A new directory of CephFS.
pub fn directory(client: &Arc<CephClient>) -> Arc<dyn Branch> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let path = CString::new(format!("fixture-{}", NEXT.fetch_add(1, Ordering::Relaxed))).expect("no NUL");
    let top = CephBranch::open(client, c"").expect("the filesystem's root");
    top.root().make_dir(Name::new(&path).expect("a name"), 0o755).expect("a directory");
    CephBranch::open(client, &path).expect("open it as a branch")
}
