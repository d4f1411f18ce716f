//! What the kernel sends to a service.

/// No bytes make the parser panic or read beyond them, and everything that was parsed can be looked at.
pub(crate) fn feed(bytes: &[u8]) -> bool {
    let parsed = [false, true].map(|setxattr_ext| {
        let request = vellum_fuse::request::parse(bytes, setxattr_ext);
        request.is_ok_and(|request| !format!("{request:?}").is_empty())
    });
    parsed.contains(&true)
}
