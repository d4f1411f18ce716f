//! What the kernel sends to a service.

/// No bytes make the parser panic or read beyond them, and everything that was parsed can be looked at.
pub(crate) fn feed(bytes: &[u8]) {
    for setxattr_ext in [false, true] {
        if let Ok(request) = vellum_fuse::request::parse(bytes, setxattr_ext) {
            let _ = format!("{request:?}");
        }
    }
}
