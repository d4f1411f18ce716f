//! Set-id bits, capabilities and access-control lists stay where nobody has changed a program: whatever Vellum writes to it on its own account, and
//! whenever the kernel writes back what was written before they were set.

use super::setid::{CAPABILITY, NET_RAW};
use crate::harness::mount::only_vellum;
use crate::harness::outcome::{Outcome, ensure_eq};
use crate::harness::user::ordinary_user;
use crate::harness::{Cx, Layers, Mount, MountKind, shell};
use rustix::fs::{Mode, OFlags, Timespec, Timestamps, XattrFlags, fsetxattr, setxattr, utimensat};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// A change of a program that leaves its contents.
type Way = (&'static str, fn(&Path) -> Outcome);

const WAYS: &[Way] = &[
    ("touch", |path| touch(path, 1_000_000_000)),
    ("chmod", |path| Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o6711))?)),
    ("mv", |path| Ok(fs::rename(path, path.with_extension("moved"))?)),
    ("ln", |path| Ok(fs::hard_link(path, path.with_extension("again"))?)),
    ("setfattr", |path| Ok(setxattr(path, "user.comment", b"x", XattrFlags::empty())?)),
    ("open", |path| {
        drop(rustix::fs::open(path, OFlags::RDWR, Mode::empty())?);
        Ok(())
    }),
    ("setcap", |path| {
        touch(path, 1_000_000_000)?;
        drop(rustix::fs::open(path, OFlags::RDWR, Mode::empty())?);
        Ok(setxattr(path, CAPABILITY, &NET_RAW, XattrFlags::empty())?)
    }),
];

fn touch(path: &Path, secs: i64) -> Outcome {
    let time = Timespec { tv_sec: secs, tv_nsec: 5 };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty())?)
}

/// A small one, and one of which blocks are copied as they are written to.
const SIZES: [(&str, usize); 2] = [("small", 20_000), ("large", 3 << 20)];

fn fill(dir: &Path) -> Outcome {
    for (way, _) in WAYS {
        for (size, bytes) in SIZES {
            let path = dir.join(format!("{way}-{size}"));
            fs::write(&path, vec![b'x'; bytes])?;
            chown(&path, Some(1000), Some(1000))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o6755))?;
            shell::run(Command::new("setfacl").args(["-m", "u:1234:rwx,m:r-x"]).arg(&path))?;
            setxattr(&path, CAPABILITY, &NET_RAW, XattrFlags::empty())?;
            touch(&path, 900_000_000)?;
        }
    }
    Ok(())
}

fn change(mount: &Mount) -> Outcome {
    for (way, act) in WAYS {
        for (size, _) in SIZES {
            act(&mount.path(&format!("{way}-{size}")))?;
        }
    }
    Ok(())
}

/// What all programs in a directory are like.
fn look(dir: &Path) -> Outcome<Vec<String>> {
    let mut said = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let meta = fs::metadata(&path)?;
        if !meta.is_file() {
            continue;
        }
        let capability = rustix::fs::getxattr(&path, CAPABILITY, &mut [0; 64]).is_ok();
        let acl = shell::run(Command::new("getfacl").args(["-c", "--absolute-names"]).arg(&path))?;
        let (name, mode, owner) = (path.file_name().unwrap_or_default(), meta.mode(), meta.uid());
        let rights = acl.split_whitespace().collect::<Vec<_>>().join(" ");
        let time = (meta.mtime(), meta.mtime_nsec());
        said.push(format!(
            "{name:?} {mode:o} of {owner} capability {capability} {rights} {} of {time:?}",
            meta.len()
        ));
    }
    said.sort();
    Ok(said)
}

/// Completed when the mount has ended, or by the command, a program is what it is after the same changes by the kernel's overlayfs.
pub(super) fn stay(cx: &Cx) -> Outcome {
    only_vellum("completes nothing")?;
    let kernel = cx.layers("kernel", 1)?;
    fill(kernel.lower())?;
    let mut mount = Mount::kernel(&kernel)?;
    change(&mount)?;
    mount.remount()?;
    let expected = look(mount.root())?;
    mount.unmount()?;
    for option in ["fill_at_end=1G", "fill_at_end=off"] {
        let layers = cx.layers(option, 1)?;
        fill(layers.lower())?;
        let mut mount = cx.mount_with(&layers, &[option])?;
        change(&mount)?;
        super::same("while it is mounted", &expected, &look(mount.root())?)?;
        mount.unmount()?;
        let MountKind::Program(program, _) = MountKind::under_test() else { continue };
        if option.ends_with("off") {
            shell::run(Command::new(program).arg("flatten").arg(layers.upper()))?;
        }
        mount.mount()?;
        super::same(option, &expected, &look(mount.root())?)?;
        mount.unmount()?;
    }
    written_back(cx, &kernel)
}

