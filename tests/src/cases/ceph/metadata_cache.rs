//! Layers on CephFS that nobody changes (`cache=immutable`): what one container of a pool has asked the cluster, the next one does not ask.

use super::cluster::{Cluster, RequestCounts};
use super::trees::layers;
use crate::cases::cache::handover::kill;
use crate::cases::monitoring::stats_of;
use crate::cases::pool::Pools;
use crate::cases::run::support::Runs;
use crate::harness::mount::Profile;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, Mount, shell};
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use vellum_vfs::{Name, OpenMode, RenameFlags};

/// Files of the layer beside those of busybox.
const FILES: usize = 200;
/// What a container does: it starts programs, follows links, looks for what is not there, lists, reads, looks at attributes, and changes
/// something.
const WORK: &str = "cat /srv/file; cat /many/* | md5sum; ls -lR /many /srv /link/ | md5sum; find / -xdev -size +1000 | sort; \
                    test -e /nowhere || echo none; test -e /many/nowhere || echo none; echo new > /srv/new; rm /many/7; ls /many | /bin/busybox wc -l";
/// A further container has the filesystem's root, walks to the layer's, and looks whether that is as it was.
const CALLS_MAX: u64 = 3;

/// Does it in a mount; what it says.
fn work(mount: &Mount) -> Outcome<String> {
    shell::run(Command::new("chroot").arg(mount.root()).args(["/bin/busybox", "sh", "-c", WORK]))
}

/// How often the service has called Ceph's library.
fn calls(mount: &Mount) -> Outcome<u64> {
    Ok(stats_of(mount)?["figures"]["ceph_calls"].as_u64().unwrap_or_default())
}

/// Pools of a profile, whose mounts have a layer on the cluster.
struct Pool<'a> {
    cx: &'a Cx,
    pools: Pools<'a>,
    layer: String,
}

impl<'a> Pool<'a> {
    fn new(cx: &'a Cx, cluster: &Cluster, layer: &str) -> Outcome<Self> {
        let pools = Pools::new(cx)?;
        pools.run("create", &["--ceph-conf", &cluster.conf.display().to_string()])?;
        Ok(Self { cx, pools, layer: format!("ceph:/{layer}") })
    }

    fn mount(&self, name: &str) -> Outcome<Mount> {
        let layers = layers(self.cx, name, &[&self.layer])?;
        let pool = format!("pool={}", self.pools.name());
        self.pools.mount_with(&layers, &[&pool, "cache=immutable", "cache_size=64M"])
    }
}

fn in_profile(cx: &Cx, profile: Profile) -> Outcome<Cx> {
    let dir = cx.dir.join(profile.to_string());
    fs::create_dir(&dir)?;
    Ok(Cx { dir, profile: Some(profile) })
}

/// A further container of a pool asks the cluster for nothing, and its library nearly nothing; so it is with one after the service was killed.
pub(super) fn counted(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let runs = Runs::new(cx)?;
    let many = runs.image.join("many");
    fs::create_dir(&many)?;
    for number in 0..FILES {
        fs::write(many.join(number.to_string()), format!("number {number}"))?;
    }
    symlink("srv", runs.image.join("link"))?;
    cluster.put(&runs.image, "known")?;
    for profile in Profile::ALL {
        let cx = in_profile(cx, profile)?;
        let pool = Pool::new(&cx, cluster, "known")?;
        let started = |name: &str, beside: Option<&Mount>| -> Outcome<(Mount, String, RequestCounts, u64)> {
            let (asked, called) = (cluster.asked()?, beside.map_or(Ok(0), calls)?);
            let mount = pool.mount(name)?;
            let said = work(&mount)?;
            let (asked, called) = (cluster.asked()?.since(asked), calls(&mount)?.saturating_sub(called));
            println!("{profile}, {name}: {asked:?}, {called} calls");
            Ok((mount, said, asked, called))
        };
        let (first, wanted, asked, called) = started("first", None)?;
        ensure!(wanted.contains("of the image") && wanted.ends_with("199\n"), "{profile}: {wanted}");
        // A list brings attributes with it; each small file is read by itself.
        let files = FILES as u64;
        ensure!(
            asked.lookups > 0 && asked.reads > files && called > 4 * files,
            "{profile}: {asked:?}, {called} calls"
        );
        let nothing = |asked: RequestCounts| asked.lookups == 0 && asked.attributes == 0 && asked.reads <= 1;
        let (second, said, asked, called) = started("second", Some(&first))?;
        ensure_eq!(said, wanted, "{profile}: the second container");
        ensure!(nothing(asked) && called <= CALLS_MAX, "{profile}: {asked:?}, {called} calls");

        // Another service knows nothing, and is right all the same.
        kill(&second)?;
        let again = [&first, &second].map(|mount| {
            shell::run(Command::new("chroot").arg(mount.root()).args([
                "/bin/busybox",
                "sh",
                "-c",
                "cat /many/* | md5sum",
            ]))
        });
        let [one, two] = again;
        ensure_eq!(one?, two?, "{profile}: after a kill");
        let (third, said, ..) = started("third", Some(&first))?;
        ensure_eq!(said, wanted, "{profile}: the third container");
        let (fourth, said, asked, called) = started("fourth", Some(&first))?;
        ensure_eq!(said, wanted, "{profile}: the fourth container");
        ensure!(
            nothing(asked) && called <= CALLS_MAX,
            "{profile}, another service: {asked:?}, {called} calls"
        );
        drop((first, second, third, fourth));
    }
    Ok(())
}

