//! An upper layer that is no directory of this host, shown as one, for it is walked like one. In a store on a zoned device it is as it lies there, by the
//! service that has the store open. On CephFS it is as it would lie here, by a process of its own with a client of its own: who reads from a mount that
//! he serves himself cannot be killed in the middle of that.

use super::detached_mount::DetachedMount;
use super::pause::last_line;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use vellum_fuse::{FuseMount, MountOptions};
use vellum_service::Failure;
use vellum_service::layers::ceph::CephLayer;
use vellum_service::layers::zoned::ZonedLayer;
use vellum_service::store_server::{ConnectOutcome, StoreClient};

/// The subcommand of `vellum` that shows a layer on CephFS.
pub const SHOWS: &str = "internal-show";
/// What it says when the layer is there to be read.
const BEGUN: u8 = b'+';
/// How long its end is waited for, and the time between two looks.
const LEAVING: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(2);

/// It is shown as long as somebody has something of it open.
#[derive(Debug)]
pub(super) struct UpperView {
    /// None only while it is dropped.
    apart: Option<DetachedMount>,
    /// The process that shows it.
    child: Option<Child>,
}

impl Drop for UpperView {
    fn drop(&mut self) {
        // Its process ends with the mount, and not by force: its cluster would wait for it.
        self.apart = None;
        if let Some(child) = &mut self.child {
            vellum_sys::wait_until(LEAVING, LOOK, || !matches!(child.try_wait(), Ok(None)));
        }
    }
}

impl UpperView {
    /// Asks the service. `scratch`: a directory where one is made for a moment.
    pub(super) fn stored(layer: &ZonedLayer, scratch: &Path) -> Result<Self, Failure> {
        let failed = |why: &dyn std::fmt::Display| {
            Failure::system(format!("upper layer {layer}: its service does not show it: {why}"))
        };
        let client = match StoreClient::connect(layer.device(), false) {
            ConnectOutcome::In(client) => client,
            ConnectOutcome::Nobody => return Err(failed(&"it has ended, or lets nobody in")),
            ConnectOutcome::No(why) => return Err(failed(&why)),
        };
        let (apart, mounted) = mounted(scratch).map_err(|e| failed(&e))?;
        client.show(layer.path().as_os_str().as_bytes(), mounted.device.as_fd()).map_err(|e| failed(&e))?;
        Ok(Self { apart: Some(apart), child: None })
    }

    /// Has `vellum` show one on CephFS. As [`Self::stored`].
    pub(super) fn remote(vellum: &Path, layer: &CephLayer, scratch: &Path) -> Result<Self, Failure> {
        let failed = |why: &dyn std::fmt::Display| Failure::system(format!("upper layer {layer}: {why}"));
        let name = serde_json::to_string(layer).map_err(|e| failed(&e))?;
        let (apart, FuseMount { device, .. }) = mounted(scratch).map_err(|e| failed(&e))?;
        let mut command = Command::new(vellum);
        // Away from the keyboard's signals: it ends with the mount.
        command.arg(SHOWS).arg(name).process_group(0).current_dir("/");
        command.stdin(device).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| failed(&e))?;
        // With it goes our end of the connection.
        drop(command);
        let mut word = [0];
        let heard = child.stdout.as_mut().map(|from| from.read_exact(&mut word));
        if matches!(heard, Some(Ok(()))) && word == [BEGUN] {
            return Ok(Self { apart: Some(apart), child: Some(child) });
        }
        let said = last_line(&child.wait_with_output().map_err(|e| failed(&e))?.stderr);
        Err(failed(&said.strip_prefix("vellum: ").unwrap_or(&said)))
    }

    /// A path to it, for programs of this user.
    pub(super) fn path(&self) -> &Path {
        self.apart.as_ref().map_or(Path::new(""), DetachedMount::path)
    }
}

fn mounted(scratch: &Path) -> Result<(DetachedMount, FuseMount), String> {
    DetachedMount::new(MountOptions { source: "vellum-layer".to_owned(), ..MountOptions::default() }, scratch)
}

/// Shows a layer on CephFS by the connection on standard input, until it is unmounted.
pub fn show(layer: &OsStr) -> Result<(), Failure> {
    let failed = |e: &dyn std::error::Error| Failure::system("a layer that is to be shown").because(e);
    let layer: CephLayer = serde_json::from_slice(layer.as_bytes()).map_err(|e| failed(&e))?;
    let connection: OwnedFd = io::stdin().as_fd().try_clone_to_owned().map_err(|e| failed(&e))?;
    // Otherwise it would be open as long as this process is.
    let nothing = File::options().read(true).write(true).open("/dev/null").map_err(|e| failed(&e))?;
    rustix::stdio::dup2_stdin(&nothing).map_err(|e| failed(&e))?;
    layer.visit()?.show(connection, || {
        // What Ceph's library prints from now on nobody reads.
        let _ = rustix::stdio::dup2_stderr(&nothing);
        // Who has asked may have ended; then the mount ends, too.
        let _ = io::stdout().write_all(&[BEGUN]).and_then(|()| io::stdout().flush());
    })
}