/// What is set while data wait in the kernel's memory stays when they are written back, and what is taken away then does not come back.
fn written_back(cx: &Cx, kernel: &Layers) -> Outcome {
    let act = |mount: &Mount| -> Outcome<Vec<String>> {
        let dir = mount.path("made");
        fs::create_dir(&dir)?;
        for (name, taken) in [("set", false), ("taken", true)] {
            let path = dir.join(name);
            let flags = OFlags::RDWR | OFlags::CREATE;
            let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o755))?;
            rustix::io::write(&file, &vec![b'x'; 100_000])?;
            rustix::fs::fchmod(&file, Mode::from_raw_mode(0o4755))?;
            fsetxattr(&file, CAPABILITY, &NET_RAW, XattrFlags::empty())?;
            if taken {
                chown(&path, Some(1001), Some(1001))?;
            }
            touch(&path, 1_000_000_000)?;
            rustix::fs::fsync(&file)?;
        }
        look(&dir)
    };
    let mut mount = Mount::kernel(kernel)?;
    let expected = act(&mount)?;
    mount.unmount()?;
    let layers = cx.layers("written-back", 1)?;
    let mut mount = cx.mount(&layers)?;
    super::same("written back", &expected, &act(&mount)?)?;
    mount.remount()?;
    super::same("written back, mounted again", &expected, &look(&mount.path("made"))?)?;
    mount.unmount()
}

/// An ordinary user's service may write to a program only by taking its set-id bits away.
pub(super) fn of_a_user(cx: &Cx) -> Outcome {
    let script = "cd \"$2\"
        for mode in 4755 4711 2711 6755; do
            for size in 20000 3000000; do head -c $size /dev/zero > lower/$mode-$size; chmod $mode lower/$mode-$size; done
        done
        \"$1\" -o lowerdir=lower,upperdir=upper,workdir=work,profile=cached merged
        touch merged/*-*
        for f in merged/*-*; do exec 5<>$f; exec 5<&-; done
        exec 5>merged/1-made; head -c 50000 /dev/zero >&5; chmod 4755 merged/1-made; exec 5>&-
        fusermount3 -u merged
        while [ -e upper ] && ! flock -n upper true; do sleep 0.05; done
        cd upper; stat -c '%n %a %s' *-*";
    let said = shell::run(&mut ordinary_user(cx, script)?)?;
    let mut expected = vec!["1-made 4755 50000".to_owned()];
    for mode in ["2711", "4711", "4755", "6755"] {
        for size in ["20000", "3000000"] {
            expected.push(format!("{mode}-{size} {mode} {size}"));
        }
    }
    let mut seen: Vec<_> = said.lines().map(str::to_owned).collect();
    seen.sort();
    expected.sort();
    ensure_eq!(seen, expected, "modes");
    Ok(())
}

/// In a user namespace, capabilities for another one say nothing, and cannot be read.
pub(super) fn of_another_namespace(cx: &Cx) -> Outcome {
    let script = "cd \"$2\"; chmod 755 .
        cat > inside <<'END'
            \"$1\" -o lowerdir=lower,upperdir=upper,workdir=work merged
            chmod 711 merged/one; mv merged/two merged/moved; ln merged/three merged/again; echo more >> merged/four
            stat -c '%n %a %s' merged/one merged/moved merged/again merged/four
            umount merged
END
        unshare --user --map-root-user --mount bash -euo pipefail inside \"$1\"";
    let mut command = ordinary_user(cx, script)?;
    for name in ["one", "two", "three", "four"] {
        let path = cx.dir.join("home/lower").join(name);
        fs::write(&path, "0123456789")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        chown(&path, Some(1000), Some(1000))?;
        shell::run(Command::new("setcap").args(["-n", "500000", "cap_net_raw+ep"]).arg(&path))?;
    }
    let said = shell::run(&mut command)?;
    let expected = "merged/one 711 10\nmerged/moved 755 10\nmerged/again 755 10\nmerged/four 755 15\n";
    ensure_eq!(said, expected, "what is changed");
    Ok(())
}
