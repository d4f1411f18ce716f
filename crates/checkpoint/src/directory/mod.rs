//! A directory of checkpoints: each is whole, or is not there.
//!
//! One that is being made lies beside the others under a name of its own, locked by its maker, and gets its
//! name when all of it is on disk. One that it replaces changes places with it in the same step, and is
//! removed afterwards. Each is one object in a `file`, and a record beside it. `removal` says how one goes.

mod file;
mod removal;

use self::file::{DirectorySink, OBJECT};
use self::removal::remove;
use super::chain;
use super::object::{
    ByteSink, FileSource, ObjectInfo, ObjectReader, Parent, ParentGranules, WriteOptions, from_files,
};
use super::options::CheckpointOptions;
use super::pace::Pace;
use super::record::{CheckpointEntry, Record};
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vellum_container::{check_owner, plain_name, random_name};
use vellum_pool::locked_dir::LockedDir;
use vellum_service::Failure;
use vellum_sys::wait_for;

/// What one is called that is being made, or removed.
const UNFINISHED: &str = ".unfinished-";
/// How long another command may take to give a name, with all that is written to the disk for it.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    dir: PathBuf,
}

/// A checkpoint that is being made. What is not finished is removed.
#[derive(Debug)]
struct PartialCheckpoint {
    owned: LockedDir,
    place: PathBuf,
}

impl Directory {
    /// The ones in a directory that is there. `option`: what named it.
    pub(super) fn open(option: &str, dir: &Path) -> Result<Self, Failure> {
        let display = dir.display();
        let named =
            if option.is_empty() { format!("{display}") } else { format!("option {option} {display}") };
        let dir = dir.canonicalize().map_err(|e| {
            let failure = Failure::input(named).because(e);
            failure.remedy("give a directory that vellum checkpoint --to has been given")
        })?;
        check_owner(option, &dir)?;
        Ok(Self { dir })
    }

