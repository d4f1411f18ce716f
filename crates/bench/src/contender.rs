//! What is compared: a directory of the host, kernel overlayfs, and unions over FUSE.

use crate::ceph::{Ceph, CephLayers};
use crate::failure::{Failure, Result, While};
pub use crate::filesystem_kind::Kind;
use crate::interrupt;
use crate::pools::Pools;
use crate::programs::{self, on_path};
use crate::service::Service;
use crate::tasks::Task;
use crate::testbed::Layers;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};
use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The name of Vellum's library.
const LIBRARY: &str = "libvellum.so";
/// How long a mount may stay busy before it is detached,
const PATIENCE: Duration = Duration::from_secs(60);
/// and a service may go on living after that: it has written all before, or does so now.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// Programs that were named by the user, by subject; `vellum` stands for all of Vellum's.
pub type Programs = Vec<(String, PathBuf)>;

/// Reads `SUBJECT=PATH`.
pub fn program(text: &str) -> Result<(String, PathBuf)> {
    let known = |name: &str| name == "vellum" || Kind::named(name).is_some();
    match text.split_once('=') {
        Some((name, path)) if known(name) && !path.is_empty() => Ok((name.to_owned(), path.into())),
        _ => Err(Failure::bad_input(format!(
            "option --program {text}: write SUBJECT=PATH with a subject that --list names, or vellum=PATH"
        ))),
    }
}

/// A filesystem that can be compared here.
#[derive(Clone, Debug)]
pub struct Contender {
    pub kind: Kind,
    /// The program that serves it.
    pub program: Option<PathBuf>,
    /// Extra mount options, for trying things.
    pub options: Option<String>,
    /// What the program says of its version, one line.
    pub version: Option<String>,
    /// The library that its clients have loaded.
    pub library: Option<PathBuf>,
}

impl Contender {
    /// Finds what `kind` needs, or says why it cannot be had.
    pub fn find(kind: Kind, programs: &Programs) -> std::result::Result<Self, String> {
        let given = |name: &str| programs.iter().find(|(n, _)| n == name).map(|(_, path)| path.clone());
        let named = || given(kind.name()).or_else(|| given(kind.union().name()));
        let without = Self { kind, program: None, options: None, version: None, library: None };
        let root = rustix::process::geteuid().is_root();
        let found = |program: PathBuf| {
            let version = version(&program);
            let library = kind.has_library().then(|| library_of(&program)).transpose()?;
            Ok(Self { program: Some(program), version, library, ..without.clone() })
        };
        match kind.union() {
            Kind::Host => Ok(without),
            Kind::OverlayXfs if root && on_path("mkfs.xfs").is_empty() => {
                Err("no mkfs.xfs on PATH; install the package xfsprogs".into())
            }
            Kind::Overlay | Kind::OverlayXfs if root => Ok(without),
            Kind::Overlay | Kind::OverlayXfs => Err("kernel overlayfs needs root".into()),
            _ if !Path::new("/dev/fuse").exists() => Err("there is no /dev/fuse".into()),
            Kind::FuseOverlayfs | Kind::FuseOverlayfs2 => {
                if let Some(program) = named() {
                    return found(program);
                }
                let second = kind.union() == Kind::FuseOverlayfs2;
                let program = on_path("fuse-overlayfs").into_iter().find(|program| {
                    version(program)
                        .is_some_and(|version| major(&version).is_some_and(|n| (n >= 2) == second))
                });
                let remedy = if second {
                    "no fuse-overlayfs 2 on PATH; `cargo install fuse-overlayfs --root DIR`, then \
                     --program fuse-overlayfs-2=DIR/bin/fuse-overlayfs"
                } else {
                    "no fuse-overlayfs 1 on PATH; install the package fuse-overlayfs"
                };
                program.map_or_else(|| Err(remedy.into()), found)
            }
            Kind::UnionfsFuse => named()
                .or_else(|| on_path("unionfs").into_iter().next())
                .or_else(|| on_path("unionfs-fuse").into_iter().next())
                .map_or_else(|| Err("no unionfs on PATH; install the package unionfs-fuse".into()), found),
            _ if kind.has_pools() && !root => Err("control groups need root".into()),
            // All others are Vellum's.
            _ => named().or_else(|| given("vellum")).map_or_else(vellum, Ok).and_then(found),
        }
    }

    /// As [`Contender::find`], for layers on CephFS.
    pub fn find_remote(
        kind: Kind,
        programs: &Programs,
        far: CephLayers,
    ) -> std::result::Result<Self, String> {
        let why = match kind {
            _ if std::env::var_os("CEPH_CONF").is_none() => {
                "option --ceph: CEPH_CONF names no cluster; see scripts/ceph-local"
            }
            _ if on_path("ceph-fuse").is_empty() => "no ceph-fuse on PATH; install the package ceph-fuse",
            Kind::OverlayXfs => "its layers lie on XFS",
            Kind::Overlay if far == CephLayers::Both => {
                "the kernel's overlayfs takes no upper layer of ceph-fuse"
            }
            _ if kind.uses_writeback() && far == CephLayers::Lower => {
                "its upper layer lies on CephFS: --ceph both"
            }
            _ => return Self::find(kind, programs),
        };
        Err(why.into())
    }

