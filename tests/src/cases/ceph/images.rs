//! Image layouts on CephFS, and upper layers that are completed with what is there, or that are there.

use super::cluster::Cluster;
use super::trees::{layers, mount, program};
use super::upper::far;
use crate::cases::run::layout;
use crate::cases::run::support::{Runs, names};
use crate::harness::mount::Profile;
use crate::harness::outcome::{DuringContext, Outcome, Stop, ensure, ensure_eq};
use crate::harness::{Cx, shell};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Duration;
use vellum_vfs::Name;

const MIB: usize = 1 << 20;
/// What the image says that runs, and what that prints.
const SAID: &str = "33 /srv image entrypoint cmd\n";

/// A layout there is read as one of this host, by whatever name it is found to be one; its layers are unpacked here, once.
pub(super) fn layouts(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let runs = Runs::new(cx)?;
    let dir = cx.dir.join("layout");
    layout::write(&dir, &runs.image)?;
    cluster.put(&dir, "layout")?;
    cluster.put(&dir, "odd:v1")?;
    let conf = cluster.conf.display().to_string();
    let run = |runs: &Runs<'_>, image: &str| runs.bare(&["--image", image, "--ceph-conf", &conf]);
    for image in
        ["oci:ceph:/layout:v1", "oci:ceph:/layout", "ceph:/layout", "oci:ceph:/odd:v1", "oci:ceph:odd:v1:v1"]
    {
        ensure_eq!(shell::run(&mut run(&runs, image))?, SAID, "{image}");
        runs.check_no_leftovers()?;
        ensure_eq!(names(&runs.state.join("layers"))?.len(), 2, "{image}: layers");
    }
    // An upper layer may be there as well.
    let kept = far(cx, cluster, "layout-kept", &[])?;
    let upper = kept.upper.unwrap_or_default().display().to_string();
    let mut command = run(&runs, "oci:ceph:/layout:v1");
    command.args([
        "--upper",
        &upper,
        "--user",
        "0",
        "--entrypoint",
        "sh",
        "--",
        "-c",
        "cat /opaque/above; echo x > /srv/x",
    ]);
    ensure_eq!(shell::run(&mut command)?, "above", "with an upper layer there");
    runs.check_no_leftovers()?;
    ensure_eq!(cluster.names("layout-kept/upper/srv")?, ["x"], "the upper layer");

    for (number, (blob, cause)) in layout::damaged(&dir)?.enumerate() {
        let (name, own) = (format!("damaged{number}"), runs.elsewhere(cx.dir.join(format!("state{number}"))));
        cluster.put(&dir, &name)?;
        shell::refused(run(&own, &format!("oci:ceph:/{name}:v1")).env("VELLUM_LOG", "error"), &cause)?;
        own.check_no_leftovers()?;
        fs::write(&blob.path, blob.contents)?;
    }
    for (image, word) in [
        ("oci:ceph:/layout:v2", "v1"),
        ("oci:ceph:/layout/blobs", "no OCI image layout there"),
        ("oci:ceph:/nowhere:v1", "ceph:/nowhere"),
    ] {
        shell::refused(&mut run(&runs, image), word)?;
        runs.check_no_leftovers()?;
    }
    Ok(())
}

