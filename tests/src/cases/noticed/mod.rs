//! What users of a union notice, a case each: many of these go wrong elsewhere.

mod attributes;
mod direct_io;
mod directories;
mod identity;
mod kernel_cache;
mod layers;
mod mappings;
mod names;
mod nested;
mod open_files;
mod options;
mod owners;
mod privilege;
mod rights;
mod running;
mod setid;

pub(super) use layers::no_leftovers;

use super::Case;
use crate::harness::outcome::{Doing, Outcome, ensure};
use crate::harness::{Cx, Layers, Mount};
use std::fs;
use std::path::Path;

pub(super) const CASES: &[Case] = &[
    Case::mounted("noticed/setgid-directories-and-umask", 60, attributes::setgid_and_umask),
    Case::mounted("noticed/default-acl", 60, attributes::default_acl),
    Case::mounted("noticed/removed-directory", 60, directories::removed),
    Case::mounted("noticed/unlinked-open-file", 60, attributes::unlinked_open),
    Case::mounted("noticed/xattrs-of-symlinks", 60, attributes::symlink_xattrs),
    Case::mounted("noticed/copy-up-keeps-everything", 60, attributes::copy_up_keeps),
    Case::mounted("noticed/setid-bits-go-with-a-write", 60, attributes::setid_on_write),
    Case::mounted("noticed/programs-lose-their-rights", 60, setid::programs),
    Case::mounted("noticed/programs-keep-their-rights", 60, rights::stay),
    Case::once("noticed/programs-of-a-user-keep-set-ids", 60, rights::of_a_user),
    Case::once("noticed/programs-of-another-namespace", 60, rights::of_another_namespace),
    Case::mounted("noticed/ctime-stays", 60, attributes::ctime_stays),
    Case::mounted("noticed/names-too-long", 60, names::too_long),
    Case::mounted("noticed/names-like-whiteouts", 60, names::like_whiteouts),
    Case::mounted("noticed/rename-over-own-name", 60, names::over_own_name),
    Case::mounted("noticed/device-0-0", 60, names::device_zero),
    Case::mounted("noticed/unions-above", 60, nested::unions_above),
    Case::mounted("noticed/whiteouts-of-all-formats", 60, layers::whiteout_formats),
    Case::once("noticed/squashed-by-a-user", 60, owners::squashed_by_a_user),
    Case::once("noticed/adopted-layers", 60, owners::adopted),
    Case::mounted("noticed/upper-as-a-lower", 60, layers::upper_as_lower),
    Case::mounted("noticed/500-layers", 60, layers::many),
    Case::mounted("noticed/read-only", 60, layers::read_only),
    Case::mounted("noticed/mounted-over-its-own-lower", 60, layers::over_own_lower),
    Case::mounted("noticed/statfs", 60, layers::statfs),
    Case::mounted("noticed/volatile", 60, layers::volatile),
    Case::mounted("noticed/kill-9", 60, layers::kill_nine),
    Case::mounted("noticed/one-writer", 60, layers::one_writer),
    Case::mounted("noticed/mount-again-at-once", 60, layers::again_at_once),
    Case::mounted("noticed/umount-waits", 60, layers::umount_waits),
    Case::mounted("noticed/mount-program-t", 60, layers::mount_t),
    Case::mounted("noticed/hard-links", 60, identity::hard_links),
    Case::mounted("noticed/20000-links", 240, identity::many_links),
    Case::mounted("noticed/more-links-than-the-upper-takes", 120, identity::more_than_the_upper_takes),
    Case::mounted("noticed/inode-numbers", 60, identity::inode_numbers),
    Case::mounted("noticed/file-handles", 60, identity::handles),
    Case::mounted("noticed/handles-of-links", 60, identity::handles_of_links),
    Case::mounted("noticed/rename-directories", 60, directories::rename),
    Case::mounted("noticed/100000-entries", 240, directories::large),
    Case::mounted("noticed/lower-that-changes", 60, directories::changing_lower),
    Case::mounted("noticed/listing-while-entries-change", 60, directories::changing),
    Case::mounted("noticed/large-copy-up-delays-nobody", 120, directories::large_copy_up),
    Case::mounted("noticed/mapping-before-copy-up", 60, mappings::before_copy_up),
    Case::mounted("noticed/one-file-over-copy-up", 60, mappings::one_file),
    Case::mounted("noticed/mapping-and-reads-agree", 60, mappings::agree),
    Case::mounted("noticed/times-of-mappings", 60, mappings::times),
    Case::mounted("noticed/holes", 60, mappings::holes),
    Case::mounted("noticed/append-flag", 60, mappings::append_flag),
    Case::mounted("noticed/propagation", 60, options::propagation),
    Case::mounted("noticed/allow-root", 60, options::allow_root),
    Case::mounted("noticed/asynchronous-direct-writes", 60, direct_io::asynchronous),
    Case::mounted("noticed/killed-clients", 60, kernel_cache::killed_clients),
    Case::mounted("noticed/large-copies", 60, kernel_cache::large_copies),
    Case::mounted("noticed/full-disk", 120, kernel_cache::full_disk),
    Case::mounted("noticed/running-is-not-cut", 60, running::is_not_cut),
    Case::mounted("noticed/more-open-than-the-service-may", 60, open_files::more_than_the_service_may),
    Case::mounted("noticed/id-mapping", 60, privilege::mapping),
    Case::once("noticed/owners-in-attributes", 60, owners::in_attributes),
    Case::mounted("noticed/trusted-names", 60, attributes::trusted_names),
    Case::mounted("noticed/squash", 60, privilege::squash),
    Case::mounted("noticed/user-namespace", 60, privilege::user_namespace),
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
