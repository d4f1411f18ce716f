//! What Vellum has left on this host: layers that take blocks from others, mounts without a service.

use super::check::Check;
use super::engines::LayerStore;
use crate::mounts::{Choice, ask_all};
use vellum_service::Failure;
use vellum_service::layers::store::{layers, needs_lowers};

/// Stores whose engine would now read partial files without Vellum.
pub(super) fn checks(stores: &[LayerStore]) -> Vec<Check> {
    let mut checks = Vec::new();
    for LayerStore { path, is_ours } in stores {
        let subject = "store";
        let shown = path.display();
        let found = match layers(path) {
            Ok(Some(found)) => found,
            Ok(None) => continue,
            Err(e) => {
                checks.push(Check::note(subject, format!("{shown}: {e}")));
                continue;
            }
        };
        let partial = found.iter().filter(|layer| needs_lowers(&layer.upper)).count();
        checks.push(match partial {
            0 => Check::ok(subject, format!("{shown}: every layer is complete")),
            _ if *is_ours => Check::ok(
                subject,
                format!(
                    "{shown}: {partial} layers have partial files; \
                     before you switch back, run vellum flatten {shown}"
                ),
            ),
            _ => Check::problem(
                subject,
                format!("{shown}: {partial} layers have partial files, which its engine cannot read"),
                format!("run vellum flatten {shown}"),
            ),
        });
    }
    checks
}

/// Mounts that do not answer.
pub(super) fn mounts() -> Result<Vec<Check>, Failure> {
    const SUBJECT: &str = "mounts";
    let answers = ask_all(&Choice::default())?;
    let remedy = |shown: String| format!("run vellum umount --lazy {shown}");
    let mut checks = Vec::new();
    for point in &answers.silent {
        let shown = point.display().to_string();
        checks.push(Check::problem(SUBJECT, format!("{shown}: its service does not answer"), remedy(shown)));
    }
    for point in &answers.ended {
        let shown = point.display().to_string();
        checks.push(Check::problem(SUBJECT, format!("{shown}: its service has ended"), remedy(shown)));
    }
    if checks.is_empty() {
        let count = answers.all.len();
        checks.push(Check::ok(SUBJECT, format!("{count} of Vellum, all answer")));
    }
    Ok(checks)
}

#[cfg(test)]
mod tests {
    use super::super::check::Grade;
    use super::*;
    use rustix::fs::{XattrFlags, setxattr};

    #[test]
    fn a_store_with_partial_files_must_be_flattened_before_another_driver_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let upper = dir.path().join("overlay/a/diff");
        std::fs::create_dir_all(&upper).unwrap();
        for name in ["user.vellum.format", "user.vellum.lowers"] {
            if let Err(e) = setxattr(&upper, name, b"1", XattrFlags::empty()) {
                println!("SKIPPED: extended attributes of {}: {e}", upper.display());
                return;
            }
        }
        let grade = |is_ours| checks(&[LayerStore { path: dir.path().to_owned(), is_ours }]).remove(0).grade;
        assert_eq!(grade(false), Grade::Problem);
        assert_eq!(grade(true), Grade::Ok);
        std::fs::create_dir(dir.path().join("none")).unwrap();
        assert_eq!(checks(&[LayerStore { path: dir.path().join("none"), is_ours: false }]), []);
    }
}
