//! From a configuration to a client that is connected.

use super::library::{Library, PACKAGE};
use super::{CONNECTED, CephClient, SNAPSHOTS, outcome};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr, c_int, c_uint};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Longest time that connecting may take in each of its steps, in seconds.
const PATIENCE: &CStr = c"8";
/// Longest value of an option that is asked for, in bytes.
const VALUE_MAX: usize = 64 << 10;
/// What `ceph_mount` says where no metadata server is up, and where a configuration names no monitors; its own numbers.
const NO_SERVER: c_int = 1 << 2;
const NO_MONITORS: c_int = 1000;

/// What every client has, whatever its configuration file says.
const OPTIONS: [(&CStr, &CStr); 10] = [
    (c"client_mount_timeout", PATIENCE),
    // Access-control lists are honoured as the kernel's client honours them.
    (c"client_acl_type", c"posix_acl"),
    // Rights are judged above, as on any layer.
    (c"client_permissions", c"false"),
    // In calls on inodes, too: or the directory that a file is in could be asked of files only that somebody may run.
    (c"fuse_default_permissions", c"true"),
    // `.snap` is an ordinary name: nobody makes snapshots or looks into them by names of files.
    (c"client_snapdir", SNAPSHOTS),
    // The size of a directory does not change with what is below it.
    (c"client_dirsize_rbytes", c"false"),
    // What goes wrong is answered, not printed.
    (c"err_to_stderr", c"false"),
    (c"log_to_stderr", c"false"),
    (c"admin_socket", c""),
    // A service's handlers of signals are its own.
    (c"fatal_signal_handlers", c"false"),
];

/// How a cluster is reached. What is None is what Ceph's own programs take.
#[derive(Clone, Copy, Debug, Default)]
pub struct CephAccess<'a> {
    /// The configuration file.
    pub conf: Option<&'a CStr>,
    /// The client's name without `client.`.
    pub id: Option<&'a CStr>,
    pub filesystem: Option<&'a CStr>,
}

/// Clients that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct CephLineage<'a> {
    /// What the cluster calls them. No two that live at the same time may have one name.
    pub name: &'a CStr,
    /// One before may have died: the cluster forgets it at once, and does not wait for it.
    pub goes_on: bool,
}

/// What is wrong where there is no client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CephTrouble {
    /// The library is not there.
    Library,
    /// The configuration cannot be read, or says too little.
    Configuration,
    /// The key is missing, or the cluster refuses it or its rights.
    Key,
    /// Nobody answers.
    Silence,
    /// Something else.
    Other,
}

/// Why there is no client: one line for people, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CephRefusal {
    line: String,
    trouble: CephTrouble,
}

impl CephRefusal {
    /// What is wrong.
    #[must_use]
    pub const fn trouble(&self) -> CephTrouble {
        self.trouble
    }
}

impl fmt::Display for CephRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for CephRefusal {}

/// Loads the library, which takes rights that a service gives up: to map memory that can be run. The package that has it is named
/// where it is not there.
pub fn load() -> Result<(), CephRefusal> {
    library().map(drop)
}

fn library() -> Result<&'static Library, CephRefusal> {
    Library::get().map_err(|why| CephRefusal {
        line: format!("{why} (package {PACKAGE})"),
        trouble: CephTrouble::Library,
    })
}

/// A client that is configured and not connected: no thread of its own has been started.
pub struct CephSetup {
    client: CephClient,
    /// How a refusal begins.
    named: String,
}

impl CephSetup {
    /// Reads the configuration.
    pub fn read(access: CephAccess<'_>) -> Result<Self, CephRefusal> {
        let named = named(access);
        let refuse = |why: String| refusal(&named, &why, CephTrouble::Configuration);
        let client = CephClient::create(library()?, access.id).map_err(|e| refuse(e.to_string()))?;
        client.configure(access).map_err(refuse)?;
        Ok(Self { client, named })
    }

    /// The files in which the client looks for its key when it connects, as far as they are there.
    #[must_use]
    pub fn keys(&self) -> Vec<PathBuf> {
        let client = &self.client;
        let listed = [c"keyring", c"keyfile"].map(|option| client.option(option));
        let paths = listed.iter().flat_map(|list| list.split(|byte| b",; \t".contains(byte)));
        paths
            .filter(|path| !path.is_empty())
            .map(|path| PathBuf::from(OsStr::from_bytes(path)))
            .filter(|path| path.exists())
            .collect()
    }