    /// As [`Self::open`]; the directory is made if it is not there.
    pub(super) fn make(option: &str, dir: &Path) -> Result<Self, Failure> {
        let made = fs::DirBuilder::new().mode(0o700).create(dir);
        match made {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                let failure = Failure::input(format!("option {option} {}", dir.display())).because(e);
                Err(failure.remedy("give a directory that can be written"))
            }
            _ => Self::open(option, dir),
        }
    }

    /// Removes what killed commands have left.
    pub(super) fn sweep(&self) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes())
                && let Ok(Some(dead)) = LockedDir::adopt(&entry.path())
                && let Err(e) = remove(dead.path())
            {
                tracing::warn!("{}: cannot be removed: {e}", entry.path().display());
            }
        }
    }

    /// A new one, or one that is to take an older one's place.
    fn begin(&self, name: &str) -> Result<PartialCheckpoint, Failure> {
        let place = self.dir.join(plain_name("--name", name)?);
        let path = self.dir.join(format!("{UNFINISHED}{}", random_name()?));
        let owned = LockedDir::make(&path).map_err(|e| Failure::at(&path, e))?;
        let owned = owned.ok_or_else(|| Failure::system(format!("{}: somebody has it", path.display())))?;
        Ok(PartialCheckpoint { owned, place })
    }

    /// All that are whole, by name.
    pub(super) fn list(&self) -> Result<Vec<CheckpointEntry>, Failure> {
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
            .map(|name| CheckpointEntry { record: Record::read(&self.dir.join(&name)), name })
            .collect())
    }

    /// What one says of itself.
    pub(super) fn record(&self, name: &str) -> Result<Record, Failure> {
        Record::read(&self.path(name)?)
    }

    /// One, to be restored. `scratch`: a directory where something may be made for a moment.
    pub(super) fn find(&self, name: &str, scratch: &Path) -> Result<(ObjectReader, Record), Failure> {
        let dir = self.path(name)?;
        let Some(object_info) = self.look(name)? else {
            return Ok((from_files(&dir, scratch)?, Record::read(&dir)?));
        };
        // Not from the file beside it: another command may just have replaced both.
        let record = object_info.record()?;
        let display = dir.display().to_string();
        let parents = chain::needed(object_info.map()?.as_ref(), &display, &|name| self.look(name))?;
        Ok((ObjectReader::new(object_info, parents, &display)?, record))
    }

    /// Looks at the object of one. None: there is none of this name, or it is no object.
    fn look(&self, name: &str) -> Result<Option<ObjectInfo>, Failure> {
        let dir = self.dir.join(plain_name("checkpoint", name)?);
        let path = dir.join(OBJECT);
        if !path.exists() {
            return Ok(None);
        }
        check_owner("", &dir)?;
        let file = vellum_pool::regular_file::open(&path)
            .and_then(FileSource::new)
            .map_err(|e| Failure::at(&path, e))?;
        ObjectInfo::at(Box::new(file), &dir.display().to_string()).map(Some)
    }

    /// Begins one of this name: where it goes, and how it is made.
    pub(super) fn begin_upper(
        &self,
        name: &str,
        manner: &CheckpointOptions,
    ) -> Result<(Box<dyn ByteSink>, WriteOptions), Failure> {
        self.check_replaceable(name)?;
        let known = match &manner.parent {
            Some(parent) => {
                if parent != name && self.look(parent)?.is_none() && self.path(parent).is_ok() {
                    return Err(Failure::input(format!(
                        "option --parent {parent}: Vellum 0.2 took it, in a form that no other one can need; take one without --parent first"
                    )));
                }
                chain::parent_granules(parent, name, &|name| self.look(name))?
            }
            None => ParentGranules::default(),
        };
        let how = WriteOptions { compress: manner.compress, known };
        let (unfinished, pace) = (self.begin(name)?, manner.pace.unwrap_or(Pace::None));
        let sink = DirectorySink::new((self, name), unfinished, how.parents(), pace)?;
        Ok((Box::new(sink), how))
    }

    /// Gives one its name, all of which is on disk, if it is not needed by others meanwhile and those are there that it needs.
    fn name(&self, name: &str, needs: &[Parent], unfinished: PartialCheckpoint) -> Result<PathBuf, Failure> {
        let named = self.lock_exclusively().and_then(|alone| {
            // Others may have removed or made some in between.
            self.check_replaceable(name)?;
            let display = unfinished.place.display().to_string();
            chain::open_parents(needs, &display, &|name| self.look(name)).map(|_| alone)
        });
        match named {
            Ok(_alone) => unfinished.finish(),
            Err(why) => {
                unfinished.discard();
                Err(why)
            }
        }
    }

    /// A checkpoint takes the place of an older one that no other one needs, and of nothing else.
    fn check_replaceable(&self, name: &str) -> Result<(), Failure> {
        chain::free(&self.list()?, &[name.to_owned()])?;
        let place = self.dir.join(plain_name("--name", name)?);
        if place.symlink_metadata().is_err() || place.join(super::record::NAME).exists() {
            return Ok(());
        }
        let taken = Failure::input(format!("{}: this is no checkpoint", place.display()));
        Err(taken.remedy("give another --name, or another directory"))
    }

    /// Who has this may take names away and give them: nobody else does.
    fn lock_exclusively(&self) -> Result<File, Failure> {
        self.lock_exclusively_within(PATIENCE)
    }

    /// As [`Self::lock_exclusively`]. Whoever can read the directory can lock it, so the wait has an end.
    fn lock_exclusively_within(&self, patience: Duration) -> Result<File, Failure> {
        let failed = |e: io::Error| Failure::at(&self.dir, e);
        let dir = File::open(&self.dir).map_err(failed)?;
        let locked =
            wait_for(patience, PAUSE, || match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK | Errno::INTR) => None,
                done => Some(done),
            });
        match locked {
            Some(done) => done.map(|()| dir).map_err(|e| failed(e.into())),
            None => {
                let display = self.dir.display();
                Err(Failure::system(format!("{display}: another process holds its lock"))
                    .remedy(format!("try again; lsof {display} says who has it open")))
            }
        }
    }

    /// Removes some, if all are there and no other one needs them: first their names are gone, then what is in them.
    pub(super) fn delete(&self, names: &[String]) -> Result<(), Failure> {
        let alone = self.lock_exclusively()?;
        names.iter().try_for_each(|name| self.path(name).map(drop))?;
        let mut away = Vec::new();
        for name in chain::free(&self.list()?, names)? {
            let (path, to) = (self.path(&name)?, self.dir.join(format!("{UNFINISHED}{}", random_name()?)));
            fs::rename(&path, &to).map_err(|e| Failure::at(&path, e))?;
            away.push(to);
        }
        sync(&self.dir)?;
        drop(alone);
        away.iter().try_for_each(|away| remove(away).map_err(|e| Failure::at(away, e)))
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
        check_owner("", &path)?;
        Ok(path)
    }
}

