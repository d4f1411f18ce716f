//! `vellum weight`: another share of the service's cache for a mount that there is.

use crate::query::{answer, refused};
use rustix::io::Errno;
use std::ffi::CString;
use std::path::Path;
use vellum_service::Failure;
use vellum_service::config::WEIGHTS;
use vellum_service::instance::{INSTANCE, WEIGHT};

/// A weight that was given as text.
pub(crate) fn parse(option: &str, text: &str) -> Result<u16, Failure> {
    let weight = text.parse().ok().filter(|weight| WEIGHTS.contains(weight));
    weight.ok_or_else(|| {
        let (low, high) = (WEIGHTS.start(), WEIGHTS.end());
        Failure::input(format!("{option} {text}: give a number from {low} to {high}; 100 is the usual one"))
    })
}

/// Gives the mount that `path` is in another weight.
pub fn run(path: &Path, weight: &str) -> Result<(), Failure> {
    let weight = parse("weight", weight)?;
    let question = CString::new(format!("{WEIGHT}{weight}"))
        .map_err(|e| Failure::system("a question to the service").because(e))?;
    match answer(path, &question) {
        Ok(_) => Ok(()),
        // Other filesystems say that, too.
        Err(Errno::OPNOTSUPP) if answer(path, INSTANCE).is_ok() => Err(Failure::input(format!(
            "{}: the mount has no cache, where alone weights count; mount it with cache=shared or cache=immutable",
            path.display()
        ))),
        Err(e) => Err(refused(path, e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_as_those_of_control_groups() {
        assert_eq!((parse("weight", "1").unwrap(), parse("weight", "10000").unwrap()), (1, 10_000));
        for bad in ["0", "10001", "-1", "", "x"] {
            let failure = parse("weight", bad).unwrap_err();
            assert!(failure.exit_status() == 2 && failure.to_string().contains("1 to 10000"), "{failure}");
        }
    }
}
