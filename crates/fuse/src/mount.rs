//! Putting a connection into the tree and taking it off again.
//!
//! mount(2) is tried first; it serves root, and whoever has CAP_SYS_ADMIN in a user namespace of their own.
//! Where it is not permitted, the set-user-id helper `fusermount3` does it and passes the descriptor over a
//! socket.

use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::ffi::{CString, OsString};
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vellum_sys::{fuse_dev, mount as sys};

/// The helper's name, looked up in PATH.
const HELPER: &str = "fusermount3";

/// The number of `/dev/fuse`.
const NUMBER: (u32, u32) = (10, 229);

/// Who mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Method {
    /// mount(2), and the helper when that is not permitted.
    #[default]
    Auto,
    /// Only mount(2).
    Direct,
    /// Only the helper.
    Helper,
}

/// What a mount is to be like.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What /proc/mounts shows as the source.
    pub source: String,
    /// The filesystem type is `fuse.` and this. Letters, digits, `-` and `_`.
    pub subtype: String,
    /// Users other than the one who mounts may use it. Through the helper it needs `user_allow_other` in
    /// /etc/fuse.conf.
    pub allow_other: bool,
    /// The kernel checks permission by mode, owner and ACL.
    pub default_permissions: bool,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Device nodes work.
    pub dev: bool,
    /// Set-id bits and file capabilities work.
    pub suid: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Reading changes no access times.
    pub noatime: bool,
    /// Every read changes the access time. The helper takes no word for it: it is left out there.
    pub strictatime: bool,
    /// Every change is synchronous.
    pub sync: bool,
    /// Every change of a directory is synchronous.
    pub dirsync: bool,
    /// Largest READ (bytes); None: as large as what INIT negotiates.
    pub max_read: Option<u32>,
    /// Labels for a security module (e.g. `context` and its value, without quotes). The helper takes none: they are
    /// left out there.
    pub labels: Vec<(String, String)>,
    /// Who mounts.
    pub method: Method,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "vellum".into(),
            subtype: "vellum".into(),
            allow_other: false,
            default_permissions: true,
            read_only: false,
            dev: false,
            suid: false,
            exec: true,
            noatime: false,
            strictatime: false,
            sync: false,
            dirsync: false,
            max_read: None,
            labels: Vec::new(),
            method: Method::Auto,
        }
    }
}

/// A connection that has been mounted. Dropping it closes the descriptor, but leaves the mount.
#[derive(Debug)]
pub struct FuseMount {
    /// The connection.
    pub device: OwnedFd,
    /// Where, as an absolute path without symbolic links.
    pub mountpoint: PathBuf,
}

/// Why there is no mount, or why it stays.
#[derive(Debug)]
pub enum MountError {
    /// The mountpoint cannot be used as it is: ENOENT, ENOTDIR, EACCES, or ENOTCONN for the remains of a dead
    /// mount.
    Mountpoint(PathBuf, Errno),
    /// An option has a value that cannot be passed on.
    Option(&'static str),
    /// `/dev/fuse` cannot be opened; ENOTTY: it is another device.
    Device(Errno),
    /// mount(2) or umount2(2) failed.
    Kernel(PathBuf, Errno),
    /// The helper could not be started, or said this.
    Helper(String),
}

impl MountError {
    /// The errno that fits best.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Mountpoint(_, errno) | Self::Device(errno) | Self::Kernel(_, errno) => *errno,
            Self::Option(_) => Errno::INVAL,
            Self::Helper(_) => Errno::PERM,
        }
    }
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mountpoint(path, Errno::NOTDIR) => write!(f, "{}: is not a directory", path.display()),
            Self::Mountpoint(path, Errno::NOTCONN) => {
                let path = path.display();
                write!(f, "{path}: a dead mount lies there; take it off with `umount {path}`")
            }
            Self::Mountpoint(path, errno) => write!(f, "{}: {errno}", path.display()),
            Self::Option(name) => write!(f, "mount option {name} cannot have this value"),
            Self::Device(errno) => write!(f, "/dev/fuse: {errno}"),
            Self::Kernel(path, errno) => write!(f, "{}: the kernel refuses: {errno}", path.display()),
            Self::Helper(message) => write!(f, "{HELPER}: {message}"),
        }
    }
}

impl std::error::Error for MountError {}

