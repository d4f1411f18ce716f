//! Names that are hard to store.

use super::attributes::USER;
use super::{as_on_plain, filled};
use crate::harness::outcome::{Outcome, ensure, ensure_eq};
use crate::harness::raw::AsUser;
use crate::harness::{Cx, Profile, tree};
use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

pub(super) fn too_long(cx: &Cx) -> Outcome {
    let fill = |dir: &Path| {
        fs::write(dir.join("l".repeat(255)), "lower")?;
        Ok(fs::create_dir(dir.join("m".repeat(255)))?)
    };
    let act = |dir: &Path| {
        let mut said = Vec::new();
        let mode = Mode::from_raw_mode(0o755);
        for len in [252, 255, 256, 300] {
            let path = dir.join("n".repeat(len));
            let other = dir.join("o".repeat(len));
            said.push(format!("{len} stat {:?}", rustix::fs::stat(&path).map(drop)));
            said.push(format!("mkdir {:?}", rustix::fs::mkdir(&path, mode)));
            said.push(format!("rename {:?}", rustix::fs::rename(&path, &other)));
            said.push(format!("rmdir {:?}", rustix::fs::rmdir(&other)));
            said.push(format!("unlink {:?}", rustix::fs::unlink(&other)));
            said.push(format!("symlink {:?}", rustix::fs::symlink("x", &path)));
            said.push(format!("link {:?}", rustix::fs::link(&path, &other)));
        }
        let long = format!("{}x", "./".repeat(2048));
        said.push(format!("{:?}", rustix::fs::stat(dir.join(long)).map(drop)));
        // A name of full length in a lower can be hidden, and can come back.
        fs::remove_file(dir.join("l".repeat(255)))?;
        fs::remove_dir(dir.join("m".repeat(255)))?;
        ensure!(!dir.join("l".repeat(255)).exists(), "a removed long name is still there");
        fs::create_dir(dir.join("l".repeat(255)))?;
        Ok(said)
    };
    let look = |dir: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(dir)?.flatten().map(|entry| format!("{:?}", entry.file_name())).collect();
        names.sort();
        Ok(names)
    };
    as_on_plain(cx, fill, act, look)
}

pub(super) fn like_whiteouts(cx: &Cx) -> Outcome {
    let fill = |dir: &Path| {
        fs::write(dir.join("foo"), "below")?;
        fs::create_dir(dir.join("dir"))?;
        Ok(fs::write(dir.join("dir/kept"), "below")?)
    };
    let act = |dir: &Path| {
        fs::write(dir.join(".wh.foo"), "mine")?;
        fs::write(dir.join("dir/.wh..wh..opq"), "mine")?;
        fs::create_dir(dir.join(".wh.dir"))?;
        fs::write(dir.join(".wh.new"), "1")?;
        fs::rename(dir.join(".wh.new"), dir.join("dir/.wh.renamed"))?;
        fs::write(dir.join("gone"), "1")?;
        fs::remove_file(dir.join("gone"))?;
        contents(dir)
    };
    as_on_plain(cx, fill, act, contents)
}

fn contents(dir: &Path) -> Outcome<Vec<String>> {
    let tree = tree::take(dir, 0)?;
    Ok(tree.iter().map(|(path, node)| format!("{path} {:o} {:?}", node.mode, node.head)).collect())
}

pub(super) fn device_zero(cx: &Cx) -> Outcome {
    let (layers, mut mount) = filled(cx, |dir| Ok(fs::write(dir.join("below"), "x")?))?;
    let mode = Mode::from_raw_mode(0o604);
    let make = |name: &str| rustix::fs::mknodat(CWD, mount.path(name), FileType::CharacterDevice, mode, 0);
    make("zero")?;
    fs::remove_file(mount.path("below"))?;
    make("below")?;
    make("moved")?;
    rustix::fs::renameat_with(CWD, mount.path("moved"), CWD, mount.path("there"), RenameFlags::NOREPLACE)?;
    let check = |root: &Path, when: &str| {
        for name in ["zero", "below", "there"] {
            let meta = fs::symlink_metadata(root.join(name))?;
            ensure!(meta.file_type().is_char_device(), "{when}: {name} is {:o}", meta.mode());
            ensure_eq!((meta.rdev(), meta.mode() & 0o7777), (0, 0o604), "{when}: {name}");
        }
        let count = fs::read_dir(root)?.count();
        ensure_eq!(count, 3, "{when}: entries");
        Ok(())
    };
    check(mount.root(), "made")?;
    mount.remount()?;
    check(mount.root(), "after remount")?;
    mount.unmount()?;
    let again = layers.as_lowers("again")?;
    let other = cx.mount(&again)?;
    check(other.root(), "upper as a lower")?;
    drop(other);
    mount.mount()?;
    rustix::fs::unlinkat(CWD, mount.path("below"), AtFlags::empty())?;
    ensure!(fs::symlink_metadata(mount.path("below")).is_err(), "removed, and what is below shows again");
    mount.unmount()
}

/// POSIX has the rename of a file over another one of its names do nothing, and nobody needs a permission for that.
pub(super) fn over_own_name(cx: &Cx) -> Outcome {
    let large = vec![b'b'; 64 << 10];
    let files: [(&str, &[u8]); 2] = [("small", b"below"), ("large", &large)];
    let (_layers, mut mount) =
        filled(cx, |dir| files.iter().try_for_each(|(name, data)| Ok(fs::write(dir.join(name), data)?)))?;
    for (name, data) in files {
        let (one, other) = (mount.path(name), mount.path(&format!("{name}-too")));
        fs::hard_link(&one, &other)?;
        ensure_eq!(fs::read(&one)?, data, "before the copy-up");
        let reader = File::open(&one)?;
        OpenOptions::new().append(true).open(&other)?.write_all(b", above")?;
        let renamed = {
            let _user = AsUser::new(USER, USER);
            fs::rename(&one, &other).map_err(|error| error.raw_os_error())
        };
        // The kernel was given the lower file, and knows two.
        let expected = match cx.profile {
            Some(Profile::Passthrough) if name == "large" => Err(Some(libc::EACCES)),
            _ => Ok(()),
        };
        ensure_eq!(renamed, expected, "{name}: by a user that may not change the directory");
        fs::rename(&one, &other)?;
        drop(reader);
        for name in [&one, &other] {
            ensure_eq!(
                fs::read(name)?,
                [data, b", above"].concat(),
                "{}: after both renames",
                name.display()
            );
        }
    }
    mount.unmount()
}
