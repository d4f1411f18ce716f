//! A directory of checkpoints: each is whole, or is not there.
//!
//! One that is being made lies beside the others under a name of its own, locked by its maker, and gets its name when all of it is on disk.
//! One that it replaces changes places with it in the same step, and is removed afterwards. Most are files as CRIU and the layer have them; some become
//! one object (`repack`), or are made as one (`paced_writer`). `removal` says how one goes.

mod file;
mod paced_writer;
mod removal;
mod repack;

use self::file::ToFile;
use self::paced_writer::InDirectory;
use self::removal::remove;
use self::repack::{OBJECT, again, pack};
use super::chain;
use super::delta::{Amount, Delta, Upper};
use super::object::{
    FileSource, ObjectInfo, ObjectReader, Parent, ParentGranules, UnsealedObject, WriteOptions,
};
use super::options::CheckpointOptions;
use super::pace::Pace;
use super::record::{CheckpointEntry, Record};
use super::writer::{CheckpointWriter, Sizes};
use super::{FILES, IMAGES, UPPER};
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use vellum_container::SavedContainer;
use vellum_container::{own, plain_name, random_name};
use vellum_pool::locked_dir::LockedDir;
use vellum_service::Failure;

/// What one is called that is being made, or removed.
const UNFINISHED: &str = ".unfinished-";
/// How long another command may take to give a name, with all that is written to the disk for it.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// A directory of checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directory {
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
        own(option, &dir)?;
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
                && let Ok(Some(dead)) = LockedDir::existing(&entry.path())
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

    /// One, to be restored.
    pub(super) fn find(&self, name: &str) -> Result<Box<dyn SavedContainer>, Failure> {
        let dir = self.path(name)?;
        let Some(object_info) = self.look(name)? else { return Ok(Box::new(DirectoryReader { dir })) };
        let display = dir.display().to_string();
        let parents = chain::needed(object_info.map()?.as_ref(), &display, &|name| self.look(name))?;
        Ok(Box::new(ObjectReader::new(object_info, parents, &display)?))
    }

    /// Looks at the object of one. None: there is none of this name, or it is no object.
    fn look(&self, name: &str) -> Result<Option<ObjectInfo>, Failure> {
        let dir = self.dir.join(plain_name("checkpoint", name)?);
        let path = dir.join(OBJECT);
        if !path.exists() {
            return Ok(None);
        }
        own("", &dir)?;
        let file = vellum_pool::regular_file::open(&path)
            .and_then(FileSource::new)
            .map_err(|e| Failure::at(&path, e))?;
        ObjectInfo::at(Box::new(file), &dir.display().to_string()).map(Some)
    }

    /// Begins one of the upper layer in a directory; what is needed for a moment is made beside.
    pub(super) fn making(
        &self,
        name: &str,
        (upper, scratch): (Upper<'_>, &Path),
        manner: &CheckpointOptions,
    ) -> Result<Box<dyn CheckpointWriter>, Failure> {
        let unfinished = self.begin(name)?;
        let how = match self.how(name, manner) {
            Ok(how) => how,
            Err(why) => {
                unfinished.discard();
                return Err(why);
            }
        };
        if manner.pace.is_some_and(|pace| pace != Pace::None) {
            let made = InDirectory::begin((self, name), unfinished, (upper, scratch), how, manner)?;
            return Ok(Box::new(made));
        }
        match filled(unfinished.dir(), upper) {
            Ok(delta) => {
                let (directory, images) = (self.clone(), unfinished.dir().join(IMAGES));
                let (how, name) = (Some(how), name.to_owned());
                let (packed, needs) = (None, Vec::new());
                Ok(Box::new(DirectoryWriter {
                    directory,
                    name,
                    images,
                    unfinished,
                    delta,
                    how,
                    packed,
                    needs,
                }))
            }
            Err(why) => {
                unfinished.discard();
                Err(why)
            }
        }
    }

    /// How one of this name is made.
    fn how(&self, name: &str, manner: &CheckpointOptions) -> Result<WriteOptions, Failure> {
        chain::free(&self.list()?, &[name.to_owned()])?;
        let known = match &manner.parent {
            Some(parent) => {
                // Not before it is known that it can be one.
                if parent != name && self.is_plain(parent)? {
                    self.become_object(parent, manner)?;
                }
                chain::parent_granules(parent, name, &|name| self.look(name))?
            }
            None => ParentGranules::default(),
        };
        Ok(WriteOptions { compress: manner.compress, known })
    }

    /// Whether one is there, and no object.
    fn is_plain(&self, name: &str) -> Result<bool, Failure> {
        Ok(self.look(name)?.is_none() && self.path(name).is_ok())
    }

    /// Makes an object of one that is kept plain, in its place: only what has checksums is needed by others.
    fn become_object(&self, name: &str, manner: &CheckpointOptions) -> Result<(), Failure> {
        let (plain, unfinished) = (self.path(name)?, self.begin(name)?);
        let made = Record::read(&plain).and_then(|before| {
            let mut unsealed = again(&plain, unfinished.dir(), [IMAGES, FILES, UPPER], manner)?;
            let record = Record { stored_bytes: Some(unsealed.map().stored()), ..before.clone() };
            unsealed.end(&record)?.map_err(|e| Failure::at(unfinished.dir(), e))?;
            record.write(unfinished.dir())?;
            let alone = self.alone()?;
            if Record::read(&plain)? != before {
                return Err(Failure::system(format!("{}: somebody has replaced it", plain.display())));
            }
            Ok(alone)
        });
        match made {
            Ok(_alone) => unfinished.finish().map(drop),
            Err(why) => {
                unfinished.discard();
                Err(why)
            }
        }
    }

    /// Gives one its name, all of which is on disk, if it is not needed by others meanwhile and those are there that it needs.
    fn name(&self, name: &str, needs: &[Parent], unfinished: PartialCheckpoint) -> Result<PathBuf, Failure> {
        let named = self.alone().and_then(|alone| {
            // Others may have removed or made some in between.
            chain::free(&self.list()?, &[name.to_owned()])?;
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

    /// Who has this may take names away and give them: nobody else does.
    fn alone(&self) -> Result<File, Failure> {
        self.alone_within(PATIENCE)
    }

    /// As [`Self::alone`]. Whoever can read the directory can lock it, so the wait has an end.
    fn alone_within(&self, patience: Duration) -> Result<File, Failure> {
        let failed = |e: io::Error| Failure::at(&self.dir, e);
        let dir = File::open(&self.dir).map_err(failed)?;
        let begin = Instant::now();
        loop {
            match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(dir),
                Err(Errno::WOULDBLOCK) if begin.elapsed() < patience => thread::sleep(PAUSE),
                Err(Errno::WOULDBLOCK) => {
                    let display = self.dir.display();
                    return Err(Failure::system(format!("{display}: another process holds its lock"))
                        .remedy(format!("try again; lsof {display} says who has it open")));
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(failed(e.into())),
            }
        }
    }

    /// Removes some, if all are there and no other one needs them: first their names are gone, then what is in them.
    pub(super) fn delete(&self, names: &[String]) -> Result<(), Failure> {
        let alone = self.alone()?;
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
        own("", &path)?;
        Ok(path)
    }
}

fn sync(dir: &Path) -> Result<(), Failure> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| Failure::at(dir, e))
}

/// All images in a directory, and in directories in it, which come after what is in them.
fn images(dir: &Path) -> io::Result<Vec<(PathBuf, fs::Metadata)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let meta = path.symlink_metadata()?;
        if meta.is_dir() {
            all.extend(images(&path)?);
        }
        all.push((path, meta));
    }
    Ok(all)
}