/// Mounts a new connection at `mountpoint`, which must be a directory.
pub fn mount(mountpoint: &Path, options: &MountOptions) -> Result<FuseMount, MountError> {
    let path = check_mountpoint(mountpoint)?;
    if options.subtype.is_empty()
        || !options.subtype.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    {
        return Err(MountError::Option("subtype"));
    }
    let device = match options.method {
        Method::Direct => direct(&path, options)?,
        Method::Helper => helper(&path, options)?,
        Method::Auto => match direct(&path, options) {
            Err(error) if matches!(error.errno(), Errno::PERM | Errno::ACCESS) => {
                tracing::debug!(%error, "mounting through {HELPER}");
                helper(&path, options)?
            }
            other => other?,
        },
    };
    Ok(FuseMount { device, mountpoint: path })
}

/// Takes the mount at `mountpoint` off. `lazy`: from the tree now, for good when nobody uses it. EBUSY without.
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<(), MountError> {
    match sys::unmount(mountpoint, lazy) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => helper_unmount(mountpoint, lazy),
        Err(error) => Err(MountError::Kernel(mountpoint.into(), error)),
    }
}

fn check_mountpoint(mountpoint: &Path) -> Result<PathBuf, MountError> {
    let refuse = |errno| MountError::Mountpoint(mountpoint.into(), errno);
    let errno = |error: std::io::Error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
    let path = std::fs::canonicalize(mountpoint).map_err(|error| refuse(errno(error)))?;
    let kind = std::fs::metadata(&path).map_err(|error| refuse(errno(error)))?;
    if kind.is_dir() { Ok(path) } else { Err(refuse(Errno::NOTDIR)) }
}

fn direct(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    use std::fmt::Write as _;
    let device = fuse_dev::open().map_err(MountError::Device)?;
    let found = rustix::fs::fstat(&device).map_err(MountError::Device)?;
    let number = (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev));
    if rustix::fs::FileType::from_raw_mode(found.st_mode) != rustix::fs::FileType::CharacterDevice
        || number != NUMBER
    {
        return Err(MountError::Device(Errno::NOTTY));
    }
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!("fd={},rootmode=40000,user_id={uid},group_id={gid}", device.as_raw_fd());
    if options.allow_other {
        data.push_str(",allow_other");
    }
    if options.default_permissions {
        data.push_str(",default_permissions");
    }
    if let Some(max_read) = options.max_read {
        // Writing to a string cannot fail.
        let _ = write!(data, ",max_read={max_read}");
    }
    for (name, value) in &options.labels {
        if value.contains('"') {
            return Err(MountError::Option("context"));
        }
        let _ = write!(data, ",{name}=\"{value}\"");
    }
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NOEXEC, !options.exec);
    flags.set(MountFlags::NOATIME, options.noatime);
    flags.set(MountFlags::STRICTATIME, options.strictatime);
    flags.set(MountFlags::SYNCHRONOUS, options.sync);
    flags.set(MountFlags::DIRSYNC, options.dirsync);
    let c_string = |text: String, name| CString::new(text).map_err(|_| MountError::Option(name));
    let source = c_string(options.source.clone(), "fsname")?;
    let fstype = c_string(format!("fuse.{}", options.subtype), "subtype")?;
    let data = c_string(data, "max_read")?;
    sys::mount(&source, path, &fstype, flags, &data)
        .map_err(|errno| MountError::Kernel(path.into(), errno))?;
    Ok(device)
}

fn helper(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let failed = |what: &dyn fmt::Display| MountError::Helper(what.to_string());
    let (ours, theirs) = sys::socket_pair().map_err(|error| failed(&error))?;
    // The helper gets its end as standard input: no descriptor is ever left open across another program's start.
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(helper_options(options)?)
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error))?;
    let received = sys::receive_descriptor(&ours);
    let output = child.wait_with_output().map_err(|error| failed(&error))?;
    if !output.status.success() {
        return Err(fusermount_error(&output.stderr));
    }
    received.map_err(|error| failed(&error))
}

