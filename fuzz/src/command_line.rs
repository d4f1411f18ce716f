//! The command line of a mount program.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use vellum::options::argv::{Classic, is_subcommand, parse};
use vellum::options::tokenizer;

/// Any list of arguments, parted by NUL.
pub(crate) fn feed(bytes: &[u8]) -> bool {
    let args: Vec<OsString> =
        bytes.split(|byte| *byte == 0).map(|arg| OsString::from_vec(arg.to_vec())).collect();
    let _ = is_subcommand(&args);
    match parse(&args) {
        Ok(Classic::Mount(request)) => {
            for lower in &request.config.lowers {
                let path =
                    lower.directory().map(|path| path.as_os_str().as_encoded_bytes()).unwrap_or_default();
                assert_eq!(tokenizer::unescape(&tokenizer::escape(path)), path);
            }
            true
        }
        Ok(_) => false,
        Err(refused) => {
            assert!(!refused.to_string().chars().any(char::is_control));
            false
        }
    }
}
