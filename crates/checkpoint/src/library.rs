//! The library in a container's programs, which shares memory and sockets with the service: before a checkpoint it goes away, and it comes
//! back by itself some seconds later, or with another service.
//!
//! A process of its own makes each program call a function of the library (`BorrowedThread`). It must not be killed meanwhile, as CRIU must not,
//! and the guard waits for it.

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSegment, ObjectSymbol};
use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use vellum_container::{LIBRARY, VELLUM_DIR};
use vellum_pool::members::processes;
use vellum_service::Failure;
use vellum_sys::{BorrowedThread, RemoteFunction};

/// The subcommand of `vellum` that has the library go away.
pub const LEAVES: &str = "internal-leave";
/// The function, and its stack.
const FUNCTION: &str = "vellum_leave";
const STACK: &str = "vellum_leave_stack";
/// How long the library is away: longer than it takes until the container stands still.
const SECONDS: u64 = 3;
/// What the function says: nothing is left; a call is under way.
const GONE: u64 = 0;
const BUSY: u64 = 1;
/// How long a call under way is waited for.
const PATIENCE: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(1);
/// The largest library that is read, in bytes.
pub(super) const LIBRARY_MAX: u64 = 64 << 20;
/// What the memory is called that a service gives to the library.
const MEMORY: &[u8] = b"/memfd:vellum-";

/// The library that a container's programs see.
#[derive(Debug)]
pub(crate) struct Library {
    /// Open, for the container may end.
    file: File,
    /// Where programs see it.
    place: PathBuf,
    digest: String,
    number: u64,
    function: u64,
    stack_end: u64,
}

impl Library {
    /// That which `vellum run` shows to the container of a process.
    pub(super) fn of_process(init: u32) -> Result<Self, &'static str> {
        Self::at(init, &Path::new(VELLUM_DIR).join(LIBRARY))
    }

    /// That which programs of a container have loaded, wherever they have it from, if they have. `init`: its first process.
    pub(crate) fn find_loaded(group: &Path, init: u32) -> Result<Option<Self>, &'static str> {
        let mut found: Option<Self> = None;
        let maps = |process: u32| fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
        let processes = processes(group);
        for (place, number) in processes.iter().filter_map(|process| loaded(&maps(*process))) {
            if found.as_ref().is_some_and(|one| one.number == number) {
                continue;
            }
            let one = Self::at(init, &place)?;
            if found.is_some() || one.number != number {
                return Err(
                    "its programs have several libraries libvellum.so loaded, or one that is no more there",
                );
            }
            found = Some(one);
        }
        match found {
            None if is_mapped(group) => Err("its programs have libvellum.so loaded under another name"),
            found => Ok(found),
        }
    }

    /// That at a place that a process sees.
    fn at(init: u32, place: &Path) -> Result<Self, &'static str> {
        if !cfg!(target_arch = "x86_64") {
            return Err(
                "its programs have libvellum.so loaded, which goes away for a checkpoint on x86-64 only",
            );
        }
        let file = open_in_process(init, place)
            .map_err(|_| "its programs have libvellum.so loaded, which is not to be found any more")?;
        let old = "its programs have libvellum.so of another version loaded, which does not go away for a checkpoint";
        let number = fstat(&file).map_err(|_| old)?.st_ino;
        let mut bytes = Vec::new();
        (&file).take(LIBRARY_MAX).read_to_end(&mut bytes).map_err(|_| old)?;
        let (function, stack_end) = function_range(&bytes).ok_or(old)?;
        let digest = digest(&bytes);
        Ok(Self { file, place: place.to_owned(), digest, number, function, stack_end })
    }

    /// A path of it, as long as this is there.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.file)).into()
    }

    /// Where programs see it.
    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// A digest of what it holds.
    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    /// Where a process has it, if it has.
    fn function_in(&self, process: u32) -> Option<RemoteFunction> {
        self.function_in_maps(&fs::read(format!("/proc/{process}/maps")).ok()?)
    }

    /// As [`Self::function_in`], by a table of mappings.
    ///
    /// A program that only reads a file of this name does not call what somebody else has written there, or what lies beside it in memory.
    fn function_in_maps(&self, maps: &[u8]) -> Option<RemoteFunction> {
        let text = String::from_utf8_lossy(maps);
        let base = base(&text, self.number)?;
        let at = |place: u64| base.checked_add(place);
        let (function, stack_end) = (at(self.function)?, at(self.stack_end)?);
        let mut all = text.lines().filter_map(Mapping::parse);
        let runs = |one: &Mapping<'_>| one.holds(function) && one.has('x') && one.number == self.number;
        let is_stack = |one: &Mapping<'_>| one.holds(stack_end.wrapping_sub(1)) && one.has('w');
        (all.clone().any(|one| runs(&one)) && all.any(|one| is_stack(&one)))
            .then_some(RemoteFunction { function, stack_end })
    }
}

