//! A directory of checkpoints: each is whole, or is not there.
//!
//! One that is being made lies beside the others under a name of its own, locked by its maker, and gets its name when all of it is on disk.
//! One that it replaces changes places with it in the same step, and is removed afterwards.

use super::record::Record;
use crate::container::{own, plain_name, random_name};
use crate::own::Owned;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use vellum_service::Failure;
use vellum_sys::remove_tree;

/// What one is called that is being made, or removed.
const UNFINISHED: &str = ".unfinished-";

/// A directory of checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    dir: PathBuf,
}

/// A checkpoint that is being made. What is not finished is removed.
#[derive(Debug)]
pub(crate) struct Unfinished {
    owned: Owned,
    place: PathBuf,
}

/// A checkpoint in a list.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// What it says of itself, or why that cannot be read.
    pub record: Result<Record, Failure>,
}

impl Checkpoints {
    /// The ones in a directory that is there. `option`: what named it.
    pub fn open(option: &str, dir: &Path) -> Result<Self, Failure> {
        let shown = dir.display();
        let named = if option.is_empty() { format!("{shown}") } else { format!("option {option} {shown}") };
        let dir = dir.canonicalize().map_err(|e| Failure::input(named).because(e))?;
        own(option, &dir)?;
        Ok(Self { dir })
    }

    /// As [`Self::open`]; the directory is made if it is not there.
    pub(crate) fn make(option: &str, dir: &Path) -> Result<Self, Failure> {
        let made = fs::DirBuilder::new().mode(0o700).create(dir);
        match made {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                let failure = Failure::input(format!("option {option} {}", dir.display())).because(e);
                Err(failure.remedy("give a directory that can be written"))
            }
            _ => Self::open(option, dir),
        }
    }

    /// The one that a path names.
    pub(crate) fn of(path: &Path) -> Result<(Self, String), Failure> {
        let bad = || {
            Failure::input(format!(
                "{}: no checkpoint; give DIR/NAME as vellum checkpoints list DIR shows",
                path.display()
            ))
        };
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(bad)?;
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok((Self::open("", above)?, name.to_owned()))
    }

    /// Removes what killed commands have left.
    pub(crate) fn sweep(&self) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes())
                && let Ok(Some(dead)) = Owned::existing(&entry.path())
                && let Err(e) = remove_tree(dead.path())
            {
                tracing::warn!("{}: cannot be removed: {e}", entry.path().display());
            }
        }
    }

    /// A new one, or one that is to take an older one's place.
    pub(crate) fn begin(&self, name: &str) -> Result<Unfinished, Failure> {
        let place = self.dir.join(plain_name("--name", name)?);
        let path = self.dir.join(format!("{UNFINISHED}{}", random_name()?));
        let owned = Owned::make(&path).map_err(|e| Failure::at(&path, e))?;
        let owned = owned.ok_or_else(|| Failure::system(format!("{}: somebody has it", path.display())))?;
        Ok(Unfinished { owned, place })
    }

    /// All that are whole, by name.
    pub fn list(&self) -> Result<Vec<Listed>, Failure> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(|e| Failure::at(&self.dir, e))? {
            let entry = entry.map_err(|e| Failure::at(&self.dir, e))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') && entry.path().join(super::record::NAME).exists() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names
            .into_iter()
            .map(|name| Listed { record: Record::read(&self.dir.join(&name)), name })
            .collect())
    }

    /// Where one is, and what it says of itself.
    pub fn find(&self, name: &str) -> Result<(PathBuf, Record), Failure> {
        let path = self.path(name)?;
        let record = Record::read(&path)?;
        Ok((path, record))
    }

    /// Removes one: first its name is gone, then what is in it.
    pub fn delete(&self, name: &str) -> Result<(), Failure> {
        let path = self.path(name)?;
        let away = self.dir.join(format!("{UNFINISHED}{}", random_name()?));
        fs::rename(&path, &away).map_err(|e| Failure::at(&path, e))?;
        sync(&self.dir)?;
        remove_tree(&away).map_err(|e| Failure::at(&away, e))
    }

    fn path(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.dir.join(plain_name("checkpoint", name)?);
        if !path.join(super::record::NAME).exists() {
            return Err(Failure::input(format!(
                "{}: no checkpoint of this name; vellum checkpoints list {} shows all",
                path.display(),
                self.dir.display()
            )));
        }
        own("", &path)?;
        Ok(path)
    }
}