/// `vellum flatten` of an upper layer there, and of one here above a layer there: it needs no other layer any more.
pub(super) fn flatten(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let (local, empty) = (cx.dir.join("local"), cx.dir.join("empty"));
    fs::create_dir(&local)?;
    fs::create_dir(&empty)?;
    let mut data: Vec<u8> = (0..8 * MIB).map(|at| (at / 4096 + at % 251) as u8).collect();
    fs::write(local.join("file"), &data)?;
    cluster.put(&local, "flatten-lower")?;
    let (here, empty) = (local.display().to_string(), empty.display().to_string());
    let conf = cluster.conf.display().to_string();
    let flatten = |arguments: &[&str]| -> Outcome<Command> {
        let mut command = Command::new(program()?);
        command.arg("flatten").args(arguments).args(["--ceph-conf", &conf]);
        Ok(command)
    };
    data[3 * MIB..3 * MIB + 7].copy_from_slice(b"changed");
    for lower in [here.as_str(), "ceph:/flatten-lower"] {
        let name = if lower == here { "flatten-one" } else { "flatten-two" };
        let there = far(cx, cluster, name, &[lower])?;
        let upper = format!("ceph:/{name}/upper");
        let mut written = mount(cluster, &there, Profile::Cached, &[])?;
        File::options().write(true).open(written.path("file"))?.write_all_at(b"changed", 3 * MIB as u64)?;
        let output = flatten(&[&upper, "--lower", lower])?.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            !output.status.success() && said.contains("another mount writes to it"),
            "{name}: mounted: {said}"
        );
        written.unmount()?;
        shell::refused(&mut flatten(&[&upper])?, "name them with --lower")?;
        let said = shell::run(&mut flatten(&[&upper, "--lower", lower])?)?;
        ensure!(said.contains("1 of 1 files completed"), "{name}: {said}");
        let said = shell::run(&mut flatten(&[&upper])?)?;
        ensure!(said.contains("every file is complete"), "{name}, again: {said}");
        let mut beside = cluster.names(name)?;
        beside.sort();
        ensure_eq!(beside, ["upper", "work"], "{name}: beside the upper layer");
        let alone = layers(cx, &format!("{name}-alone"), &[empty.as_str()])?;
        let alone = crate::harness::Layers { upper: there.upper, work: there.work, ..alone };
        let alone = mount(cluster, &alone, Profile::Cached, &[])?;
        ensure!(fs::read(alone.path("file"))? == data, "{name}: contents");
    }

    interrupted(cx, cluster, &flatten)?;
    killed(cx, cluster, flatten)?;

    // Here, above a layer there, which has no name that could be recorded.
    let local = layers(cx, "here", &["ceph:/flatten-lower"])?;
    let upper = local.upper.clone().unwrap_or_default().display().to_string();
    let mut written = mount(cluster, &local, Profile::Cached, &["fill_at_end=off"])?;
    File::options().write(true).open(written.path("file"))?.write_all_at(b"changed", 3 * MIB as u64)?;
    written.unmount()?;
    shell::refused(Command::new(program()?).args(["flatten", &upper]), "name them with --lower")?;
    let said = shell::run(&mut flatten(&[&upper, "--lower", "ceph:/flatten-lower"])?)?;
    ensure!(said.contains("1 of 1 files completed"), "here: {said}");
    ensure!(fs::read(format!("{upper}/file"))? == data, "here: contents");
    shell::refused(&mut flatten(&[&upper, "--ceph-id", "x"])?, "nothing is on CephFS")?;
    for (bad, word) in [
        ("ceph:/nowhere/upper", "ceph:/nowhere"),
        ("ceph:/flatten-long/nothing", "ceph:/flatten-long/nothing"),
        ("ceph:/", "beside the filesystem's root"),
    ] {
        shell::refused(&mut flatten(&[bad, "--lower", &here])?, word)?;
    }
    ensure_eq!(cluster.names("flatten-long")?.len(), 2, "beside the upper layers, in the end");
    Ok(())
}