/// Makes what is in a checkpoint's directory.
fn filled(dir: &Path, upper: Upper<'_>) -> Result<Delta, Failure> {
    for name in [IMAGES, UPPER, FILES] {
        let path = dir.join(name);
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| Failure::at(&path, e))?;
    }
    Delta::new(upper, &dir.join(UPPER))
}

/// A checkpoint that is being made in a directory.
pub(super) struct DirectoryWriter {
    directory: Directory,
    name: String,
    unfinished: PartialCheckpoint,
    images: PathBuf,
    delta: Delta,
    how: Option<WriteOptions>,
    packed: Option<UnsealedObject<ToFile>>,
    /// Others that it needs.
    needs: Vec<Parent>,
}

impl CheckpointWriter for DirectoryWriter {
    fn images(&self) -> &Path {
        &self.images
    }

    fn unfinished(&self) -> &Path {
        self.unfinished.dir()
    }

    fn first_pass(&mut self) -> Result<Amount, Failure> {
        self.delta.first_pass()
    }

    fn drain(&mut self) -> Result<(), Failure> {
        self.delta.sync()?;
        self.delta.first_pass().map(|_| ())
    }

    fn final_pass(&mut self) -> Result<Amount, Failure> {
        self.delta.final_pass()
    }

    fn file(&mut self, name: &str, from: &Path) -> Result<(), Failure> {
        let to = self.unfinished.dir().join(FILES).join(name);
        match fs::copy(from, &to) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            copied => copied.map(|_| ()).map_err(|e| Failure::at(&to, e)),
        }
    }

    /// The kernel has written images back when it liked; now it is waited for.
    fn sizes(&mut self) -> Result<Sizes, Failure> {
        let upper = self.delta.bytes()?;
        let images = images(&self.images).map_err(|e| Failure::at(&self.images, e))?;
        let len = |(_, meta): &(PathBuf, fs::Metadata)| if meta.is_file() { meta.len() } else { 0 };
        let size = images.iter().map(len).sum();
        let parts = [IMAGES, FILES, UPPER];
        let how = self.how.take().unwrap_or_default();
        if let Some(unsealed) = pack(self.unfinished.dir(), parts, size, how)? {
            let stored = Some((unsealed.map().stored(), unsealed.map().names()));
            self.packed = Some(unsealed);
            return Ok(Sizes { images: size, upper, stored });
        }
        for (path, _) in images {
            File::open(&path).and_then(|file| file.sync_all()).map_err(|e| Failure::at(&path, e))?;
        }
        sync(&self.images)?;
        Ok(Sizes { images: size, upper, stored: None })
    }

    fn sync(&mut self, record: &Record) -> Result<(), Failure> {
        let dir = self.unfinished.dir();
        if let Some(mut unsealed) = self.packed.take() {
            unsealed.end(record)?.map_err(|e| Failure::at(&dir.join(OBJECT), e))?;
            self.needs = unsealed.map().parents.clone();
            return record.write(dir);
        }
        record.write(dir)?;
        self.delta.sync()
    }

    fn finish(self: Box<Self>) -> Result<PathBuf, Failure> {
        self.directory.name(&self.name, &self.needs, self.unfinished)
    }

    fn discard(self: Box<Self>) {
        self.unfinished.discard();
    }
}

