//! What users of a union notice, a case each: many of these go wrong elsewhere.

mod attributes;
mod direct_io;
mod directories;
mod executables;
mod identity;
mod kernel_cache;
mod layers;
mod mappings;
mod names;
mod nested_unions;
mod open_files;
mod options;
mod owners;
mod privilege;
mod program_rights;
mod setid;

pub(super) use layers::no_leftovers;

use super::Case;
use crate::harness::outcome::{DuringContext, Outcome, ensure};
use crate::harness::{Cx, Layers, Mount};
use std::fs;
use std::path::Path;

pub(super) const CASES: &[Case] = &[
    Case::mounted("behaviour/setgid-directories-and-umask", 60, attributes::setgid_and_umask),
    Case::mounted("behaviour/default-acl", 60, attributes::default_acl),
    Case::mounted("behaviour/removed-directory", 60, directories::removed),
    Case::mounted("behaviour/unlinked-open-file", 60, attributes::unlinked_open),
    Case::mounted("behaviour/xattrs-of-symlinks", 60, attributes::symlink_xattrs),
    Case::mounted("behaviour/copy-up-keeps-everything", 60, attributes::copy_up_keeps),
    Case::mounted("behaviour/setid-bits-go-with-a-write", 60, attributes::setid_on_write),
    Case::mounted("behaviour/programs-lose-their-rights", 60, setid::programs),
    Case::mounted("behaviour/programs-keep-their-rights", 60, program_rights::stay),
    Case::once("behaviour/programs-of-a-user-keep-set-ids", 60, program_rights::of_a_user),
    Case::once("behaviour/programs-of-another-namespace", 60, program_rights::of_another_namespace),
    Case::mounted("behaviour/ctime-stays", 60, attributes::ctime_stays),
    Case::mounted("behaviour/names-too-long", 60, names::too_long),
    Case::mounted("behaviour/names-like-whiteouts", 60, names::like_whiteouts),
    Case::mounted("behaviour/rename-over-own-name", 60, names::over_own_name),
    Case::mounted("behaviour/device-0-0", 60, names::device_zero),
    Case::mounted("behaviour/unions-above", 60, nested_unions::unions_above),
    Case::mounted("behaviour/whiteouts-of-all-formats", 60, layers::whiteout_formats),
    Case::once("behaviour/squashed-by-a-user", 60, owners::squashed_by_a_user),
    Case::once("behaviour/adopted-layers", 60, owners::adopted),
    Case::mounted("behaviour/upper-as-a-lower", 60, layers::upper_as_lower),
    Case::mounted("behaviour/500-layers", 60, layers::many),
    Case::mounted("behaviour/read-only", 60, layers::read_only),
    Case::mounted("behaviour/mounted-over-its-own-lower", 60, layers::over_own_lower),
    Case::mounted("behaviour/statfs", 60, layers::statfs),
    Case::mounted("behaviour/volatile", 60, layers::volatile),
    Case::mounted("behaviour/kill-9", 60, layers::kill_nine),
    Case::mounted("behaviour/one-writer", 60, layers::one_writer),
    Case::mounted("behaviour/mount-again-at-once", 60, layers::again_at_once),
    Case::mounted("behaviour/umount-waits", 60, layers::umount_waits),
    Case::mounted("behaviour/mount-program-t", 60, layers::mount_t),
    Case::mounted("behaviour/hard-links", 60, identity::hard_links),
    Case::mounted("behaviour/20000-links", 240, identity::many_links),
    Case::mounted("behaviour/more-links-than-the-upper-takes", 120, identity::more_than_the_upper_takes),
    Case::mounted("behaviour/inode-numbers", 60, identity::inode_numbers),
    Case::mounted("behaviour/file-handles", 60, identity::handles),
    Case::mounted("behaviour/handles-of-links", 60, identity::handles_of_links),
    Case::mounted("behaviour/rename-directories", 60, directories::rename),
    Case::mounted("behaviour/100000-entries", 240, directories::large),
    Case::mounted("behaviour/lower-that-changes", 60, directories::changing_lower),
    Case::mounted("behaviour/listing-while-entries-change", 60, directories::changing),
    Case::mounted("behaviour/large-copy-up-delays-nobody", 120, directories::large_copy_up),
    Case::mounted("behaviour/mapping-before-copy-up", 60, mappings::before_copy_up),
    Case::mounted("behaviour/one-file-over-copy-up", 60, mappings::one_file),
    Case::mounted("behaviour/mapping-and-reads-agree", 60, mappings::agree),
    Case::mounted("behaviour/times-of-mappings", 60, mappings::times),
    Case::mounted("behaviour/holes", 60, mappings::holes),
    Case::mounted("behaviour/append-flag", 60, mappings::append_flag),
    Case::mounted("behaviour/propagation", 60, options::propagation),
    Case::mounted("behaviour/allow-root", 60, options::allow_root),
    Case::mounted("behaviour/asynchronous-direct-writes", 60, direct_io::asynchronous),
    Case::mounted("behaviour/crash-clients", 60, kernel_cache::killed_clients),
    Case::mounted("behaviour/large-copies", 60, kernel_cache::large_copies),
    Case::mounted("behaviour/full-disk", 120, kernel_cache::full_disk),
    Case::mounted("behaviour/running-is-not-cut", 60, executables::refuses_truncation),
    Case::mounted("behaviour/more-open-than-the-service-may", 60, open_files::more_than_the_service_may),
    Case::mounted("behaviour/id-mapping", 60, privilege::mapping),
    Case::once("behaviour/owners-in-attributes", 60, owners::in_attributes),
    Case::mounted("behaviour/trusted-names", 60, attributes::trusted_names),
    Case::mounted("behaviour/squash", 60, privilege::squash),
    Case::mounted("behaviour/user-namespace", 60, privilege::user_namespace),
];

/// Does the same on a plain directory and on a mount whose lower has the same content, and compares what comes
/// out; then once more after a remount.
fn as_on_plain(
    cx: &Cx,
    fill: impl Fn(&Path) -> Outcome,
    act: impl Fn(&Path) -> Outcome<Vec<String>>,
    look: impl Fn(&Path) -> Outcome<Vec<String>>,
) -> Outcome {
    let plain = cx.dir.join("plain");
    fs::create_dir(&plain)?;
    fill(&plain)?;
    let layers = cx.layers("union", 1)?;
    fill(layers.lower())?;
    let mut mount = cx.mount(&layers)?;
    same("through the mount", &act(&plain).doing("below")?, &act(mount.root())?)?;
    mount.remount()?;
    same("after remount", &look(&plain).doing("below")?, &look(mount.root())?)?;
    mount.unmount()
}

pub(super) fn same(what: &str, expected: &[String], seen: &[String]) -> Outcome {
    let only = |some: &[String], others: &[String], side: &str| -> Vec<String> {
        some.iter().filter(|line| !others.contains(line)).map(|line| format!("  {side}: {line}")).collect()
    };
    let mut lines = only(expected, seen, "as a plain directory");
    lines.extend(only(seen, expected, what));
    ensure!(expected == seen, "{what} it is not as in a plain directory\n{}", lines.join("\n"));
    Ok(())
}

/// A mount over one lower with some content.
fn filled(cx: &Cx, fill: impl Fn(&Path) -> Outcome) -> Outcome<(Layers, Mount)> {
    let layers = cx.layers("union", 1)?;
    fill(layers.lower())?;
    let mount = cx.mount(&layers)?;
    Ok((layers, mount))
}