/// Who is interrupted gives the layer back at once, and goes on where it was.
fn interrupted(cx: &Cx, cluster: &Cluster, flatten: &impl Fn(&[&str]) -> Outcome<Command>) -> Outcome {
    let local = cx.dir.join("long");
    fs::create_dir(&local)?;
    fs::write(local.join("file"), vec![b'x'; 128 * MIB])?;
    let lower = local.display().to_string();
    let there = far(cx, cluster, "flatten-long", &[&lower])?;
    let mut written = mount(cluster, &there, Profile::Cached, &[])?;
    File::options().write(true).open(written.path("file"))?.write_all_at(b"changed", 3 * MIB as u64)?;
    written.unmount()?;
    let upper = "ceph:/flatten-long/upper";
    let mut command = flatten(&[upper, "--lower", &lower])?;
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    while cluster.writer("flatten-long/upper")?.is_none() && child.try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let stopped = cluster.stop_storage()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.ok_or(rustix::io::Errno::SRCH)?, Signal::INT)?;
    drop(stopped);
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure_eq!(output.status.code(), Some(1), "interrupted: {said}");
    ensure!(said.contains("run the command again") && said.lines().count() == 1, "interrupted: {said}");
    let said = shell::run(&mut flatten(&[upper, "--lower", &lower])?)?;
    ensure!(said.contains("1 of 1 files completed"), "after an interruption: {said}");
    ensure_eq!(cluster.names("flatten-long")?.len(), 2, "beside the upper layer, after an interruption");
    Ok(())
}

/// What one who was killed has left goes with the next one, or with the next mount.
fn killed(cx: &Cx, cluster: &Cluster, flatten: impl Fn(&[&str]) -> Outcome<Command>) -> Outcome {
    let local = cx.dir.join("killed");
    fs::create_dir(&local)?;
    fs::write(local.join("file"), vec![b'x'; 64 * MIB])?;
    let lower = local.display().to_string();
    let there = far(cx, cluster, "flatten-killed", &[&lower])?;
    let write = |at: u64| -> Outcome {
        let mut written = mount(cluster, &there, Profile::Cached, &[])?;
        File::options().write(true).open(written.path("file"))?.write_all_at(b"changed", at)?;
        written.unmount()
    };
    write(0)?;
    let upper = "ceph:/flatten-killed/upper";
    let beside = |what: &str| -> Outcome {
        let mut names = cluster.names("flatten-killed")?;
        names.sort();
        ensure_eq!(names, ["upper", "work"], "{what}: beside the upper layer");
        let mut names = cluster.names("flatten-killed/upper")?;
        names.sort();
        ensure_eq!(names, [".vellum.maps", "file"], "{what}: in the upper layer");
        Ok(())
    };
    for (number, wait) in [0, 20, 0, 150].into_iter().enumerate() {
        let mut child =
            flatten(&[upper, "--lower", &lower])?.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let is_begun = || Ok::<_, Stop>(cluster.names("flatten-killed")?.len() > 2);
        while child.try_wait()?.is_none() && !is_begun()? {}
        std::thread::sleep(Duration::from_millis(wait));
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH)?;
        child.kill()?;
        child.wait()?;
        // The cluster would wait for it for a minute.
        cluster.forget(pid)?;
        println!("killed after {wait} ms: {:?}", cluster.names("flatten-killed")?);
        if number % 2 == 0 {
            write(MIB as u64)?;
            beside("mounted")?;
        }
        println!("maps: {:?}", cluster.names("flatten-killed/upper/.vellum.maps")?);
    }
    let probe = CString::new(".wh..vellum.probe").doing("a name")?;
    for dir in ["work", "upper"] {
        let path = CString::new(format!("flatten-killed/{dir}")).doing("a path")?;
        drop(cluster.open(&path)?.create(Name::new(&probe).doing("a name")?, 0o600).doing("a file")?);
        write(2 * MIB as u64)?;
        beside("a probe")?;
        let left = cluster.names(&format!("flatten-killed/{dir}"))?;
        ensure!(!left.iter().any(|name| name.ends_with("probe")), "{dir}: {left:?}");
    }
    let said = shell::run(&mut flatten(&[upper, "--lower", &lower])?)?;
    ensure!(said.contains("1 of 1 files completed"), "at last: {said}");
    beside("flattened")?;
    let left = cluster.names("flatten-killed/upper/.vellum.maps")?;
    ensure!(left.is_empty(), "maps of blocks are left: {left:?}");
    Ok(())
}
