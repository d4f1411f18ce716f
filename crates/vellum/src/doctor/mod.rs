//! `vellum doctor`: what this host offers, and what stands in the way, one line for each subject with its remedy.

mod check;
mod engines;
mod host;
mod stores;
mod system;

use crate::json;
pub use check::{Check, Grade};
use host::Host;
use std::fmt::Write;
use vellum_service::Failure;

/// Looks at everything. The second value says whether there is a problem.
pub fn run(as_json: bool) -> Result<(String, bool), Failure> {
    let host = Host::detect();
    let mut checks = system::checks(&host);
    let (engines, stores) = engines::checks(&host);
    checks.extend(engines);
    checks.extend(stores::checks(&stores));
    checks.extend(stores::mounts()?);
    let any = checks.iter().any(|check| check.grade == Grade::Problem);
    let text = if as_json { json::pretty(&checks)? } else { text(&checks) };
    Ok((text, any))
}

fn text(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.subject.len()).max().unwrap_or_default();
    let mut text = String::new();
    for Check { subject, grade, finding, remedy } in checks {
        let grade = match grade {
            Grade::Ok => "ok",
            Grade::Note => "note",
            Grade::Problem => "PROBLEM",
        };
        let remedy = remedy.as_ref().map_or(String::new(), |remedy| format!("; {remedy}"));
        let _ = writeln!(text, "{grade:<8} {subject:<width$}  {finding}{remedy}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_one_line_with_its_remedy() {
        let checks =
            [Check::ok("kernel", "Linux 6.18"), Check::problem("fuse", "no /dev/fuse", "run modprobe fuse")];
        assert_eq!(
            text(&checks),
            "ok       kernel  Linux 6.18\nPROBLEM  fuse    no /dev/fuse; run modprobe fuse\n"
        );
    }
}