fn sync(dir: &Path) -> Result<(), Failure> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| Failure::at(dir, e))
}

impl Unfinished {
    /// Where it grows.
    pub(crate) fn dir(&self) -> &Path {
        self.owned.path()
    }

    /// Gives it its name; all of it is on disk.
    pub(crate) fn finish(self) -> Result<PathBuf, Failure> {
        let (path, place) = (self.owned.path(), &self.place);
        let exchanged = match renameat_with(CWD, path, CWD, place, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {
                renameat_with(CWD, path, CWD, place, RenameFlags::EXCHANGE)
                    .map_err(|e| Failure::at(place, e))?;
                true
            }
            renamed => renamed.map(|()| false).map_err(|e| Failure::at(place, e))?,
        };
        if let Some(above) = place.parent() {
            sync(above)?;
        }
        if exchanged {
            // What was there before; if that fails, a later command does it.
            if let Err(e) = remove_tree(path) {
                tracing::warn!("{}: cannot be removed: {e}", path.display());
            }
        }
        Ok(place.clone())
    }

    /// Takes it away.
    pub(crate) fn discard(self) {
        if let Err(e) = remove_tree(self.owned.path()) {
            tracing::warn!("{}: cannot be removed: {e}", self.owned.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn fill(unfinished: &Unfinished, text: &str) {
        fs::write(unfinished.dir().join(crate::checkpoint::record::NAME), text).unwrap();
    }

    #[test]
    fn each_is_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let store = Checkpoints::make("--to", &dir.path().join("all")).unwrap();
        let mode = fs::metadata(dir.path().join("all")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let names = || store.list().unwrap().into_iter().map(|one| one.name).collect::<Vec<_>>();
        let text = |name: &str| fs::read_to_string(store.dir.join(name).join("checkpoint.json")).unwrap();
        let first = store.begin("one").unwrap();
        fill(&first, "1");
        assert!(names().is_empty());
        first.finish().unwrap();
        assert_eq!(names(), ["one"]);
        // A later one that is given up, or whose maker dies, leaves it as it is.
        let second = store.begin("one").unwrap();
        fill(&second, "2");
        second.discard();
        let third = store.begin("one").unwrap();
        fill(&third, "3");
        let left = third.dir().to_owned();
        store.sweep();
        assert!(left.is_dir(), "its maker lives");
        drop(third);
        assert_eq!((names(), text("one").as_str()), (vec!["one".to_owned()], "1"));
        store.sweep();
        assert!(!left.exists());
        let last = store.begin("one").unwrap();
        fill(&last, "4");
        last.finish().unwrap();
        assert_eq!(text("one"), "4");
        assert_eq!(fs::read_dir(&store.dir).unwrap().count(), 1);
        store.delete("one").unwrap();
        assert_eq!(fs::read_dir(&store.dir).unwrap().count(), 0);
        assert_eq!(store.delete("one").unwrap_err().exit_status(), 2);
    }

    #[test]
    fn what_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let failure = Checkpoints::make("--to", dir.path()).unwrap_err();
        assert!(failure.exit_status() == 2 && failure.to_string().contains("chmod o-w"), "{failure}");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let store = Checkpoints::make("--to", dir.path()).unwrap();
        for bad in ["", "..", "a/b", ".unfinished-1"] {
            assert_eq!(store.begin(bad).unwrap_err().exit_status(), 2, "{bad}");
        }
    }
}