    /// Mounts it over `layers`. A host directory becomes a copy of the lower layer when the task changes it, that layer itself
    /// with a new directory in it when it changes only that one, and is that layer otherwise.
    /// `tenant`: his number, and the pools where the subject has some. `more`: options of this mount alone, each with a comma before it.
    pub(crate) fn mount(
        &self,
        layers: &Layers,
        task: &Task,
        tenant: Option<(usize, &Pools)>,
        more: &str,
    ) -> Result<MountedSubject> {
        let called = |path: &Path| {
            let far = layers.far.as_ref().filter(|_| self.kind.is_vellum());
            far.and_then(|(mount, _)| Ceph::vellum_path(mount, path))
                .unwrap_or_else(|| path.display().to_string())
        };
        let lower = called(&layers.lower);
        let (upper, work) = (called(&layers.upper), called(&layers.work));
        let union = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let mut mounted = MountedSubject {
            root: layers.merged.clone(),
            within: None,
            kind: self.kind,
            service: None,
            is_mounted: false,
        };
        let mut options = match self.kind.union() {
            Kind::Host if !task.alters => {
                mounted.root = layers.lower.clone();
                return Ok(mounted);
            }
            Kind::Host if let Some((_, alone)) = &layers.far => {
                let from = layers.lower.join(".");
                programs::run(Command::new("cp").arg("-a").arg(from).arg(alone))?;
                mounted.root.clone_from(alone);
                return Ok(mounted);
            }
            Kind::Host if let Some(only) = task.only => {
                interrupt::register(&layers.merged);
                mounted.bind(layers, only)?;
                return Ok(mounted);
            }
            Kind::Host => {
                let from = layers.lower.join(".");
                programs::run(Command::new("cp").arg("-a").arg(from).arg(&layers.merged))?;
                return Ok(mounted);
            }
            Kind::UnionfsFuse => "cow,use_ino,suid,dev,default_permissions".into(),
            // What is done after a mount has ended is not to disturb what comes next.
            Kind::VellumCached | Kind::VellumCachedPools | Kind::VellumShares => {
                format!("{union},profile=cached,fill_at_end=off")
            }
            Kind::VellumPassthrough | Kind::VellumLibrary | Kind::VellumPassthroughPools => {
                format!("{union},profile=passthrough,fill_at_end=off")
            }
            _ => union,
        };
        options.push_str(more);
        if self.kind.uses_writeback() {
            options.push_str(",ceph.write=back");
        }
        if layers.far.is_some() && self.kind.is_vellum() && task.cache.is_none() {
            // An image's layers.
            options.push_str(",cache=immutable");
        }
        if let Some(more) = &self.options {
            options.push(',');
            options.push_str(more);
        }
        interrupt::register(&layers.merged);
        interrupt::check()?;
        mounted.is_mounted = true;
        match (&self.program, self.kind.union()) {
            (None, _) => {
                let options = CString::new(options).doing(|| "mount options")?;
                mount("overlay", &layers.merged, "overlay", MountFlags::empty(), options.as_c_str())
                    .doing(|| "mounting overlayfs")?;
            }
            (Some(program), Kind::UnionfsFuse) => {
                if rustix::process::geteuid().is_root() {
                    options.push_str(",allow_other");
                }
                let branches = format!("{upper}=RW:{lower}=RO");
                serve(Command::new(program).arg("-o").arg(options).arg(branches).arg(&layers.merged))?;
            }
            (Some(program), _) => {
                let mut command = Command::new(program);
                if let Some((number, pools)) = tenant {
                    pools.join(number, &mut command, &mut options);
                }
                serve(command.arg("-o").arg(options).arg(&layers.merged))?;
            }
        }
        if !is_mount_point(&layers.merged) {
            return Err(Failure::new(format!("{} has mounted nothing", self.kind.name())));
        }
        if self.program.is_some() {
            mounted.service = Service::of_mountpoint(&layers.merged);
        }
        Ok(mounted)
    }
}

/// Runs a program that mounts and goes into the background. Its stderr is a file, not a pipe, as the process in the
/// background may hold it open.
fn serve(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let path = std::env::temp_dir().join(format!("vellum-bench-{}.stderr", std::process::id()));
    let said = std::fs::File::create(&path).doing(|| "making a file for messages")?;
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said).status();
    let said = std::fs::read_to_string(&path).unwrap_or_default();
    let _ = std::fs::remove_file(&path);
    let status = status.doing(|| name.clone())?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::new(format!("{name}: {status}: {}", said.lines().next().unwrap_or("no message"))))
}

