//! Files that clients are given: made, opened, opened once more.

use super::ops::check_not_removed;
use super::{Directory, is_complete_file, policy};
use crate::coherence::name_changes::NameChanger;
use crate::coherence::writers::Handouts;
use crate::nodes::node::Inherit;
use crate::union::Core;
use std::sync::Arc;
use vellum_vfs::{
    Client, DirName, Errno, ExportFile, ExportedFile, HandoutError, HandoutFlags, Name, NodeId, Verdict,
};

impl Core {
    /// A new regular file, made and opened. EEXIST: the name is taken, in whatever way.
    pub(super) fn hand_out_new(
        &self,
        client: &Client<'_>,
        at: &DirName<'_, Directory>,
        flags: HandoutFlags,
        mode: u32,
    ) -> Verdict<ExportFile> {
        let handouts = self.coherence.handouts()?;
        let (node, dir) = self.shared_dir_of(at)?;
        let names = self.lock_names(node, NameChanger::Client)?;
        check_not_removed(dir)?;
        let inherit = self.inherit_of(node)?;
        policy::check_create_file(client, inherit, mode)?;
        self.notes_shared(node, dir);
        self.coherence.check_new_name(node, dir, at.name)?;
        if !dir.lowers.is_empty() && names.child(at.name)?.is_some() {
            return Err(HandoutError::Error(Errno::EXIST));
        }
        let change = names.change();
        let (made, ino) =
            handouts.make_given(client, at, flags, mode, inherit).map_err(policy::refusal_for)?;
        handouts.opens(ino);
        handouts.note_handout(ino);
        change.note_new_file(at.name, ino);
        Ok(made)
    }

    /// A file that is there, opened to write, and cut if that is asked for.
    pub(super) fn hand_out(
        &self,
        client: &Client<'_>,
        at: &DirName<'_, Directory>,
        flags: HandoutFlags,
    ) -> Verdict<ExportFile> {
        let (handouts, _) = (self.coherence.handouts()?, self.coherence.front()?);
        let (parent, _) = self.shared_dir_of(at)?;
        // A client could set the mode of a file that it has open to read only, or open it once more, and nobody would see it.
        if !flags.contains(HandoutFlags::WRITE) {
            return Err(HandoutError::Kernel);
        }
        policy::check_use(client, self.inherit_of(parent)?, policy::SEARCH)?;
        // Dropped after the lock.
        let node;
        // Exclusively: a lookup at the same time would answer with attributes that are not to be believed any more.
        let names = self.lock_names(parent, NameChanger::Client)?;
        let opened = {
            policy::check_use(client, self.inherit_of(parent)?, policy::SEARCH)?;
            node = names.child(at.name)?.ok_or(HandoutError::Error(Errno::NOENT))?;
            let file = node.as_file().ok_or(HandoutError::Kernel)?;
            if !is_complete_file(&node, file) {
                return Err(HandoutError::Kernel);
            }
            let known = !self.nodes.is_unknown_to_kernel(&node);
            if known && !at.checked {
                return Err(HandoutError::Known);
            }
            handouts.opens(node.ino);
            let opened = at.dir.at.open(at.name, flags)?;
            policy::gets(client, &opened, flags, known)?;
            handouts.export.set_flags(&opened.file, flags)?;
            if opened.attr.ino != node.ino {
                return Err(HandoutError::Kernel);
            }
            let _shorter = self.coherence.truncates(&node, file);
            // An open by way of the front's cache may have begun meanwhile.
            if !is_complete_file(&node, file) {
                return Err(HandoutError::Kernel);
            }
            handouts.note_handout(node.ino);
            if known {
                names.recalls_file(node.id);
            }
            opened.file
        };
        if !names.tell() {
            return Err(HandoutError::Kernel);
        }
        // Last: what is refused has not been done. From here on the file is the client's, who may cut it at any time.
        if flags.contains(HandoutFlags::TRUNCATE) {
            handouts.export.truncate_to_zero(&opened)?;
        }
        Ok(opened)
    }

