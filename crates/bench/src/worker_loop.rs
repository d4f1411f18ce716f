//! A worker: this program again, which does what it is told by a [`Job`].

use crate::balance;
use crate::failure::{Failure, Result, While};
use crate::interrupt;
use crate::task_process;
use crate::tenant_cpus::CpuAffinity;
use crate::workload::job::{FAILED, GO, Job, READY, RESULT};
use crate::workload::neighbour::Neighbour;
use crate::workload::{chroot, fxmark, names, probe, rocksdb, server};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::{BufRead, Write};

/// The worker's side. A failure goes to `output`, for whoever started it.
pub fn serve(input: impl BufRead, mut output: impl Write) -> Result<()> {
    // A worker that goes on after its master was killed would keep a mount busy.
    set_parent_process_death_signal(Some(Signal::KILL)).doing(|| "asking to be killed with the parent")?;
    let done = perform(input, &mut output);
    if let Err(failure) = &done {
        writeln!(output, "\n{FAILED}{failure}").doing(|| "reporting")?;
    }
    done
}

fn perform(mut input: impl BufRead, output: &mut impl Write) -> Result<()> {
    let mut line = String::new();
    input.read_line(&mut line).doing(|| "reading the job")?;
    let mut wait = || {
        // The newline first: a test harness may have begun a line.
        writeln!(output, "\n{READY}").and_then(|()| output.flush()).doing(|| "saying that all is ready")?;
        let mut word = String::new();
        input.read_line(&mut word).doing(|| "waiting for the word")?;
        if word.trim_end() == GO { Ok(()) } else { Err(Failure::new("called off")) }
    };
    match serde_json::from_str(&line).doing(|| "the job")? {
        Job::Task(part) => {
            interrupt::watch()?;
            let sample = task_process::play(&part, |passes| {
                wait().and_then(|()| task_process::measure(&part, passes))
            })?;
            report(output, &sample)?;
            // What ends with it belongs to no measurement: the master says when.
            input.read_line(&mut line).map(drop).doing(|| "waiting for the end")
        }
        Job::Probe { root } => {
            probe::library(&root)?;
            wait()
        }
        Job::Names { kind, dir, files } => {
            let paths = names::prepare(&dir, files)?;
            wait()?;
            names::work(kind, &paths)
        }
        Job::FxMark { kind, path, operations } => {
            let file = fxmark::prepare(kind, &path)?;
            wait()?;
            fxmark::work(kind, &file, operations)
        }
        Job::Neighbour { kind, root, scale, cpus } => {
            let _bound = bound(&cpus)?;
            let neighbour = Neighbour::prepare(kind, &root, scale)?;
            wait()?;
            match neighbour.run_forever()? {}
        }
        Job::Load { load, directory, bytes, seconds } => {
            wait()?;
            report(output, &balance::measure(load, &directory, bytes, seconds)?)
        }
        Job::Serve { root, port } => {
            server::enter(&root)?;
            wait()?;
            Err(server::exec_program(port))
        }
        Job::Inside(inside) => {
            let command = chroot::enter(&inside)?;
            wait()?;
            Err(chroot::exec_program(command))
        }
        Job::RocksDb { root, number, work, cpus } => {
            let _bound = bound(&cpus)?;
            wait()?;
            Err(rocksdb::exec_program(&root, number, work))
        }
    }
}

fn report(output: &mut impl Write, found: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string(found).doing(|| "a result")?;
    writeln!(output, "\n{RESULT}{text}").and_then(|()| output.flush()).doing(|| "reporting")
}

/// Binds this thread to some processors, if any are named.
fn bound(cpus: &[usize]) -> Result<Option<CpuAffinity>> {
    if cpus.is_empty() { Ok(None) } else { CpuAffinity::to(cpus).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not a test: what [`own`](crate::workload::worker) starts in tests.
    #[test]
    #[ignore = "it waits for a job on stdin"]
    fn as_a_process() {
        serve(std::io::stdin().lock(), std::io::stdout()).unwrap();
    }
}
