//! Processors are kept awake while requests come in numbers, where that is permitted, and not a moment longer.

use crate::cases::checkpoint::support::eventually;
use crate::harness::outcome::{DuringContext, Outcome, ensure, skip};
use crate::harness::{Cx, Mount, MountKind, shell};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const DEVICE: &str = "/dev/cpu_dma_latency";

/// The service of a mount, and what it says about processors.
fn asked(mount: &Mount) -> Outcome<(String, String)> {
    let MountKind::Program(program, true) = MountKind::under_test() else {
        return skip("only Vellum can be asked");
    };
    let said = shell::run(Command::new(program).args(["inspect", "--json"]).arg(mount.root()))?;
    let all: Value = serde_json::from_str(&said).doing("inspect --json")?;
    let instance = &all["instance"];
    Ok((instance["pid"].to_string(), instance["processors"].as_str().unwrap_or("?").to_owned()))
}

fn holds(service: &str) -> Outcome<bool> {
    let open = fs::read_dir(format!("/proc/{service}/fd"))?.flatten();
    Ok(open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|file| file == Path::new(DEVICE)))
}

/// The service's processor time in ticks of 10 ms.
fn spent(service: &str) -> Outcome<u64> {
    let stat = fs::read_to_string(format!("/proc/{service}/stat"))?;
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().doing("a service's stat")).sum()
}

/// Asks for names that nobody has asked for, a request each; whether the device was held at some time meanwhile.
fn storm(mount: &Mount, service: &str, word: &str, limit: Duration) -> Outcome<bool> {
    let begin = Instant::now();
    let mut number = 0;
    while begin.elapsed() < limit {
        for _ in 0..200 {
            number += 1;
            ensure!(
                fs::symlink_metadata(mount.path(&format!("{word}-{number}"))).is_err(),
                "a name is there"
            );
        }
        if holds(service)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn quiet(service: &str) -> Outcome {
    eventually("the device is not held without requests", || Ok(!holds(service)?))?;
    // The watchdog goes to sleep, on a busy machine later.
    eventually("at most one tick of 10 ms in a second without requests", || {
        let before = spent(service)?;
        std::thread::sleep(Duration::from_secs(1));
        Ok(spent(service)? - before <= 1)
    })
}

pub(super) fn kept_awake(cx: &Cx) -> Outcome {
    let permitted = fs::File::options().write(true).open(DEVICE).is_ok();
    for (number, options) in
        [&[][..], &["keep_awake=on"], &["keep_awake"], &["keep_awake=off"]].iter().enumerate()
    {
        let layers = cx.layers(&format!("l{number}"), 1)?;
        let mut mount = Mount::new(MountKind::under_test(), cx.profile, &layers, options)?;
        let (service, said) = asked(&mount)?;
        let expected = said.starts_with("kept awake");
        ensure!(!expected || permitted, "it says: {said}");
        match options.first() {
            Some(&"keep_awake=off") => {
                ensure!(said == "left to sleep: as asked for", "with {options:?}: {said}")
            }
            Some(_) => ensure!(expected == permitted, "with {options:?}: {said}"),
            None => ensure!(expected || !permitted || said.contains("more than 4"), "by default: {said}"),
        }
        let limit = Duration::from_secs(if expected { 30 } else { 1 });
        let held = storm(&mount, &service, "storm", limit)?;
        ensure!(held == expected, "held: {held}, with {options:?}; it says: {said}");
        quiet(&service)?;
        // Again, after it has let go.
        if expected && options.is_empty() {
            ensure!(storm(&mount, &service, "again", limit)?, "not held a second time");
            quiet(&service)?;
        }
        mount.unmount()?;
    }
    Ok(())
}