fn name(text: &str) -> Outcome<CString> {
    CString::new(text).doing("a name")
}

/// Somebody changes it all the same. A directory that is put in the place of a layer is another layer, for who mounts from then on. A file that is
/// found to have changed has everything asked anew, and what is told of it by then is never old contents for new ones.
pub(super) fn changed(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let tree = cx.dir.join("tree");
    fs::create_dir_all(tree.join("dir"))?;
    for file in ["one", "dir/two", "dir/three"] {
        fs::write(tree.join(file), format!("first {file}"))?;
    }
    for profile in Profile::ALL {
        let cx = in_profile(cx, profile)?;
        let (layer, later) = (format!("known-{profile}"), format!("known-{profile}-later"));
        cluster.put(&tree, &layer)?;
        let pool = Pool::new(&cx, cluster, &layer)?;
        let first = pool.mount("first")?;
        ensure_eq!(fs::read_to_string(first.path("dir/two"))?, "first dir/two", "{profile}");
        // Known, and not read by anybody.
        ensure_eq!(fs::metadata(first.path("dir/three"))?.len(), 15, "{profile}");
        ensure_eq!(fs::read_dir(first.path("dir"))?.count(), 2, "{profile}");
        let second = pool.mount("second")?;
        ensure_eq!(fs::metadata(second.path("dir/three"))?.len(), 15, "{profile}");

        let (top, names) =
            (cluster.root()?, [name(&layer)?, name("dir")?, name("three")?, name("new")?, name(&later)?]);
        let [layer_name, dir, three, new, later_name] = &names;
        let named = |name| Name::new(name).doing("a name");
        let dir = top.open_dir(named(layer_name)?).doing("the layer")?.open_dir(named(dir)?).doing("dir")?;
        let write = |name, text: &str| -> Outcome {
            let file = dir.open_file(named(name)?, OpenMode::WRITE).doing("a file")?;
            file.write_at(text.as_bytes(), 0).doing("a write")?;
            file.sync(false).doing("a sync")
        };
        write(three, "changed meanwhile")?;
        let made = dir.create(named(new)?, 0o644).doing("a file")?;
        made.write_at(b"new", 0).doing("a write")?;
        made.sync(false).doing("a sync")?;
        drop(made);
        // As many bytes as the kernel was told of, of what it is now.
        let read = fs::read_to_string(second.path("dir/three"))?;
        ensure!("changed meanwhile".starts_with(&read) && read.len() >= 15, "{profile}: {read:?}");
        let third = pool.mount("third")?;
        ensure_eq!(fs::read_to_string(third.path("dir/three"))?, "changed meanwhile", "{profile}");
        ensure_eq!(fs::read_to_string(third.path("dir/new"))?, "new", "{profile}");
        ensure_eq!(fs::read_to_string(third.path("dir/two"))?, "first dir/two", "{profile}");

        // Another tree in its place.
        let tree = cx.dir.join("other");
        fs::create_dir(&tree)?;
        fs::write(tree.join("other"), "another tree")?;
        top.rename(named(layer_name)?, &*top, named(later_name)?, RenameFlags::empty()).doing("a rename")?;
        cluster.put(&tree, &layer)?;
        let fourth = pool.mount("fourth")?;
        ensure_eq!(fs::read_to_string(fourth.path("other"))?, "another tree", "{profile}");
        ensure!(!fourth.path("one").exists(), "{profile}: two trees in one");
        ensure_eq!(fs::read_to_string(first.path("one"))?, "first one", "{profile}");
        ensure_eq!(fs::read_to_string(third.path("one"))?, "first one", "{profile}");
        ensure!(!third.path("other").exists(), "{profile}: two trees in one");
        drop((first, second, third, fourth));
    }
    Ok(())
}
