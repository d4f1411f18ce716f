//! Questions to a service, through its mount.

use rustix::fs::lgetxattr;
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::path::Path;
use vellum_service::Failure;

/// Longest answer, in bytes (Linux's limit for an extended attribute).
const ANSWER_MAX: usize = 65_536;

/// Asks the service behind `path`.
pub(crate) fn ask(path: &Path, question: CString) -> Result<Vec<u8>, Failure> {
    answer(path, &question).map_err(|e| refused(path, e))
}

/// Asks the service behind `path`; an error is the kernel's or the service's.
pub(crate) fn answer(path: &Path, question: &CStr) -> Result<Vec<u8>, Errno> {
    let mut answer = vec![0; ANSWER_MAX];
    let len = lgetxattr(path, question, answer.as_mut_slice())?;
    answer.truncate(len);
    Ok(answer)
}

/// What is to be said of a question that was not answered.
pub(crate) fn refused(path: &Path, e: Errno) -> Failure {
    let shown = path.display();
    match e {
        Errno::NODATA | Errno::OPNOTSUPP => {
            Failure::input(format!("{shown}: not in a vellum mount of yours; give a path in one"))
        }
        Errno::NOTCONN => {
            Failure::system(format!("{shown}: the mount's service has died; run vellum umount on it"))
        }
        e => Failure::input(format!("{shown}")).because(e),
    }
}

/// Reads an answer in JSON.
pub(crate) fn read<T: serde::de::DeserializeOwned>(answer: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(answer).map_err(|_| unreadable())
}

/// What to say of an answer that makes no sense.
pub(crate) fn unreadable() -> Failure {
    Failure::system("the service's answer cannot be read; it is of another version")
}