fn helper_options(options: &MountOptions) -> Result<OsString, MountError> {
    // Commas and backslashes in the name are quoted for the helper's own parser.
    let mut source = String::with_capacity(options.source.len());
    for c in options.source.chars() {
        if matches!(c, ',' | '\\') {
            source.push('\\');
        }
        source.push(c);
    }
    if source.contains('\0') {
        return Err(MountError::Option("fsname"));
    }
    let mut text = format!("fsname={source},subtype={}", options.subtype);
    // dev and suid are only for root, whom the kernel has then refused; the helper says so itself.
    for (on, yes, no) in [
        (options.allow_other, "allow_other", ""),
        (options.default_permissions, "default_permissions", ""),
        (options.read_only, "ro", "rw"),
        (options.dev, "", "nodev"),
        (options.suid, "", "nosuid"),
        (options.exec, "exec", "noexec"),
        (options.noatime, "noatime", ""),
        (options.sync, "sync", ""),
        (options.dirsync, "dirsync", ""),
    ] {
        let word = if on { yes } else { no };
        if !word.is_empty() {
            text.push(',');
            text.push_str(word);
        }
    }
    if let Some(max_read) = options.max_read {
        text.push_str(&format!(",max_read={max_read}"));
    }
    Ok(text.into())
}

fn helper_unmount(path: &Path, lazy: bool) -> Result<(), MountError> {
    let output = Command::new(HELPER)
        .arg("-u")
        .args(lazy.then_some("-z"))
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| MountError::Helper(error.to_string()))?;
    if output.status.success() { Ok(()) } else { Err(fusermount_error(&output.stderr)) }
}

/// What the helper wrote to its standard error, on one line, without its own name in front.
fn fusermount_error(stderr: &[u8]) -> MountError {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim().trim_start_matches(HELPER).trim_start_matches(": ").replace('\n', "; ");
    MountError::Helper(if text.is_empty() { "failed without a word".into() } else { text })
}

/// Whether something is mounted at this path. The mount itself is not asked.
#[must_use]
pub fn is_mounted(mountpoint: &Path) -> bool {
    vellum_sys::top_mount(mountpoint).is_some()
}

/// The device number of a connection that has been negotiated: as the kernel says of its descriptor, where it does. The mount may be
/// in another mount namespace.
fn number_of(device: &OwnedFd, mountpoint: &Path) -> Option<String> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd())).ok()?;
    let number = info.lines().find_map(|line| line.strip_prefix("fuse_connection:"));
    number
        .map(|number| format!("0:{}", number.trim()))
        .or_else(|| Some(vellum_sys::top_mount(mountpoint)?.device))
}

/// Raises the read-ahead of the mount at this path (bytes): the kernel begins with 128 KiB, whatever INIT says, and
/// only sysfs goes above. False where that is not permitted; nothing is lost but speed of cold sequential reads.
pub(crate) fn set_read_ahead(device: &OwnedFd, mountpoint: &Path, bytes: u32) -> bool {
    let Some(number) = number_of(device, mountpoint) else { return false };
    let path = format!("/sys/class/bdi/{number}/read_ahead_kb");
    std::fs::write(path, (bytes / 1024).to_string()).is_ok()
}

/// Lets writers fill the page cache of the mount at this path as that of any other filesystem, until the machine as a
/// whole has too much that is unwritten. A FUSE mount begins with a strict limit of 1 % of memory, at which writers wait
/// although nothing is short. False where that is not permitted.
pub(crate) fn lift_strict_limit(device: &OwnedFd, mountpoint: &Path) -> bool {
    let Some(number) = number_of(device, mountpoint) else { return false };
    std::fs::write(format!("/sys/class/bdi/{number}/strict_limit"), "0").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountpoints_are_checked_first() {
        let options = MountOptions::default();
        let error = mount(Path::new("/proc/self/no-such-thing"), &options).unwrap_err();
        assert!(matches!(error, MountError::Mountpoint(_, Errno::NOENT)), "{error}");
        let error = mount(Path::new("/proc/self/status"), &options).unwrap_err();
        assert!(matches!(error, MountError::Mountpoint(_, Errno::NOTDIR)), "{error}");
        assert_eq!(error.errno(), Errno::NOTDIR);
        let bad = MountOptions { subtype: "a,b".into(), ..MountOptions::default() };
        assert!(matches!(mount(Path::new("/"), &bad), Err(MountError::Option("subtype"))));
    }

    #[test]
    fn names_are_quoted_for_the_helper() {
        let options = MountOptions { source: r"a,b\c".into(), allow_other: true, ..Default::default() };
        assert_eq!(
            helper_options(&options).unwrap(),
            r"fsname=a\,b\\c,subtype=vellum,allow_other,default_permissions,rw,nodev,nosuid,exec"
        );
    }
}