    /// Connects and mounts the filesystem. To be called in the process that will use it, after the last fork: threads are started.
    /// With a predecessor it waits as long as no metadata server is up.
    pub fn connect(self, lineage: Option<CephLineage<'_>>) -> Result<Arc<CephClient>, CephRefusal> {
        let Self { mut client, named } = self;
        let mounted = client.begin(lineage).map_or_else(
            |code| code,
            // SAFETY: the client is configured and not mounted; no path stands for the root.
            |()| unsafe { (client.library.ceph_mount)(client.mount.raw(), ptr::null()) },
        );
        let (why, trouble) = match -mounted {
            0 => {
                client.mounted = true;
                CONNECTED.fetch_add(1, Ordering::Release);
                // Modes are those that calls ask for; the library takes its own umask for the caller's.
                // SAFETY: the client is mounted; the rest is a number.
                unsafe { (client.library.ceph_umask)(client.mount.raw(), 0) };
                client.device = client.identify();
                let client = Arc::new(client);
                client.meet();
                return Ok(client);
            }
            libc::ETIMEDOUT => ("no answer from the monitors or the metadata server", CephTrouble::Silence),
            NO_SERVER => ("no metadata server is up", CephTrouble::Silence),
            libc::EACCES | libc::EPERM => {
                ("the cluster refuses the client's key or its rights", CephTrouble::Key)
            }
            libc::ENOENT => (
                "it names no monitors, has no key for this client, or the filesystem is not there",
                CephTrouble::Configuration,
            ),
            NO_MONITORS => ("the configuration names no monitors", CephTrouble::Configuration),
            other => {
                let why = Errno::from_raw_os_error(other.clamp(1, 4095)).to_string();
                return Err(refusal(&named, &why, CephTrouble::Other));
            }
        };
        Err(refusal(&named, why, trouble))
    }
}

impl CephClient {
    /// Meets the cluster under a name. What the library has returned, where it failed.
    fn begin(&self, lineage: Option<CephLineage<'_>>) -> Result<(), c_int> {
        /// CEPH_RECLAIM_RESET: the other's session ends.
        const RESET: c_uint = 1;
        let Some(CephLineage { name, goes_on }) = lineage else { return Ok(()) };
        // SAFETY: the client is configured and not mounted.
        let met = unsafe { (self.library.ceph_init)(self.mount.raw()) };
        if met < 0 {
            return Err(met);
        }
        if goes_on {
            // SAFETY: it is initialised and not mounted; the name ends with NUL.
            let code = unsafe { (self.library.ceph_start_reclaim)(self.mount.raw(), name.as_ptr(), RESET) };
            // There may have been none, and a server may not know how: then the dead one is waited for.
            if code == 0 || code == -libc::ENOENT {
                // SAFETY: it has begun.
                unsafe { (self.library.ceph_finish_reclaim)(self.mount.raw()) };
            } else {
                tracing::debug!(code, "the session of a predecessor is left to its time");
            }
        }
        // SAFETY: it is initialised; the name ends with NUL and is not empty.
        unsafe { (self.library.ceph_set_uuid)(self.mount.raw(), name.as_ptr()) };
        Ok(())
    }

    fn configure(&self, access: CephAccess<'_>) -> Result<(), String> {
        let conf = access.conf.map_or(ptr::null(), CStr::as_ptr);
        // What is set stays, whatever a file says that is read later.
        for (name, value) in OPTIONS {
            // SAFETY: both end with NUL.
            let set =
                unsafe { (self.library.ceph_conf_set)(self.mount.raw(), name.as_ptr(), value.as_ptr()) };
            outcome(set).map_err(|e| format!("option {}: {e}", name.to_string_lossy()))?;
        }
        // SAFETY: the path ends with NUL or is none, which stands for the usual places.
        outcome(unsafe { (self.library.ceph_conf_read_file)(self.mount.raw(), conf) })
            .map_err(|e| format!("cannot read the configuration: {e}"))?;
        if let Some(name) = access.filesystem {
            // SAFETY: the name ends with NUL.
            outcome(unsafe { (self.library.ceph_select_filesystem)(self.mount.raw(), name.as_ptr()) })
                .map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// The value of an option; nothing where there is none.
    fn option(&self, name: &CStr) -> Vec<u8> {
        let mut value = vec![0_u8; VALUE_MAX];
        let to = value.as_mut_ptr().cast();
        // SAFETY: the name ends with NUL, and the library writes at most as many bytes as it is told.
        let code = unsafe { (self.library.ceph_conf_get)(self.mount.raw(), name.as_ptr(), to, value.len()) };
        let len = value.iter().position(|byte| *byte == 0).unwrap_or(0);
        value.truncate(if code < 0 { 0 } else { len });
        value
    }
}

/// Which cluster and client it is about.
fn named(access: CephAccess<'_>) -> String {
    let or =
        |given: Option<&CStr>, usual: &str| given.map_or(usual.into(), CStr::to_string_lossy).into_owned();
    format!("Ceph by {} as client.{}", or(access.conf, "the usual configuration"), or(access.id, "admin"))
}

fn refusal(named: &str, why: &str, trouble: CephTrouble) -> CephRefusal {
    CephRefusal { line: format!("{named}: {why}"), trouble }
}
