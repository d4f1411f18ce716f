//! Writes past the kernel's page cache, and readers who go through it.

use super::filled;
use crate::harness::outcome::{Outcome, ensure};
use crate::harness::{Cx, Profile, shell, skip, source_root};
use std::fs;
use std::process::Command;

/// Writes by each of the ways.
const WRITES: &str = "500";

pub(super) fn asynchronous(cx: &Cx) -> Outcome {
    if !shell::have("gcc") {
        return skip("no gcc: run make deps");
    }
    let program = cx.dir.join("direct-async");
    let source = source_root().join("tests/programs/direct-async.c");
    shell::run(Command::new("gcc").args(["-O2", "-pthread", "-o"]).arg(&program).arg(source))?;
    let (_layers, mut mount) = filled(cx, |dir| {
        fs::write(dir.join("small"), [0; 16 << 10])?;
        Ok(fs::write(dir.join("partial"), vec![0; 2 << 20])?)
    })?;
    // Of a whole file in passthrough nothing comes here.
    let whole = cx.profile != Some(Profile::Passthrough);
    let files = if whole { &["small", "partial"][..] } else { &["partial"] };
    let mut refused = 0;
    for file in files {
        for way in ["aio", "uring"] {
            let output = Command::new(&program)
                .args([way, mount.path(file).to_string_lossy().as_ref(), WRITES])
                .output()?;
            let said = String::from_utf8_lossy(&output.stdout);
            println!("{file} {way}: {said}{}", String::from_utf8_lossy(&output.stderr));
            match output.status.code() {
                Some(77) => refused += 1,
                code => ensure!(code == Some(0), "{file}, {way}: {} {said}", output.status),
            }
        }
    }
    mount.unmount()?;
    if refused == 2 * files.len() {
        skip("neither io_submit nor io_uring are permitted here")
    } else {
        Ok(())
    }
}
