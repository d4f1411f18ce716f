//! The control group of a container: inside that of its pool, so that its processes are counted with those of its mount.

use super::runtime::{Kind, Runtime};
use super::state::SYSTEM;
use rustix::fs::{Access, access};
use sha2::{Digest, Sha256};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use vellum_pool::Pool;
use vellum_pool::cgroup::Hierarchies;
use vellum_service::Failure;

/// Where a container's processes are put, and by whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Placement {
    /// The group that the runtime makes; None: the container stays in the group of who starts it.
    pub(super) group: Option<PathBuf>,
    /// Whether we enter the pool ourselves first, and the container with us.
    pub(super) enter: bool,
}

/// What decides it.
#[derive(Clone, Copy, Debug)]
struct Host {
    /// Root of the host, and it may make groups.
    may_make: bool,
    /// Version 2 and nothing else.
    unified: bool,
}

/// What the group of a container is called. Its name is its own in one directory for containers, and there may be several: then the group says which,
/// unless it is the usual one.
pub(super) fn name(state: &Path, id: &str) -> String {
    if std::fs::canonicalize(SYSTEM).is_ok_and(|usual| usual == state) {
        return id.to_owned();
    }
    let digest = Sha256::digest(state.as_os_str().as_bytes());
    let sum: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    // No name has this character.
    format!("{id}@{sum}")
}

/// The place of a container whose group is called `id`.
pub(super) fn place(pool: Option<&Pool>, id: &str, runtime: &Runtime) -> Result<Placement, Failure> {
    let hierarchies = Hierarchies::detect()?;
    let writable = |top: &Path| access(top, Access::WRITE_OK).is_ok();
    let may_make = vellum_pool::privilege::is_host_root()
        && hierarchies.tops().next().is_some()
        && hierarchies.tops().all(writable);
    let host = Host { may_make, unified: hierarchies.is_unified() };
    let placement = placed(pool.map(|pool| pool.name().as_str()), id, runtime.kind(), host);
    if placement.group.is_none() {
        let program = runtime.program().display();
        match pool {
            Some(pool) if !placement.enter => {
                tracing::warn!(pool = %pool.name(), "{program} can make no group in the pool here: only the mount is in it");
            }
            _ => tracing::info!(
                "{program} makes no control group here: the container is in that of who starts it"
            ),
        }
    }
    Ok(placement)
}

fn placed(pool: Option<&str>, id: &str, kind: Kind, host: Host) -> Placement {
    let group = |path: String| Placement { group: Some(path.into()), enter: false };
    match pool {
        // In version 2 a group with processes, as that of a pool is, gives no controllers to groups below. Without a manager the
        // container stays where the runtime was started.
        Some(_) if host.unified || !host.may_make => {
            Placement { group: None, enter: kind == Kind::Crun || !host.may_make }
        }
        Some(pool) => group(format!("/vellum/{pool}/{id}")),
        None if host.may_make => group(format!("/vellum-{id}")),
        None => Placement::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_one_name_are_as_many_as_directories() {
        let names = ["/a", "/b", "/a"].map(|state| name(Path::new(state), "web"));
        assert!(names[0] != names[1] && names[0] == names[2], "{names:?}");
        assert!(names.iter().all(|name| name.starts_with("web@") && name.len() == 12), "{names:?}");
    }

    #[test]
    fn a_container_belongs_to_the_pool_of_its_directory() {
        let (host, crun, runc) = (|may_make, unified| Host { may_make, unified }, Kind::Crun, Kind::Other);
        let of = |pool, kind, host| {
            let placed = placed(pool, "id", kind, host);
            (placed.group.map(|path| path.display().to_string()), placed.enter)
        };
        let path = |text: &str| Some(text.to_owned());
        assert_eq!(of(Some("p"), crun, host(true, false)), (path("/vellum/p/id"), false));
        assert_eq!(of(Some("p"), runc, host(true, false)), (path("/vellum/p/id"), false));
        assert_eq!(of(None, runc, host(true, false)), (path("/vellum-id"), false));
        assert_eq!(of(None, crun, host(true, true)), (path("/vellum-id"), false));
        assert_eq!(of(Some("p"), crun, host(true, true)), (None, true));
        assert_eq!(of(Some("p"), runc, host(true, true)), (None, false));
        assert_eq!(of(Some("p"), crun, host(false, true)), (None, true));
        assert_eq!(of(None, crun, host(false, false)), (None, false));
    }
}
