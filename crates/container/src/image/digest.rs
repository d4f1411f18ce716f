//! Digests: what is read must be what was promised.

use sha2::{Digest as _, Sha256, Sha384, Sha512};
use std::fmt::{self, Write};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// How a digest is made. These are the ones that other tools take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Sha256,
    Sha384,
    Sha512,
}

impl Algorithm {
    const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    /// Hexadecimal digits of one.
    const fn digits(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha384 => 96,
            Self::Sha512 => 128,
        }
    }

    pub(super) fn digest(self, bytes: &[u8]) -> Digest {
        let mut state = State::new(self);
        state.update(bytes);
        state.finish()
    }
}

/// A digest whose digits are checked, so that it can be part of a path.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Digest {
    pub(super) algorithm: Algorithm,
    digits: String,
}

impl Digest {
    /// Reads `ALGORITHM:DIGITS`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (name, digits) = text.split_once(':').unwrap_or((text, ""));
        let Some(algorithm) = Algorithm::ALL.into_iter().find(|one| one.name() == name) else {
            return Err(format!("digest {text:?}: not one by sha256, sha384 or sha512"));
        };
        let plain = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        if digits.len() != algorithm.digits() || !digits.bytes().all(plain) {
            let len = algorithm.digits();
            return Err(format!("digest {text:?}: not {len} digits of 0-9 and a-f"));
        }
        Ok(Self { algorithm, digits: digits.to_owned() })
    }

    /// Its digits, which differ in number from those by another algorithm: a name for what has this digest.
    pub(super) fn digits(&self) -> &str {
        &self.digits
    }

    /// Where a layout has the blob with this digest.
    pub(super) fn blob_path(&self) -> PathBuf {
        Path::new("blobs").join(self.algorithm.name()).join(&self.digits)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.digits)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

enum State {
    Sha256(Sha256),
    Sha384(Sha384),
    Sha512(Sha512),
}

impl State {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha256 => Self::Sha256(Sha256::new()),
            Algorithm::Sha384 => Self::Sha384(Sha384::new()),
            Algorithm::Sha512 => Self::Sha512(Sha512::new()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(state) => state.update(bytes),
            Self::Sha384(state) => state.update(bytes),
            Self::Sha512(state) => state.update(bytes),
        }
    }

    fn finish(self) -> Digest {
        let (algorithm, digits) = match self {
            Self::Sha256(state) => (Algorithm::Sha256, hex(&state.finalize())),
            Self::Sha384(state) => (Algorithm::Sha384, hex(&state.finalize())),
            Self::Sha512(state) => (Algorithm::Sha512, hex(&state.finalize())),
        };
        Digest { algorithm, digits }
    }
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
pub(super) struct DigestReader<R> {
    source: R,
    state: State,
}

impl<R: Read> DigestReader<R> {
    pub(super) fn new(source: R, algorithm: Algorithm) -> Self {
        Self { source, state: State::new(algorithm) }
    }

    /// Reads what is left; the digest of all.
    pub(super) fn finish(mut self) -> io::Result<Digest> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(self.state.finish())
    }
}

impl<R: Read> Read for DigestReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.source.read(buffer)?;
        self.state.update(buffer.get(..len).unwrap_or_default());
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const EMPTY_384: &str =
        "38b060a751ac96384cd9327eb1b1e36a21fdb71114be07434c0cc7bf63f6e1da274edebfe76f65fbd51ad2f14898b95b";

    #[test]
    fn digests_are_names_and_digits() {
        let good = Digest::parse(&format!("sha256:{EMPTY}")).unwrap();
        assert_eq!((good.algorithm, good.digits()), (Algorithm::Sha256, EMPTY));
        assert_eq!(good.blob_path(), Path::new("blobs/sha256").join(EMPTY));
        for bad in ["", "sha256:", "sha256:../../x", EMPTY, "md5:d41d8cd98f00b204e9800998ecf8427e"] {
            assert!(Digest::parse(bad).is_err(), "{bad}");
        }
        for bad in [format!("{EMPTY}0"), "A".repeat(64), format!("{EMPTY}{EMPTY}")] {
            assert!(Digest::parse(&format!("sha256:{bad}")).is_err(), "{bad}");
        }
        assert!(Digest::parse(&format!("sha512:{EMPTY}{EMPTY}")).is_ok());
    }

    #[test]
    fn the_reader_digests_the_bytes_read() {
        for algorithm in Algorithm::ALL {
            let mut reader = DigestReader::new(&b"abc"[..], algorithm);
            let mut one = [0];
            reader.read_exact(&mut one).unwrap();
            let digest = reader.finish().unwrap();
            assert_eq!(digest, algorithm.digest(b"abc"));
            assert_eq!(Digest::parse(&digest.to_string()), Ok(digest));
        }
        assert_eq!(Algorithm::Sha256.digest(b"").digits(), EMPTY);
        assert_eq!(Algorithm::Sha384.digest(b"").digits(), EMPTY_384);
    }
}