fn sync(dir: &Path) -> Result<(), Failure> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| Failure::at(dir, e))
}

impl PartialCheckpoint {
    /// Where it grows.
    fn dir(&self) -> &Path {
        self.owned.path()
    }

    /// Gives it its name; all of it is on disk.
    fn finish(self) -> Result<PathBuf, Failure> {
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
            if let Err(e) = remove(path) {
                tracing::warn!("{}: cannot be removed: {e}", path.display());
            }
        }
        Ok(place.clone())
    }

    /// Takes it away.
    fn discard(self) {
        if let Err(e) = remove(self.owned.path()) {
            tracing::warn!("{}: cannot be removed: {e}", self.owned.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn fill(unfinished: &PartialCheckpoint, text: &str) {
        fs::write(unfinished.dir().join(crate::record::NAME), text).unwrap();
    }

    #[test]
    fn a_checkpoint_is_complete_or_absent() {
        let dir = tempfile::tempdir().unwrap();
        let store = Directory::make("--to", &dir.path().join("all")).unwrap();
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
        store.delete(&["one".to_owned()]).unwrap();
        assert_eq!(fs::read_dir(&store.dir).unwrap().count(), 0);
        assert_eq!(store.delete(&["one".to_owned()]).unwrap_err().exit_status(), 2);
    }

    #[test]
    fn a_directory_writable_by_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let failure = Directory::make("--to", dir.path()).unwrap_err();
        assert!(failure.exit_status() == 2 && failure.to_string().contains("chmod o-w"), "{failure}");
        for (mode, remedy) in [(0o2775, "chmod g-w"), (0o1777, "mkdir -m 700")] {
            if remedy == "chmod g-w" && !rustix::process::geteuid().is_root() {
                println!("SKIPPED: needs root, for the group may be the user's own");
                continue;
            }
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            let failure = Directory::make("--to", dir.path()).unwrap_err();
            assert!(failure.exit_status() == 2 && failure.to_string().contains(remedy), "{failure}");
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let store = Directory::make("--to", dir.path()).unwrap();
        for bad in ["", "..", "a/b", ".unfinished-1"] {
            assert_eq!(store.begin(bad).unwrap_err().exit_status(), 2, "{bad}");
        }
    }

    #[test]
    fn only_a_checkpoint_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let store = Directory::make("--to", dir.path()).unwrap();
        fs::create_dir(dir.path().join("data")).unwrap();
        fs::write(dir.path().join("data/words"), "words").unwrap();
        fs::write(dir.path().join("file"), "words").unwrap();
        std::os::unix::fs::symlink("nothing", dir.path().join("link")).unwrap();
        for other in ["data", "file", "link"] {
            let failure = store.begin_upper(other, &CheckpointOptions::default()).err().unwrap();
            assert!(failure.exit_status() == 2 && failure.to_string().contains("no checkpoint"), "{failure}");
            // It may have come meanwhile.
            let unfinished = store.begin(other).unwrap();
            fill(&unfinished, "1");
            assert_eq!(store.name(other, &[], unfinished).unwrap_err().exit_status(), 2);
        }
        assert_eq!(fs::read_to_string(dir.path().join("data/words")).unwrap(), "words");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        let unfinished = store.begin("one").unwrap();
        fill(&unfinished, "1");
        store.name("one", &[], unfinished).unwrap();
        store.check_replaceable("one").unwrap();
    }

    #[test]
    fn waiting_for_the_directory_lock_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let store = Directory::make("--to", dir.path()).unwrap();
        let held = store.lock_exclusively().unwrap();
        let failure = store.lock_exclusively_within(Duration::from_millis(20)).unwrap_err();
        assert!(failure.to_string().contains("another process holds its lock"), "{failure}");
        drop(held);
        store.lock_exclusively_within(Duration::ZERO).unwrap();
    }
}
