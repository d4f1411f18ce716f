//! Views: a directory of the upper layer for a program that looks at its names itself.
//!
//! What it gets is a mount of its own of that very directory, which can only be read, has nothing above it, and belongs to no namespace.
//! Who may look at what there is the kernel's to judge, each time, as it is for a directory that a program has open.

use super::calls::{Done, front};
use super::program::Program;
use rustix::io::Errno;
use vellum_ring::Request;
use vellum_ring::files::{KNOWN_MAX, name_hash};
use vellum_union::Refused;

/// A view of a directory that the program has entered.
pub(super) fn view(program: &mut Program<'_>, request: &Request) -> Result<Done, Refused> {
    let [number, has_mount, ..] = request.args;
    let host = program.host;
    let entered = program.find(number).ok_or(Refused::Stale)?;
    let tree = entered.tree.upgrade().ok_or(Refused::Stale)?;
    let view = tree.inner().view(&entered.dir, KNOWN_MAX)?;
    let known: Vec<u32> = view.known.iter().map(|name| name_hash(name.to_bytes())).collect();
    let word = [view.memory, view.slot.into(), view.word];
    if has_mount != 0 {
        return Ok(Done::View { mount: None, word, known });
    }
    let mut doors = host.doors().into_iter();
    let door = doors.find(|door| door.tree.ptr_eq(&entered.tree)).ok_or(Refused::Stale)?;
    let (path, ino) = tree.inner().upper_path(&entered.dir)?;
    let mount = door.direct.view(&path, ino).map_err(|error| {
        // A kernel before 6.15, or another mount namespace.
        if error != Errno::STALE {
            tracing::debug!(%error, "no view of a directory");
        }
        front(error)
    })?;
    Ok(Done::View { mount: Some(mount), word, known })
}
