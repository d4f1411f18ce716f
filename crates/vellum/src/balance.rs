//! `vellum balance`: the kernel's page cache, shared among control groups by weight.

use crate::log;
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use vellum_balance::{Activity, Row};
use vellum_service::Failure;

/// Balances the groups below `group` once in each `interval`, so many times, or until it is ended.
pub fn run(
    group: Option<PathBuf>,
    interval: Duration,
    times: Option<u64>,
    show: bool,
) -> Result<(), Failure> {
    log::to_stderr()?;
    vellum_balance::run(group, interval, times, |rows| {
        if !show {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        out.write_all(table(rows).as_bytes())
            .and_then(|()| out.flush())
            .map_err(|e| Failure::system("cannot write to stdout").because(e))
    })
}

fn table(rows: &[Row]) -> String {
    let mut text = format!("{:>8}{:>12}{:>12}  {:<8}GROUP\n", "WEIGHT", "CACHE", "SHARE", "STATE");
    for row in rows {
        let state = match row.activity {
            Activity::Hungry => "hungry",
            Activity::Content => "content",
            Activity::Idle => "idle",
        };
        let [cache, share] = [row.cache, row.share].map(|bytes| format!("{} MiB", bytes >> 20));
        let _ = writeln!(text, "{:>8}{cache:>12}{share:>12}  {state:<8}{}", row.weight, row.name);
    }
    text.push('\n');
    text
}
