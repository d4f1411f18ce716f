//! Directories for unfinished work of upper layers in stores on zoned devices.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directory in a store where those for unfinished work are, of mounts that name none.
pub const WORK: &str = ".work";

/// Longest name of a directory for unfinished work, and of a piece of a longer one.
const NAME_MAX: usize = 255;
const PIECE: usize = 250;
/// Where those are whose names are longer.
const LONG: &str = "%long";

/// The directory for unfinished work of an upper layer in a store: one for each, that lies in no other one's. Slashes become hyphens, and what could be
/// taken for them is escaped. A name that would be too long becomes several.
#[must_use]
pub fn work_of(upper: &Path) -> PathBuf {
    let mut name = Vec::new();
    for part in upper.components() {
        if !name.is_empty() {
            name.push(b'-');
        }
        for byte in part.as_os_str().as_bytes() {
            match byte {
                b'-' => name.extend(b"%2d"),
                b'%' => name.extend(b"%25"),
                byte => name.push(*byte),
            }
        }
    }
    if name.len() <= NAME_MAX {
        return Path::new(WORK).join(OsStr::from_bytes(&name));
    }
    let mut path = Path::new(WORK).join(LONG);
    let last = (name.len() - 1) / PIECE;
    for (number, piece) in name.chunks(PIECE).enumerate() {
        let mark: &[u8] = if number == last { b"=" } else { b"+" };
        path.push(OsStr::from_bytes(&[mark, piece].concat()));
    }
    path
}

/// What that was before: upper layers `a/b` and `a-b` had one.
pub(super) fn former_work_of(upper: &Path) -> PathBuf {
    let name: Vec<&[u8]> = upper.components().map(|part| part.as_os_str().as_bytes()).collect();
    Path::new(WORK).join(OsStr::from_bytes(&name.join(&b'-')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upper_layers_have_distinct_work_directories() {
        let works = |dir: &str| work_of(Path::new(dir)).to_str().unwrap().to_owned();
        assert_eq!((works("a-b"), works("a%2db")), (".work/a%2db".to_owned(), ".work/a%252db".to_owned()));
        let long = |len: usize| format!("{}/{}", "x".repeat(200), "-".repeat(len));
        let all: Vec<PathBuf> = (0..150).map(|len| work_of(Path::new(&long(len)))).collect();
        for (number, one) in all.iter().enumerate() {
            assert!(one.iter().all(|name| name.len() <= NAME_MAX), "{one:?}");
            assert!(
                all.iter().skip(number + 1).all(|other| !one.starts_with(other) && !other.starts_with(one)),
                "{one:?}"
            );
        }
        assert_eq!(works("a/b"), ".work/a-b");
        assert_eq!(former_work_of(Path::new("a-b/c")), Path::new(".work/a-b-c"));
    }
}