/// The library as a process sees it. No name of the container's leads out.
fn open_in_process(process: u32, place: &Path) -> rustix::io::Result<File> {
    let root: OwnedFd = open(
        format!("/proc/{process}/root"),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let path = place.strip_prefix("/").unwrap_or(place);
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    vellum_pool::regular_file::checked(openat2(
        &root,
        path,
        vellum_pool::regular_file::FLAGS,
        Mode::empty(),
        how,
    )?)
    .map_err(|_| Errno::INVAL)
}

/// Where the function is in a library, from its beginning, and the end of its stack.
fn function_range(library: &[u8]) -> Option<(u64, u64)> {
    let elf = ElfFile64::<Endianness>::parse(library).ok()?;
    let begin = elf.segments().map(|segment| segment.address()).min()? & !0xfff;
    let place = |name: &str| elf.dynamic_symbols().find(|symbol| symbol.name() == Ok(name));
    let (function, stack) = (place(FUNCTION)?, place(STACK)?);
    let end = stack.address().checked_add(stack.size())?.checked_sub(begin)? & !0xf;
    (stack.size() > 0).then_some((function.address().checked_sub(begin)?, end))
}

/// A line of a table of mappings.
#[derive(Clone, Debug)]
struct Mapping<'a> {
    begin: u64,
    end: u64,
    rights: &'a str,
    is_first: bool,
    number: u64,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (begin, end) = words.next()?.split_once('-')?;
        let (rights, offset, _, number) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let is_first = offset.bytes().all(|digit| digit == b'0');
        Some(Self { begin: hex(begin)?, end: hex(end)?, rights, is_first, number: number.parse().ok()? })
    }

    fn holds(&self, address: u64) -> bool {
        (self.begin..self.end).contains(&address)
    }

    fn has(&self, right: char) -> bool {
        self.rights.contains(right)
    }
}

/// Where in a table of mappings the library with this number begins.
fn base(maps: &str, number: u64) -> Option<u64> {
    let library = maps.lines().filter(|line| line.contains(LIBRARY)).filter_map(Mapping::parse);
    library.into_iter().find(|one| one.number == number && one.is_first).map(|one| one.begin)
}

/// The place and the number of the library in a table of mappings.
fn loaded(maps: &[u8]) -> Option<(PathBuf, u64)> {
    let lines = maps.split(|byte| *byte == b'\n');
    lines.filter(|line| line.ends_with(LIBRARY.as_bytes())).find_map(|line| {
        let place = line.iter().position(|byte| *byte == b'/')?;
        let (head, path) = line.split_at_checked(place)?;
        let path = Path::new(OsStr::from_bytes(path));
        let head = std::str::from_utf8(head).ok()?;
        let number = head.split_ascii_whitespace().nth(4)?.parse().ok()?;
        (path.file_name() == Some(OsStr::new(LIBRARY))).then(|| (path.to_owned(), number))
    })
}

pub(super) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads what may be anything as a library and as a table of mappings, for the container can show others than its own. For the fuzz target.
#[must_use]
pub fn parse_hostile(bytes: &[u8]) -> bool {
    let _ = loaded(bytes);
    if let Ok(file) = File::open("/dev/null") {
        let library = Library {
            file,
            place: PathBuf::new(),
            digest: String::new(),
            number: 99,
            function: 1 << 12,
            stack_end: 2 << 12,
        };
        let _ = library.function_in_maps(bytes);
    }
    function_range(bytes).is_some()
}

/// Whether a process of a container, which stands still, has memory of a service.
pub(super) fn is_mapped(group: &Path) -> bool {
    let has = |process: u32| {
        let maps = fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
        maps.windows(MEMORY.len()).any(|words| words == MEMORY)
    };
    processes(group).into_iter().any(has)
}

/// Has the library go away from all processes of a container. `init`: its first one; `place`: where they see it.
pub fn detach(group: &Path, init: u32, place: &Path) -> Result<(), Failure> {
    let library = Library::at(init, place).map_err(Failure::system)?;
    for process in processes(group) {
        if library.function_in(process).is_some() {
            leave_one(group, process, &library)?;
        }
    }
    Ok(())
}

