//! `cargo +nightly fuzz run request`: no bytes make the parser panic or read beyond them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for setxattr_ext in [false, true] {
        if let Ok(request) = vellum_fuse::request::parse(bytes, setxattr_ext) {
            // Everything that was parsed can be looked at.
            let _ = format!("{request:?}");
        }
    }
});
