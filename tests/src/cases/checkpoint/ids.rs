//! Containers with ids of their own: what they have belongs to the same users afterwards, inside and outside.

use super::COUNTER;
use super::support::{Scene, VellumProcess, eventually};
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, shell};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// The ids of the pools.
const START: u32 = 1_300_000;
const OTHER: u32 = 1_400_000;
const COUNT: u32 = 65_536;

/// Left running, ended, restored, killed at any moment; not in a pool of other ids.
pub(super) fn uid_range(cx: &Cx) -> Outcome {
    let scene = Scene::new(cx)?;
    let time = UNIX_EPOCH.elapsed().doing("the time")?.as_nanos();
    let pools = ["own", "other"].map(|name| format!("test-ck-{time}-{name}"));
    for (pool, start) in pools.iter().zip([START, OTHER]) {
        scene.vellum(&["pool", "create", pool, "--uid-range", &format!("{start}:{COUNT}")])?;
    }
    let done = goes_on(cx, &scene, &pools);
    for pool in &pools {
        let deleted = eventually("the pool goes", || Ok(scene.vellum(&["pool", "delete", pool]).is_ok()));
        done.as_ref().map_or(Ok(()), |()| deleted)?;
    }
    done
}

fn goes_on(cx: &Cx, scene: &Scene<'_>, [pool, other]: &[String; 2]) -> Outcome {
    // Where only root of the host enters.
    let secret = cx.dir.join("secret");
    let (volume, file) = (secret.join("volume"), secret.join("file"));
    fs::create_dir_all(&volume)?;
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700))?;
    chown(&volume, Some(START), Some(START))?;
    fs::write(&file, "words\n")?;
    let shown = [format!("{}:/volume", volume.display()), format!("{}:/file:ro", file.display())];
    let program = format!(
        "touch /srv/given; chown 33:34 /srv/given; {}",
        COUNTER.replace("echo $i;", "echo $i $(stat -c %u /srv/given) $(cat /file); echo $i > /volume/n;")
    );
    let name = pool.replace("test-ck", "ids");
    let start = ["--name", &name, "--pool", pool, "-v", &shown[0], "-v", &shown[1], "sh", "-c", &program];
    let first = scene.start(&start)?;
    check_unchanged(scene, &name, &first, &volume)?;
    scene.checkpoint(&[&name, "--leave-running"])?;
    check_unchanged(scene, &name, &first, &volume)?;
    for millis in [30, 80, 140, 220] {
        let mut child = scene.taking(&name, Path::new(&scene.to())).spawn()?;
        std::thread::sleep(Duration::from_millis(millis));
        child.kill()?;
        child.wait()?;
        first.says_more()?;
    }
    eventually("it can be kept again", || Ok(scene.checkpoint(&[&name, "--leave-running"]).is_ok()))?;
    scene.checkpoint(&[&name, "--name", "packed", "--compress", "zstd:1"])?;
    ensure_eq!(first.ends()?, 137, "the container that has ended");
    let (kept, packed) = (
        scene.checkpoint_dir(&name).display().to_string(),
        scene.checkpoint_dir("packed").display().to_string(),
    );
    let refused = ["restore", "--state", &scene.state(), &packed, "--pool", other];
    shell::refused(&mut scene.command(&refused), &format!("--uid-range {START}:{COUNT}"))?;
    let kept_name = name.clone();
    // Killed, and nothing is left, not even of a runtime that did not know yet what it has made.
    for (number, millis) in [20, 60, 0, 0].into_iter().enumerate() {
        let name = format!("{name}-{number}");
        let killed = scene.restore(&kept_name, &["--name", &name])?;
        // CRIU has begun then, in a group that runc does not know yet.
        let begun =
            || Ok(scene.merged(&name).is_ok_and(|merged| merged.with_file_name("criu/restore.log").exists()));
        match millis {
            0 => eventually("CRIU works", begun)?,
            millis => std::thread::sleep(Duration::from_millis(millis)),
        }
        killed.signal(rustix::process::Signal::KILL)?;
        killed.ends()?;
    }
    // What a killed one has left, its groups too, the next command takes away, as soon as its runtime is done.
    let (state, image) = (scene.state(), scene.image().display().to_string());
    let other = ["run", "--state", &state, "--image", &image, "true"];
    eventually("what was killed is taken away", || {
        let is_away = |number| scene.merged(&format!("{name}-{number}")).is_err();
        Ok(scene.vellum(&other).is_ok() && (0..4).all(is_away))
    })?;
    let second = scene.restore("packed", &[])?;
    check_unchanged(scene, &name, &second, &volume)?;
    scene.checkpoint(&[&name])?;
    second.ends()?;
    no_group_is_left(&name)?;
    let third = scene.restore(&name, &[])?;
    check_unchanged(scene, &name, &third, &volume)?;
    let owner = Path::new(&kept).join("object").metadata()?;
    ensure_eq!((owner.uid(), owner.mode() & 0o777), (0, 0o600), "who reads images");
    ensure_eq!(Path::new(&kept).metadata()?.mode() & 0o777, 0o700, "who reaches them");
    drop(third);
    scene.check_no_leftovers()?;
    no_group_is_left(&name)
}

/// It counts on, as nobody of the host, and files belong to whom they belonged.
fn check_unchanged(scene: &Scene<'_>, name: &str, going: &VellumProcess, volume: &Path) -> Outcome {
    going.says_more()?;
    going.says_more()?;
    let said = going.output_text()?;
    let last = said.lines().rev().nth(1).unwrap_or_default().to_owned();
    ensure!(last.ends_with(" 33 words"), "what it sees: {last}");
    let numbers = said.lines().filter_map(|line| line.split(' ').next()?.parse::<u32>().ok());
    let numbers: Vec<u32> = numbers.collect();
    ensure!(numbers.windows(2).all(|two| two[1] == two[0] + 1), "{said}");
    let merged = scene.merged(name)?;
    let given = scene.upper(name)?.join("srv/given").metadata()?;
    ensure_eq!((given.uid(), given.gid()), (33, 34), "the owner in the upper layer");
    ensure_eq!(merged.join("srv/given").metadata()?.uid(), START + 33, "the owner to the host");
    ensure_eq!(volume.join("n").metadata()?.uid(), START, "the owner in the volume");
    let pid = shell::run(&mut shell::bash("pgrep -f '^sh -c touch /srv/given' -o"))?;
    let status = fs::read_to_string(format!("/proc/{}/status", pid.trim()))?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    let start = START.to_string();
    ensure_eq!(ids.split_whitespace().collect::<Vec<_>>(), [start.as_str(); 4], "who it is to the host");
    Ok(())
}

/// No control group of this name is left.
fn no_group_is_left(name: &str) -> Outcome {
    // Groups of others go meanwhile.
    let find = format!("find /sys/fs/cgroup -ignore_readdir_race -type d -name '*{name}*'");
    let said = shell::run(&mut shell::bash(&find))?;
    ensure_eq!(said, "", "control groups");
    Ok(())
}
