//! `vellum run` with an image and a kept upper layer on CephFS.

use super::cluster::Cluster;
use crate::cases::pool::Pools;
use crate::cases::run::support::{Runs, listing};
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, shell};
use rustix::process::Signal;
use std::ffi::CString;
use vellum_vfs::{BranchDir, Name};

/// A container's root comes from there, what is written goes where it is to go, and nothing else is left.
pub(super) fn run(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let runs = Runs::new(cx)?;
    std::os::unix::fs::chown(&runs.image, Some(7), Some(8))?;
    cluster.put(&runs.image, "run-image")?;
    let conf = cluster.conf.display().to_string();
    let far = |more: &[&str]| {
        let mut command = runs.bare(&["--image", "ceph:/run-image", "--ceph-conf", &conf]);
        command.args(more);
        command
    };
    let ran = |more: &[&str]| -> Outcome<String> {
        let said = shell::run(&mut far(more))?;
        runs.check_no_leftovers()?;
        Ok(said)
    };
    // The root's owner and mode are the image's, though its upper layer is new.
    let changed = "cat /srv/file; rm /srv/file; echo x > /etc/passwd; stat -c '%u %g %a' /";
    let before = listing(&runs.image)?;
    ensure_eq!(ran(&["sh", "-c", changed])?, "of the image\n7 8 755\n", "output");
    ensure_eq!(ran(&["--cache", "immutable", "cat", "/srv/file"])?, "of the image\n", "the next container");
    ensure_eq!(listing(&runs.image)?, before, "the image");

    // What is kept is kept there, beside an image there and one of this host; also after a kill.
    let root = cluster.root()?;
    make(&*root, "run-kept")?;
    let dir = root.open_dir(Name::new(c"run-kept").doing("a name")?).doing("a directory")?;
    make(&*dir, "upper")?;
    drop((root, dir));
    let kept = ["--upper", "ceph:/run-kept/upper"];
    let said = ran(&[&kept[..], &["sh", "-c", "echo kept > /srv/mine; rm /srv/file"]].concat())?;
    ensure_eq!(said, "", "output");
    let here = runs.image.display().to_string();
    let shown = ["sh", "-c", "cat /srv/mine; ls /srv"];
    let local = [&["--image", &here, "--ceph-conf", &conf][..], &kept, &shown].concat();
    ensure_eq!(shell::run(&mut runs.bare(&local))?, "kept\nmine\n", "over a local image");
    let with = [&["--ceph-conf", &conf][..], &kept].concat();
    let killed = [&with[..], &["sh", "-c", "echo more > /srv/more; echo ready; sleep 100"]].concat();
    let killed = runs.start(&killed)?;
    killed.signal(Signal::KILL)?;
    drop(killed);
    ensure_eq!(ran(&[&kept[..], &["cat", "/srv/more"]].concat())?, "more\n", "after a kill");
    ensure_eq!(cluster.names("run-kept")?, ["upper"], "beside the upper layer");

    pool(cx, cluster, &runs)?;

    let missing = cx.dir.join("missing").display().to_string();
    for (command, word) in [
        (far(&["--upper", "ceph:/run-kept/nowhere", "true"]), "ceph:/run-kept/nowhere"),
        (far(&["--upper", "ceph:/", "true"]), "below the root"),
        (runs.bare(&["--image", "ceph:/nowhere", "--ceph-conf", &conf, "true"]), "ceph:/nowhere"),
        (runs.bare(&["--image", "ceph:/run-image", "--ceph-conf", &missing, "true"]), "ceph.conf=FILE"),
        (runs.bare(&["--image", &here, "--ceph-id", "x", "true"]), "nothing is on CephFS"),
    ] {
        let mut command = command;
        shell::refused(&mut command, word)?;
        runs.check_no_leftovers()?;
    }
    ensure_eq!(cluster.names("run-kept")?, ["upper"], "beside the upper layer, in the end");
    Ok(())
}

/// Most lookups, and most reads of objects, that a container's start may take: a name of the image is asked for once, its marks not at all,
/// for nothing lies below it, and the one program of 2 MB is fetched in pieces of 1 MiB.
const LOOKUPS_MAX: u64 = 25;
const READS_MAX: u64 = 14;

/// What a container's start asks of the cluster.
pub(super) fn counted(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let runs = Runs::new(cx)?;
    cluster.put(&runs.image, "counted-image")?;
    let conf = cluster.conf.display().to_string();
    for (more, name) in [(&["--cache", "immutable"][..], "immutable"), (&[], "no cache")] {
        let mut command = runs.bare(&["--image", "ceph:/counted-image", "--ceph-conf", &conf]);
        command.args(more).args(["sh", "-c", "cat /srv/file"]);
        let before = cluster.asked()?;
        ensure_eq!(shell::run(&mut command)?, "of the image\n", "{name}: output");
        let asked = cluster.asked()?.since(before);
        println!("a start, {name}: {asked:?}");
        ensure!(asked.lookups <= LOOKUPS_MAX, "{name}: {asked:?}");
        ensure!(more.is_empty() || asked.reads <= READS_MAX, "{name}: {asked:?}");
        runs.check_no_leftovers()?;
    }
    Ok(())
}

/// In a pool that may reach clusters, and not in another one.
fn pool(cx: &Cx, cluster: &Cluster, runs: &Runs<'_>) -> Outcome {
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    let conf = cluster.conf.display().to_string();
    let container = || {
        let image = ["--image", "ceph:/run-image", "--ceph-conf", &conf, "--upper", "ceph:/run-kept/upper"];
        let rest = ["--pool", pools.name(), "sh", "-c", "cat /srv/more; cat /proc/self/cgroup"];
        runs.bare(&[&image[..], &rest].concat())
    };
    shell::refused(&mut container(), "--ceph on")?;
    runs.check_no_leftovers()?;
    pools.run("set", &["--ceph", "on"])?;
    let said = shell::run(&mut container())?;
    ensure!(said.starts_with("more\n") && said.contains(pools.name()), "in a pool: {said}");
    runs.check_no_leftovers()?;
    // The pool's cluster, also when it is one that claims a layer of this host.
    let here = runs.image.display().to_string();
    pools.run("set", &["--ceph-conf", &conf, "--storage", &here])?;
    let upper = ["--upper", "ceph:/run-kept/upper", "sh", "-c", "cat /srv/more; cat /proc/self/cgroup"];
    for image in [&["--image", "ceph:/run-image", "--pool", pools.name()][..], &["--image", &here]] {
        let said = shell::run(&mut runs.bare(&[image, &upper].concat()))?;
        ensure!(said.starts_with("more\n") && said.contains(pools.name()), "{image:?}: {said}");
        runs.check_no_leftovers()?;
    }
    Ok(())
}

fn make(dir: &dyn BranchDir, name: &str) -> Outcome {
    let text = CString::new(name).doing("a name")?;
    dir.make_dir(Name::new(&text).doing("a name")?, 0o755).doing("mkdir")
}
