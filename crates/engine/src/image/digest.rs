//! Digests: what is read must be what was promised.

use oci_spec::image::Digest;
use sha2::{Digest as _, Sha256};
use std::fmt::Write;
use std::io::{self, Read};
use std::str::FromStr;

/// The hexadecimal digits of a sha256 digest in text, checked; nothing else can be part of a path.
pub(super) fn sha256(text: &str) -> Result<String, String> {
    let digest = Digest::from_str(text).map_err(|e| format!("digest {text}: {e}"))?;
    digest_of(&digest)
}

/// The hexadecimal digits of a digest that has been read already; sha256 alone is known.
pub(super) fn digest_of(digest: &Digest) -> Result<String, String> {
    match digest.algorithm() {
        oci_spec::image::DigestAlgorithm::Sha256 => Ok(digest.digest().to_owned()),
        other => {
            Err(format!("digest {digest}: algorithm {other} is not known here; make the image with sha256"))
        }
    }
}

/// The digest of bytes.
pub(super) fn of(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A reader that digests what goes through it.
pub(super) struct Digesting<R> {
    source: R,
    state: Sha256,
    len: u64,
}

impl<R: Read> Digesting<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, state: Sha256::new(), len: 0 }
    }

    /// Reads what is left; the digest of all, and how much it was.
    pub(super) fn finish(mut self) -> io::Result<(String, u64)> {
        io::copy(&mut self, &mut io::sink())?;
        Ok((hex(&self.state.finalize()), self.len))
    }
}

impl<R: Read> Read for Digesting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.source.read(buffer)?;
        self.state.update(buffer.get(..len).unwrap_or_default());
        self.len += len as u64;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn only_sha256_in_digits() {
        assert_eq!(sha256(&format!("sha256:{EMPTY}")).unwrap(), EMPTY);
        let long = format!("sha256:{EMPTY}0");
        let other = format!("sha512:{EMPTY}{EMPTY}");
        for bad in
            ["", "sha256:", "sha256:../../x", EMPTY, &long, &other, &format!("sha256:{}", "A".repeat(64))]
        {
            assert!(sha256(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_goes_through_is_digested() {
        let mut reader = Digesting::new(&b"abc"[..]);
        let mut one = [0];
        reader.read_exact(&mut one).unwrap();
        let (digest, len) = reader.finish().unwrap();
        assert_eq!((digest, len), (of(b"abc"), 3));
        assert_eq!(of(b""), EMPTY);
    }
}
