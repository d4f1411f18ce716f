//! Ids that are mapped or squashed, and mounts of ordinary users.

use super::filled;
use crate::harness::outcome::{Outcome, ensure, ensure_eq};
use crate::harness::raw::AsUser;
use crate::harness::{Cx, Mount, MountKind, shell};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

fn owner(path: &Path) -> Outcome<(u32, u32)> {
    let meta = fs::symlink_metadata(path)?;
    Ok((meta.uid(), meta.gid()))
}

pub(super) fn mapping(cx: &Cx) -> Outcome {
    let layers = cx.layers("union", 1)?;
    for (name, id) in [("root", 0), ("user", 1000), ("outside", 70_000)] {
        fs::write(layers.lower().join(name), name)?;
        chown(layers.lower().join(name), Some(id), Some(id))?;
    }
    fs::create_dir(layers.lower().join("open"))?;
    fs::set_permissions(layers.lower().join("open"), fs::Permissions::from_mode(0o777))?;
    let mut mount = cx.mount_with(&layers, &["uidmapping=:0:100000:65536", "gidmapping=:0:100000:65536"])?;
    ensure_eq!(owner(&mount.path("root"))?, (100_000, 100_000), "owner of root's file");
    ensure_eq!(owner(&mount.path("user"))?, (101_000, 101_000), "owner of a user's file");
    ensure_eq!(owner(&mount.path("outside"))?, (65_534, 65_534), "owner of a file outside of the map");
    {
        let _user = AsUser::new(100_005, 100_006);
        fs::write(mount.path("open/new"), "x")?;
    }
    ensure_eq!(owner(&mount.path("open/new"))?, (100_005, 100_006), "owner of a new file");
    chown(mount.path("user"), Some(100_007), Some(100_008))?;
    mount.unmount()?;
    ensure_eq!(owner(&layers.upper().join("open/new"))?, (5, 6), "owner of a new file in the upper");
    ensure_eq!(owner(&layers.upper().join("user"))?, (7, 8), "owner of a changed file in the upper");
    Ok(())
}

pub(super) fn squash(cx: &Cx) -> Outcome {
    let (layers, mut mount) = filled(cx, |dir| {
        fs::write(dir.join("user"), "x")?;
        Ok(chown(dir.join("user"), Some(1000), Some(1000))?)
    })?;
    mount.unmount()?;
    for (options, expected) in
        [(&["squash_to_root"][..], (0, 0)), (&["squash_to_uid=5", "squash_to_gid=6"][..], (5, 6))]
    {
        let mut mount = cx.mount_with(&layers, options)?;
        ensure_eq!(owner(&mount.path("user"))?, expected, "owner with {options:?}");
        fs::write(mount.path("new"), "x")?;
        ensure_eq!(owner(&mount.path("new"))?, expected, "owner of a new file with {options:?}");
        fs::remove_file(mount.path("new"))?;
        mount.unmount()?;
    }
    Ok(())
}

/// What the user does in a namespace of his own: $1 is the mount program, $2 the directory, $3 further options.
const ROOTLESS: &str = r#"
cd "$2"
"$1" -o "lowerdir=lower,upperdir=upper,workdir=work$3" merged
mountpoint -q merged
[ "$(cat merged/file)" = below ]
echo changed > merged/file
echo new > merged/new
mkdir merged/made && rmdir merged/dir/sub && rm merged/gone
mv merged/dir merged/renamed
chmod 4755 merged/new
ln merged/new merged/new2
ln -s new merged/symlink
setfattr -n user.own -v 1 merged/new
mkfifo merged/fifo
python3 -c 'import mmap
f=open("merged/file","r+b"); m=mmap.mmap(f.fileno(),0); m[0:1]=b"C"; m.flush()'
look() { (cd merged && find . -mindepth 1 -printf '%P %y %m %U:%G %n %l\n' | sort && cat file new) }
look > before
umount merged
for i in $(seq 50); do
  "$1" -o "lowerdir=lower,upperdir=upper,workdir=work$3" merged 2> error && break; sleep 0.1
done
look > after
umount merged
cat before; diff before after
"#;

pub(super) fn user_namespace(cx: &Cx) -> Outcome {
    let MountKind::Program(program, _) = MountKind::under_test() else {
        return crate::harness::skip("a mount by a program, in a user namespace");
    };
    // The user reaches only what is open to everybody; /dev/fuse may not be, without udev.
    let home = cx.dir.join("home");
    for dir in ["lower/dir/sub", "upper", "work", "merged"] {
        fs::create_dir_all(home.join(dir))?;
    }
    for (name, text) in [("file", "below\n"), ("gone", "x")] {
        fs::write(home.join("lower").join(name), text)?;
    }
    shell::run(Command::new("chown").args(["-R", "1000:1000"]).arg(&home))?;
    let fuse = cx.dir.join("fuse");
    shell::run(
        shell::bash("mknod \"$0\" c 10 229; chmod 666 \"$0\"; mount --bind \"$0\" /dev/fuse").arg(&fuse),
    )?;
    let options = cx.profile.map(|profile| format!(",profile={profile}")).unwrap_or_default();
    let output = Command::new("setpriv")
        .args(["--reuid=1000", "--regid=1000", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"])
        .args([
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "bash",
            "-euo",
            "pipefail",
            "-c",
            ROOTLESS,
            "bash",
        ])
        .arg(&program)
        .arg(&home)
        .arg(options)
        .env("HOME", &home)
        .stdin(Stdio::null())
        .output()?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{out}\n{err}");
    if cx.profile == Some(crate::harness::Profile::Passthrough) {
        // Who asks for what only privilege can give is told so.
        ensure!(!output.status.success(), "passthrough without privilege was accepted");
        ensure!(err.contains("option profile=passthrough"), "refused without a word about it: {err}");
        ensure_eq!(fs::read_dir(home.join("upper"))?.count(), 0, "names in the upper");
        return Ok(());
    }
    ensure!(output.status.success(), "the user's script ended with {}: {err}", output.status);
    for line in ["new f 4755 0:0 2", "made d", "renamed d", "symlink l", "Changed"] {
        ensure!(out.contains(line), "{line:?} is not in what the user saw");
    }
    ensure!(!out.contains("gone f") && !out.contains("dir d"), "what was removed is there");
    // Everything in the upper belongs to the user.
    let foreign = shell::run(Command::new("find").arg(home.join("upper")).args(["!", "-uid", "1000"]))?;
    ensure!(foreign.is_empty(), "not the user's: {foreign}");
    let _: fn(&Mount) -> &Path = Mount::root;
    Ok(())
}