/// Has it go away from a process, which is looked at while it stands still: before that, its number may go to another one.
fn leave_one(group: &Path, process: u32, library: &Library) -> Result<(), Failure> {
    let begin = Instant::now();
    loop {
        let said = BorrowedThread::stop_process(process).and_then(|mut held| {
            let is_of_group = processes(group).contains(&process);
            match library.function_in(process).filter(|_| is_of_group) {
                Some(place) => held.call(place, SECONDS),
                None => Ok(GONE),
            }
        });
        let why = match said {
            Ok(GONE) | Err(Errno::SRCH) => return Ok(()),
            Ok(BUSY) => "a call of libvellum.so does not come to its end",
            Ok(_) => {
                "it has a file open that was opened past the mount, and cannot be opened by it: without a name, or without the right to"
            }
            Err(Errno::STALE) => {
                return Err(Failure::system(format!(
                    "process {process}: instead of having libvellum.so go away, it became another program or another user"
                )));
            }
            Err(Errno::BUSY) => "it ignores SIGTRAP, so libvellum.so cannot be made to go away",
            Err(error) => {
                return Err(Failure::system(format!("process {process}: libvellum.so does not go away"))
                    .because(std::io::Error::from(error)));
            }
        };
        if begin.elapsed() > PATIENCE {
            return Err(Failure::system(format!("process {process}: {why}")));
        }
        // Meanwhile it goes on.
        thread::sleep(AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_by_its_number_and_its_beginning() {
        let maps = b"00400000-00401000 r--p 00000000 08:01 77 /bin/cat\n\
            7f10000000-7f10001000 r-xp 00001000 08:01 99                             /.vellum/libvellum.so\n\
            7f20000000-7f20001000 r--p 00000000 08:01 99                             /.vellum/libvellum.so\n\
            7f30000000-7f30001000 r--p 00000000 08:01 99 /other\n";
        let maps = std::str::from_utf8(maps).unwrap();
        assert_eq!(base(maps, 99), Some(0x7f_2000_0000));
        assert_eq!(base(maps, 98), None);
        assert_eq!(base("\nhalf 0 0\n", 99), None);
    }

    fn library() -> Library {
        let file = File::open("/dev/null").unwrap();
        let (place, digest) = (PathBuf::new(), String::new());
        Library { file, place, digest, number: 99, function: 0x1010, stack_end: 0x3000 }
    }

    #[test]
    fn only_executable_mappings_of_the_library_are_called() {
        let maps = |code: &str, of: u32, data: &str| {
            format!(
                "7f10000000-7f10001000 r--p 00000000 08:01 99    /.vellum/libvellum.so\n\
                7f10001000-7f10002000 {code} 00001000 08:01 {of}    /.vellum/libvellum.so\n\
                7f10002000-7f10003000 {data} 00000000 00:00 0 \n"
            )
        };
        let placed = |maps: String| library().function_in_maps(maps.as_bytes());
        let right = RemoteFunction { function: 0x7f_1000_1010, stack_end: 0x7f_1000_3000 };
        assert_eq!(placed(maps("r-xp", 99, "rw-p")), Some(right));
        // It is read only; code of another file lies behind it; its stack is not to be written to; it ends before.
        for maps in [maps("r--p", 99, "rw-p"), maps("r-xp", 98, "rw-p"), maps("r-xp", 99, "r--p")] {
            assert_eq!(placed(maps.clone()), None, "{maps}");
        }
        assert_eq!(
            placed(maps("r-xp", 99, "rw-p").replace("7f10002000-7f10003000", "7f10004000-7f10005000")),
            None
        );
        assert_eq!(placed(String::from_utf8_lossy(b"\n\xff half 0 0\n").into_owned()), None);
    }

    /// As if its number had gone to another process after it was listed.
    #[test]
    fn processes_outside_the_group_are_not_called() {
        let dir = tempfile::tempdir().unwrap();
        let (program, listed) = (dir.path().join(LIBRARY), dir.path().join("cgroup.procs"));
        fs::copy("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("60").spawn().unwrap();
        let maps = || fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        while !maps().contains("[stack]") || !maps().contains(LIBRARY) {
            thread::sleep(AGAIN);
        }
        let maps = maps();
        let all = || maps.lines().filter(|line| line.contains(LIBRARY)).filter_map(Mapping::parse);
        let (code, data) = (all().find(|one| one.has('x')).unwrap(), all().find(|one| one.has('w')).unwrap());
        let base = all().next().unwrap().begin;
        let (function, stack_end) = (code.begin - base, data.end - base);
        let library = Library { number: code.number, function, stack_end, ..library() };
        fs::write(&listed, "").unwrap();
        leave_one(dir.path(), child.id(), &library).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        // One that is, is: its own program, which is no such function.
        fs::write(&listed, child.id().to_string()).unwrap();
        match BorrowedThread::stop_process(child.id()) {
            Err(Errno::PERM) => println!("SKIPPED: no other process may be traced here"),
            _ => assert!(leave_one(dir.path(), child.id(), &library).is_err()),
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_mapped_library_is_found_by_its_name() {
        let maps = b"7f10000000-7f10001000 r-xp 00001000 08:01 98    /opt/notlibvellum.so\n\
            7f10000000-7f10001000 r-xp 00001000 08:01 97    /opt/libvellum.so (deleted)\n\
            7f10000000-7f10001000 r-xp 00001000 08:01 99    /opt/a dir/libvellum.so\n";
        assert_eq!(loaded(maps), Some(("/opt/a dir/libvellum.so".into(), 99)));
        assert_eq!(loaded(b"libvellum.so\n/libvellum.so\n"), None);
    }

    #[test]
    fn foreign_libraries_have_no_entry_points() {
        for bytes in [&b""[..], b"\x7fELF", &[0; 4096]] {
            assert_eq!(function_range(bytes), None);
        }
        // A program that has no such function.
        let own = fs::read("/proc/self/exe").unwrap();
        assert_eq!(function_range(&own), None);
    }
}