/// A checkpoint in a directory.
#[derive(Debug)]
pub(super) struct DirectoryReader {
    dir: PathBuf,
}

impl SavedContainer for DirectoryReader {
    fn display(&self) -> String {
        self.dir.display().to_string()
    }

    fn upper(&self, to: &Path) -> Result<(), Failure> {
        Delta::new(&self.dir.join(UPPER), to)?.final_pass().map(|_| ())
    }

    fn file(&self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        let path = self.dir.join(FILES).join(name);
        match fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some).map_err(|e| Failure::at(&path, e)),
        }
    }

    /// Nobody of the group gets there by a path: the checkpoint's directory is root's.
    fn open_to(&self, group: u32) -> Result<(), Failure> {
        let dir = self.dir.join(IMAGES);
        let failed = |path: &Path, e: io::Error| Failure::at(path, e);
        let open = |(path, meta): &(PathBuf, fs::Metadata)| {
            let mode = (meta.mode() & 0o7777) | if meta.is_dir() { 0o050 } else { 0o040 };
            if meta.gid() == group && meta.mode() & 0o7777 == mode {
                return Ok(());
            }
            lchown(path, None, Some(group)).map_err(|e| failed(path, e))?;
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|e| failed(path, e))
        };
        let all = images(&dir).map_err(|e| failed(&dir, e))?;
        let top = dir.symlink_metadata().map_err(|e| failed(&dir, e))?;
        all.iter().chain([&(dir, top)]).try_for_each(open)
    }

    fn images(&self, _: &Path, _: &Path) -> Result<PathBuf, Failure> {
        Ok(self.dir.join(IMAGES))
    }
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
    fn each_is_whole_or_not_there() {
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
    fn images_of_a_first_pass_are_open_to_a_group_as_others_are() {
        let dir = tempfile::tempdir().unwrap();
        let parent = dir.path().join(IMAGES).join("parent");
        fs::create_dir_all(&parent).unwrap();
        let all = [parent.clone(), parent.join("pages-1.img"), dir.path().join(IMAGES).join("pages-1.img")];
        all[1..].iter().for_each(|path| fs::write(path, [7; 100]).unwrap());
        let found = images(&dir.path().join(IMAGES)).unwrap();
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|(path, _)| all.contains(path)), "{found:?}");
        for (path, meta) in &found {
            fs::set_permissions(path, fs::Permissions::from_mode(if meta.is_dir() { 0o700 } else { 0o600 }))
                .unwrap();
        }
        let kept = DirectoryReader { dir: dir.path().to_owned() };
        kept.open_to(rustix::process::getegid().as_raw()).unwrap();
        for (path, mode) in all.iter().zip([0o750, 0o640, 0o640]) {
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, mode, "{}", path.display());
        }
    }

    #[test]
    fn what_others_can_write_to_is_refused() {
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
    fn a_lock_that_somebody_holds_is_not_waited_for_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let store = Directory::make("--to", dir.path()).unwrap();
        let held = store.alone().unwrap();
        let failure = store.alone_within(Duration::from_millis(20)).unwrap_err();
        assert!(failure.to_string().contains("another process holds its lock"), "{failure}");
        drop(held);
        store.alone_within(Duration::ZERO).unwrap();
    }
}
