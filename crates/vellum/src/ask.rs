//! Questions to a service, through its mount.

use rustix::fs::lgetxattr;
use rustix::io::Errno;
use std::ffi::CString;
use std::path::Path;
use vellum_service::Failure;

/// Longest answer, in bytes (Linux's limit for an extended attribute).
const ANSWER_MAX: usize = 65_536;

/// Asks the service behind `path`.
pub(crate) fn ask(path: &Path, question: CString) -> Result<Vec<u8>, Failure> {
    let shown = path.display();
    let mut answer = vec![0; ANSWER_MAX];
    match lgetxattr(path, question.as_c_str(), answer.as_mut_slice()) {
        Ok(len) => {
            answer.truncate(len);
            Ok(answer)
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => {
            Err(Failure::input(format!("{shown}: not in a vellum mount of yours; give a path in one")))
        }
        Err(Errno::NOTCONN) => {
            Err(Failure::system(format!("{shown}: the mount's service has died; run vellum umount on it")))
        }
        Err(e) => Err(Failure::input(format!("{shown}")).because(e)),
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