    /// The file of a node, opened to write, for a client that has it open by way of the front and makes it shorter only there.
    pub(super) fn hand_out_again(
        &self,
        client: &Client<'_>,
        id: NodeId,
        flags: HandoutFlags,
    ) -> Verdict<ExportFile> {
        let (handouts, _) = (self.coherence.handouts()?, self.coherence.front()?);
        // There a sync by way of the front does nothing.
        if self.layers.config.volatile {
            return Err(HandoutError::Kernel);
        }
        let node = self.node(id).map_err(|_| HandoutError::Stale)?;
        let file = node.as_file().ok_or(HandoutError::Kernel)?;
        let place = file.state.read().names.first().cloned().ok_or(HandoutError::Kernel)?;
        let name = Name::new(&place.name).map_err(|_| HandoutError::Kernel)?;
        if !is_complete_file(&node, file) {
            return Err(HandoutError::Kernel);
        }
        let raw = self.layers.target_of(&file.state.read())?.1.stat()?.ino;
        if self.layers.shown_ino(0, raw) != node.ino {
            // It is going to be synced past the union. Before any lock is taken: that waits for the disk.
            self.layers.sync_names(&node, file, &*self.layers.readable(file)?.file, false)?;
        }
        // As in `hand_out`.
        let names = self.lock_names(&place.parent, NameChanger::Client)?;
        let opened = {
            let is_there = file.state.read().names.contains(&place.parent, name);
            if !is_there || !is_complete_file(&node, file) {
                return Err(HandoutError::Kernel);
            }
            let (mut path, _) = self.upper_place(&place.parent)?;
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(place.name.to_bytes());
            // Once copied up it is shown under a number that it does not have itself.
            let itself = self.layers.target_of(&file.state.read())?.1.stat()?.ino;
            handouts.written.add(node.ino);
            let opened = handouts.export.open_file(&path, flags | HandoutFlags::WRITE)?;
            policy::gets_again(client, &opened)?;
            handouts.export.set_flags(&opened.file, flags)?;
            if opened.attr.ino != itself || !is_complete_file(&node, file) {
                return Err(HandoutError::Kernel);
            }
            handouts.note_handout(node.ino);
            opened.file
        };
        // An answer about attributes that is under way the kernel recognises as older than this.
        names.recalls_file(id);
        if names.tell() { Ok(opened) } else { Err(HandoutError::Kernel) }
    }

    /// Enters a directory.
    pub(super) fn hand_out_dir(&self, id: NodeId) -> Verdict<Directory> {
        let node = self.node(id).map_err(|_| HandoutError::Stale)?;
        let (path, ino) = self.upper_place(&node)?;
        let at = self.coherence.handouts()?.export.open_dir(&path, ino)?;
        Ok(Directory::new(Arc::clone(&node), at))
    }
}

impl Handouts {
    /// Makes a file in the upper layer that is the client's; its inode number. Nothing stays of what is not finished.
    fn make_given(
        &self,
        client: &Client<'_>,
        at: &DirName<'_, Directory>,
        flags: HandoutFlags,
        mode: u32,
        inherit: Inherit,
    ) -> Result<(ExportFile, u64), Errno> {
        let dir = &at.dir.at;
        let made =
            client.progress.once(|| dir.create(at.name, flags, mode)).map_err(|error| error.errno())?;
        match self.give(client, &made, inherit) {
            Ok(()) => Ok((made.file, made.attr.ino)),
            Err(errno) => {
                let _ = dir.remove(at.name);
                Err(if errno == Errno::EXIST { Errno::IO } else { errno })
            }
        }
    }

    /// Gives a new file to the client.
    fn give(&self, client: &Client<'_>, made: &ExportedFile, inherit: Inherit) -> Result<(), Errno> {
        // A set-group-id directory has given it its group.
        let gid = if inherit.is_setgid() { made.attr.gid } else { client.gid };
        if (made.attr.uid, made.attr.gid) == (client.uid, gid) {
            return Ok(());
        }
        self.export.set_owner(&made.file, client.uid, gid).map_err(|error| error.errno())
    }
}