fn is_mount_point(path: &Path) -> bool {
    let dev = |path: &Path| std::fs::metadata(path).map(|meta| meta.dev()).ok();
    dev(path) != path.parent().and_then(dev)
}

/// A subject that is mounted; dropping it unmounts.
#[derive(Debug)]
pub struct MountedSubject {
    /// The root of the tree.
    pub root: PathBuf,
    /// The process that serves it, where there is one.
    pub service: Option<Service>,
    within: Option<PathBuf>,
    kind: Kind,
    is_mounted: bool,
}

impl MountedSubject {
    /// Shows the lower layer, which cannot be changed there, with the upper one in place of its directory `only`.
    fn bind(&mut self, layers: &Layers, only: &str) -> Result<()> {
        let say = || "binding the host's directories";
        mount_bind(&layers.lower, &self.root).doing(say)?;
        self.is_mounted = true;
        mount_remount(&self.root, MountFlags::BIND | MountFlags::RDONLY, c"").doing(say)?;
        let within = self.root.join(only.trim_start_matches('/'));
        mount_bind(&layers.upper, &within).doing(say)?;
        self.within = Some(within);
        Ok(())
    }

    /// Unmounts, and waits until the service has ended.
    pub fn unmount(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.is_mounted) {
            return Ok(());
        }
        if let Some(within) = self.within.take() {
            unmount(&within, UnmountFlags::DETACH).doing(|| "unmounting")?;
        }
        let start = std::time::Instant::now();
        while let Err(error) = detach_and_remove(&self.root) {
            if !is_mount_point(&self.root) {
                break;
            }
            if start.elapsed() > PATIENCE {
                unmount(&self.root, UnmountFlags::DETACH).doing(|| format!("unmounting ({error})"))?;
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        interrupt::unregister(&self.root);
        if let Some(service) = self.service
            && !service.wait_gone(LAST_WORDS)
        {
            return Err(Failure::new(format!(
                "the service of {} (process {}) lives on after its unmount; does another mount namespace hold it?",
                self.kind.name(),
                service.pid
            )));
        }
        Ok(())
    }
}

impl Drop for MountedSubject {
    fn drop(&mut self) {
        if let Err(failure) = self.end() {
            eprintln!("vellum-bench: {failure}");
        }
    }
}

fn detach_and_remove(path: &Path) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return unmount(path, UnmountFlags::empty()).doing(|| "unmounting");
    }
    programs::run(Command::new("fusermount3").arg("-u").arg("--").arg(path))
}

/// Vellum's program: the one beside this one, or on PATH. Err: why there is none.
pub(crate) fn vellum() -> std::result::Result<PathBuf, String> {
    let own = std::env::current_exe().ok().map(|own| own.with_file_name("vellum"));
    own.filter(|program| program.exists())
        .or_else(|| on_path("vellum").into_iter().next())
        .ok_or_else(|| "no vellum beside this program or on PATH; `cargo build --release`".to_owned())
}

/// The library that belongs to a program, beside it.
fn library_of(program: &Path) -> std::result::Result<PathBuf, String> {
    // The loader takes a name without a slash for that of an installed library.
    let library = std::path::absolute(program.with_file_name(LIBRARY)).unwrap_or_default();
    if library.is_file() {
        return Ok(library);
    }
    Err(format!("no {LIBRARY} beside {}; `make library` builds it", program.display()))
}

/// The first line of `--version` that has a number in it.
fn version(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let own = program.file_name()?.as_bytes().to_vec();
    let lines: Vec<OsString> =
        text.split(|byte| *byte == b'\n').map(|line| OsString::from_vec(line.to_vec())).collect();
    let line = lines
        .iter()
        .filter_map(|line| line.to_str())
        .find(|line| line.as_bytes().starts_with(&own) && line.contains(|c: char| c.is_ascii_digit()))?;
    Some(line.trim().to_owned())
}

/// The first number in a version.
fn major(version: &str) -> Option<u32> {
    let digits = version.split(|c: char| !c.is_ascii_digit()).find(|word| !word.is_empty())?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_beside_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("vellum");
        let why = library_of(&program).unwrap_err();
        assert!(why.contains("libvellum.so") && why.contains("make library"), "{why}");
        std::fs::write(dir.path().join("libvellum.so"), "").unwrap();
        assert_eq!(library_of(&program).unwrap(), dir.path().join("libvellum.so"));
    }

    #[test]
    fn programs_are_named_by_subject() {
        assert_eq!(program("vellum=/x").unwrap(), ("vellum".into(), "/x".into()));
        for bad in ["vellum", "vellum=", "other=/x", "=/x"] {
            assert!(program(bad).unwrap_err().bad_input, "{bad}");
        }
    }

    #[test]
    fn versions() {
        assert_eq!(major("fuse-overlayfs: version 1.10"), Some(1));
        assert_eq!(major("fuse-overlayfs: version 2.0.0"), Some(2));
        assert_eq!(major("none"), None);
    }
}
