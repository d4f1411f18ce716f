//! What is CephFS's own: clusters that cannot be used, other clients, being expelled.
#![allow(unreachable_pub, clippy::unwrap_used, reason = "one test program")]

mod support;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::cluster::beside_a_cluster;
use support::*;
use vellum_branch::{
    CephAccess, CephBranch, CephClaim, CephClient, CephLineage, CephSetup, CephWriter, DataCacheBranch,
    MetadataCache, MetadataCacheBranch, SETTLE, VersionCheck,
};
use vellum_vfs::{Branch, Errno, Object, OpenMode, RenameFlags, SetTime, Timestamp};

#[test]
fn ceph() {
    beside_a_cluster("ceph", || {
        unusable_clusters_are_refused_soon();
        nothing_leads_out();
        a_directory_that_a_name_has_left_shows_it();
        clients_see_each_others_changes();
        a_cache_above_sees_every_change();
        a_successor_takes_the_place_of_one_that_has_died();
        a_writer_is_alone_and_what_it_was_answered_stays();
        files_are_found_by_number_beneath_the_root_only();
        long_targets_are_refused_and_not_cut();
        a_snapshot_is_a_layer_of_its_own();
        an_expelled_client_says_so();
    });
}

fn client() -> Arc<CephClient> {
    CephClient::connect(CephAccess::default()).unwrap()
}

/// What `ceph` says to an administrator.
fn administrator(words: &[&str]) -> String {
    let output = Command::new("ceph").args(words).output().unwrap();
    assert!(output.status.success(), "ceph {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn unusable_clusters_are_refused_soon() {
    let dir = tempfile::tempdir().unwrap();
    let usual = std::fs::read_to_string(std::env::var_os("CEPH_CONF").unwrap()).unwrap();
    let conf = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        CString::new(path.as_os_str().as_bytes()).unwrap()
    };
    let keyring = dir.path().join("keyring");
    let made = Command::new("ceph-authtool")
        .args([
            Path::new("--create-keyring"),
            &keyring,
            Path::new("--gen-key"),
            Path::new("--name=client.admin"),
        ])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let (good, none) = (conf("good", &usual), conf("none", "[global]\nauth client required = none\n"));
    let nobody = conf("nobody", "[global]\nmon host = 127.0.0.1:1\nauth client required = none\n");
    let wrong = format!("{usual}\n[client]\nkeyring = {}\n", keyring.display());
    let wrong = conf("wrong", &wrong);
    let missing = CString::new(dir.path().join("missing").as_os_str().as_bytes()).unwrap();
    let cases = [
        ("no file", CephAccess { conf: Some(&missing), ..CephAccess::default() }),
        ("no monitors", CephAccess { conf: Some(&none), ..CephAccess::default() }),
        ("nobody answers", CephAccess { conf: Some(&nobody), ..CephAccess::default() }),
        ("wrong key", CephAccess { conf: Some(&wrong), ..CephAccess::default() }),
        ("no such client", CephAccess { conf: Some(&good), id: Some(c"other"), ..CephAccess::default() }),
        (
            "no such filesystem",
            CephAccess { conf: Some(&good), filesystem: Some(c"x"), ..CephAccess::default() },
        ),
    ];
    for (what, access) in cases {
        let begin = Instant::now();
        let refused = CephClient::connect(access).err().expect(what).to_string();
        let took = begin.elapsed();
        println!("{what}: {refused} ({} ms)", took.as_millis());
        // The client gives each of its steps 8 s (`client_mount_timeout`), a busy machine some more.
        assert!(took < Duration::from_secs(20), "{what}: {took:?}");
        assert!(!refused.contains('\n') && refused.starts_with("Ceph by "), "{what}: {refused}");
    }
    let good = CephAccess { conf: Some(&good), id: Some(c"admin"), filesystem: Some(c"cephfs") };
    CephClient::connect(good).unwrap().root().unwrap();
}

fn nothing_leads_out() {
    let client = client();
    let f = Fixture::ceph(&client);
    let root = f.root();
    put(&*subdir(&*root, c"d"), c"f", b"F");
    root.make_symlink(n(c"l"), c"d").unwrap();
    root.make_symlink(n(c"m"), c"d/f").unwrap();
    root.make_symlink(n(c"up"), c"..").unwrap();
    for name in [c"l", c"up"] {
        assert_eq!(errno(root.open_dir(n(name))), Errno::NOTDIR);
        assert_eq!(errno(f.branch.open_dir_path(name)), Errno::NOTDIR);
    }
    assert_eq!(errno(root.open_file(n(c"m"), OpenMode::READ)), Errno::LOOP);
    assert_eq!(errno(root.create(n(c"m"), 0o600)), Errno::EXIST);
    for bad in [c"..", c"../fixture-0", c"d/..", c"/d"] {
        assert_eq!(errno(f.branch.open_dir_path(bad)), Errno::INVAL, "{bad:?}");
    }
    assert_eq!(errno(CephBranch::open(&client, c"nowhere")), Errno::NOENT);
    assert_eq!(errno(CephBranch::open(&client, c"fixture-0/../fixture-0")), Errno::INVAL);
    // No snapshots by names of files, and no settings by names of attributes.
    assert_eq!(errno(root.stat_at(n(c".snap"))), Errno::NOENT);
    subdir(&*subdir(&*root, c".snap"), c"one");
    assert!(names(&*root).contains(&".snap".to_owned()));
    root.open_dir(n(c".snap")).unwrap().remove_dir(n(c"one")).unwrap();
    for name in [c"ceph.quota.max_bytes", c"ceph.dir.layout", c"ceph.dir.rctime"] {
        assert_eq!(errno(root.set_xattr(name, b"1", 0)), Errno::OPNOTSUPP, "{name:?}");
        assert_eq!(errno(root.get_xattr(name, &mut [0; 64])), Errno::OPNOTSUPP, "{name:?}");
    }
}

/// The library keeps what it knew of the directory that a name has left.
fn a_directory_that_a_name_has_left_shows_it() {
    let client = client();
    let f = Fixture::ceph(&client);
    let root = f.root();
    let (one, other) = (subdir(&*root, c"one"), subdir(&*root, c"other"));
    subdir(&*one, c"d");
    put(&*one, c"f", b"F");
    for (round, name) in [c"d", c"f"].into_iter().enumerate() {
        let before = one.stat().unwrap();
        assert_eq!(before.nlink, if round == 0 { 3 } else { 2 });
        std::thread::sleep(Duration::from_millis(20));
        one.rename(n(name), &*other, n(name), RenameFlags::empty()).unwrap();
        // By its own handle, and by its name.
        let seen = if round == 0 { one.stat().unwrap() } else { root.stat_at(n(c"one")).unwrap() };
        assert!(seen.mtime > before.mtime && seen.ctime > before.ctime, "{name:?}: {seen:?}");
        assert_eq!(seen.nlink, 2, "{name:?}");
        assert_eq!(one.stat().unwrap(), seen, "{name:?}");
    }
}

fn clients_see_each_others_changes() {
    let (one, other) = (client(), client());
    let f = Fixture::ceph(&one);
    let path = CString::new(f.branch.describe().trim_start_matches("ceph:")).unwrap();
    let there = CephBranch::open(&other, &path).unwrap().root();
    let here = f.root();
    let file = put(&*here, c"f", b"one");
    assert_eq!(get_at(&*there, c"f"), b"one", "not synced yet");
    assert_eq!(there.stat_at(n(c"f")).unwrap(), here.stat_at(n(c"f")).unwrap());
    there.open_file(n(c"f"), OpenMode::WRITE).unwrap().write_at(b"two!", 0).unwrap();
    assert_eq!(get(&*file), b"two!");
    there.rename(n(c"f"), &*there, n(c"g"), RenameFlags::empty()).unwrap();
    assert_eq!(names(&*here), ["g"]);
    assert_eq!(errno(here.stat_at(n(c"f"))), Errno::NOENT);
    // An inode of one client means nothing to the other.
    assert_eq!(errno(here.rename(n(c"g"), &*there, n(c"h"), RenameFlags::empty())), Errno::XDEV);
    assert_eq!(errno(here.link(n(c"g"), &*there, n(c"h"))), Errno::XDEV);
    assert_eq!(errno(there.link_object(&*file, n(c"h"))), Errno::XDEV);
}

/// Also one that leaves size and times as they were, that has just come, and that the other client has not synced.
fn a_cache_above_sees_every_change() {
    let (one, other) = (client(), client());
    let f = Fixture::ceph(&one);
    let path = CString::new(f.branch.describe().trim_start_matches("ceph:")).unwrap();
    let there = CephBranch::open(&other, &path).unwrap().root();
    let made = put(&*there, c"f", b"contents 000");
    for sharing in [VersionCheck::Shared { settle: SETTLE }, VersionCheck::Immutable] {
        let cache = cache();
        let cached = DataCacheBranch::new(Arc::clone(&f.branch), cache.join(100).unwrap(), sharing).root();
        let mut before = made.version().unwrap().1.unwrap();
        for number in 0..100 {
            let text = format!("contents {number:03}");
            made.write_at(text.as_bytes(), 0).unwrap();
            made.set_times(None, Some(SetTime::At(Timestamp { secs: 1, nanos: 0 }))).unwrap();
            for _ in 0..2 {
                assert_eq!(get_at(&*cached, c"f"), text.as_bytes(), "{sharing:?}");
            }
            let now = made.version().unwrap().1.unwrap();
            assert_ne!(now, before, "a change that does not count");
            before = now;
        }
        let stats = cache.stats();
        assert!(stats.hits > 50, "it was not read from the cache: {stats:?}");
    }
}

fn a_successor_takes_the_place_of_one_that_has_died() {
    let sessions = || administrator(&["tell", "mds.a", "client", "ls"]).matches("vellum-test").count();
    let connect = |goes_on| {
        let lineage = CephLineage { name: c"vellum-test", goes_on };
        CephSetup::read(CephAccess::default()).unwrap().connect(Some(lineage)).unwrap()
    };
    let first = connect(false);
    let path = c"lineage";
    CephBranch::open(&first, c"").unwrap().root().make_dir(n(path), 0o755).unwrap();
    let root = CephBranch::open(&first, path).unwrap().root();
    put(&*root, c"f", b"data").sync(false).unwrap();
    assert_eq!(sessions(), 1);
    let begin = Instant::now();
    let second = connect(true);
    println!("a successor: {} ms", begin.elapsed().as_millis());
    assert_eq!(sessions(), 1, "the first is still waited for");
    assert_eq!(get_at(&*CephBranch::open(&second, path).unwrap().root(), c"f"), b"data");
    assert!(!second.is_expelled() && first.is_expelled());
    drop((root, first));
    // One without a predecessor is no error.
    drop(second);
    assert!(!connect(true).is_expelled());
}

/// Whoever writes to a directory is the only one, among all clients; the next one comes when its session has ended, in whatever way. What it was
/// answered is there then, though nobody has synced anything.
fn a_writer_is_alone_and_what_it_was_answered_stays() {
    let connect = |goes_on| {
        let lineage = CephLineage { name: c"vellum-writer", goes_on };
        CephSetup::read(CephAccess::default()).unwrap().connect(Some(lineage)).unwrap()
    };
    let (first, other) = (connect(false), client());
    let path = c"written";
    CephBranch::open(&first, c"").unwrap().root().make_dir(n(path), 0o755).unwrap();
    let one = CephWriter { name: b"one", goes_on: false, gone: None, is_logged: false };
    let two = CephWriter { name: b"two", ..one };
    let taken = |client, writer| match CephBranch::open_to_write(client, path, writer) {
        Ok(CephClaim::Taken(branch)) => Ok(branch),
        Ok(CephClaim::Left(name)) => Err((Errno::BUSY, name)),
        Err(error) => Err((error.errno(), Vec::new())),
    };
    let writer = taken(&first, one).unwrap();
    for client in [&first, &other] {
        for asks in [one, two, CephWriter { gone: Some(b"one"), ..two }] {
            assert_eq!(taken(client, asks).err().unwrap().0, Errno::AGAIN);
        }
        let reader = CephBranch::open(client, path).unwrap();
        assert_eq!(reader.writer().unwrap().unwrap(), b"one");
    }
    drop(writer);
    assert_eq!(CephBranch::open(&first, path).unwrap().writer(), Ok(None));
    let back = CephWriter { goes_on: true, ..one };
    assert_eq!(taken(&first, back).err().unwrap().0, Errno::STALE, "it was given up");
    drop(taken(&other, two).unwrap());
    let writer = taken(&first, one).unwrap();
    let data: Vec<u8> = (0..300_000).map(|at| (at / 3) as u8).collect();
    let file = put(&*writer.root(), c"f", &data);
    file.set_mode(0o4750).unwrap();
    file.set_xattr(c"user.kept", b"value", 0).unwrap();
    file.truncate(200_000).unwrap();
    // As if its process had died: the session ends, and what it still kept goes with it.
    let second = connect(true);
    assert!(first.is_expelled());
    // Nobody else may come between, until it is said that the first is gone.
    assert_eq!(taken(&other, two).err().unwrap(), (Errno::BUSY, b"one".to_vec()));
    let branch = taken(&second, back).unwrap();
    let found = branch.root().stat_at(n(c"f")).unwrap();
    assert_eq!((found.size, found.mode & 0o7777), (200_000, 0o4750));
    assert_eq!(get_at(&*branch.root(), c"f"), data[..200_000]);
    let mut value = [0; 5];
    assert_eq!(branch.root().get_xattr_at(n(c"f"), c"user.kept", &mut value), Ok(5));
    assert_eq!(&value, b"value");
    drop((branch, file, writer));
    // The first could not take its record away any more, and its successor has.
    let third = connect(true);
    let writer = taken(&third, one).unwrap();
    let fourth = connect(true);
    assert_eq!(taken(&other, two).err().unwrap().0, Errno::BUSY);
    drop(taken(&other, CephWriter { gone: Some(b"one"), ..two }).unwrap());
    assert_eq!(taken(&fourth, back).err().unwrap().0, Errno::STALE, "another has had it");
    drop(writer);
}

/// As a successor finds what a log names, by a client that knows nothing yet.
fn files_are_found_by_number_beneath_the_root_only() {
    let (one, other) = (client(), client());
    let f = Fixture::ceph(&one);
    let path = CString::new(f.branch.describe().trim_start_matches("ceph:")).unwrap();
    let (root, top) = (f.root(), CephBranch::open(&one, c"").unwrap().root());
    let deep = (0..20).fold(Arc::clone(&root), |dir, _| subdir(&*dir, c"d"));
    let ino = |file: &dyn Object| file.stat().unwrap().ino;
    let inside = put(&*deep, c"f", b"inside");
    let outside = put(&*top, c"outside", b"outside");
    let moved = put(&*top, c"moved", b"moved");
    top.rename(n(c"moved"), &*deep, n(c"g"), RenameFlags::empty()).unwrap();
    let linked = put(&*root, c"l", b"linked");
    root.link(n(c"l"), &*deep, n(c"m")).unwrap();
    let removed = put(&*root, c"r", b"removed");
    root.remove(n(c"r")).unwrap();
    root.make_symlink(n(c"s"), c"/").unwrap();
    let symlink = root.stat_at(n(c"s")).unwrap().ino;
    for client in [&other, &one] {
        let branch = CephBranch::open(client, &path).unwrap();
        for (file, text) in [(&inside, "inside"), (&moved, "moved"), (&linked, "linked")] {
            let found = branch.find_file(ino(&**file)).unwrap();
            assert_eq!(get(&*found), text.as_bytes());
        }
        let elsewhere =
            [ino(&*outside), ino(&*removed), symlink, ino(&*deep), ino(&*root), 1, 2, u64::MAX, 0];
        for number in elsewhere {
            assert_eq!(errno(branch.find_file(number)), Errno::NOENT, "{number:#x}");
        }
    }
}

/// CephFS keeps targets that the kernel cannot follow. Cut, they would be others' names.
fn long_targets_are_refused_and_not_cut() {
    let client = client();
    let f = Fixture::ceph(&client);
    let path = CString::new(f.branch.describe().trim_start_matches("ceph:/")).unwrap();
    let (dir, _) = client.root().unwrap().lookup(&path).unwrap();
    let known = MetadataCacheBranch::new(Arc::clone(&f.branch), &MetadataCache::new(1 << 20));
    for (name, len) in [(c"longest", 4095), (c"longer", 4096), (c"long", 9000)] {
        dir.make_symlink(name, &CString::new(vec![b'x'; len]).unwrap()).unwrap();
        for root in [f.root(), known.root()] {
            for room in [4095, 4096, 8192, 16384] {
                let mut buf = vec![0; room];
                let held = root.hold(n(name)).unwrap();
                for read in [root.read_link_at(n(name), &mut buf), held.read_link(&mut buf)] {
                    match read {
                        Ok(read) => {
                            assert!(read == len && buf[..len] == vec![b'x'; len], "{len}, {room}: {read}")
                        }
                        Err(error) => assert!(
                            error.errno() == Errno::NAMETOOLONG && len > 4095,
                            "{len}, {room}: {error}"
                        ),
                    }
                }
            }
        }
    }
}

/// Files of a snapshot have the numbers of those that it was taken of, and are others.
fn a_snapshot_is_a_layer_of_its_own() {
    let (one, other) = (client(), client());
    let f = Fixture::ceph(&one);
    let path = f.branch.describe().trim_start_matches("ceph:/").to_owned();
    let at = |rest: &str| CString::new(format!("{path}{rest}")).unwrap();
    let root = f.root();
    let file = put(&*root, c"f", b"contents 0");
    root.link(n(c"f"), &*root, n(c"g")).unwrap();
    put(&*subdir(&*root, c"d"), c"deep", b"deep");
    for (name, text) in [(c"v1", b"contents 1"), (c"v2", b"contents 2"), (c"v3", b"contents 3")] {
        file.write_at(text, 0).unwrap();
        file.sync(false).unwrap();
        let (dir, _) = one.root().unwrap().lookup(&at("")).unwrap();
        dir.snapshots().unwrap().make_dir(name, 0o755).unwrap();
    }
    root.remove(n(c"g")).unwrap();
    file.write_at(b"contents 4", 0).unwrap();
    file.set_times(None, Some(SetTime::At(Timestamp { secs: 1, nanos: 0 }))).unwrap();
    for client in [&one, &other] {
        let open = |rest: &str| CephBranch::open(client, &at(rest));
        let branches = ["/.snap/v1", "/.snap/v2", "/.snap/v3", ""].map(|rest| open(rest).unwrap());
        let cache = cache();
        for sharing in [VersionCheck::Immutable, VersionCheck::Shared { settle: Duration::ZERO }] {
            let member = cache.join(100).unwrap();
            for _ in 0..2 {
                for (branch, number) in branches.iter().zip(1..) {
                    let branch: Arc<dyn Branch> = Arc::<CephBranch>::clone(branch);
                    let root = DataCacheBranch::new(branch, Arc::clone(&member), sharing).root();
                    let text = format!("contents {number}");
                    assert_eq!(get_at(&*root, c"f"), text.as_bytes(), "{sharing:?}");
                    if number < 4 {
                        assert_eq!(get_at(&*root, c"g"), text.as_bytes(), "{sharing:?}");
                        assert_eq!(root.stat_at(n(c"g")).unwrap(), root.stat_at(n(c"f")).unwrap());
                    }
                }
            }
        }
        let attrs = branches.each_ref().map(|branch| branch.root().stat_at(n(c"f")).unwrap());
        assert!(attrs.iter().all(|attr| attr.ino == attrs[0].ino));
        let mut devices = attrs.map(|attr| attr.dev);
        assert_eq!(devices[3], client.device());
        for (branch, device) in branches.iter().zip(devices) {
            let found = (
                branch.fsid(),
                branch.statfs().map(|found| found.fsid),
                branch.version().map(|(root, _)| root.0),
            );
            assert_eq!(found, (Ok(device), Ok(device), Ok(device)));
            assert_eq!(branch.root().stat_at(n(c"d")).unwrap().dev, device);
        }
        devices.sort_unstable();
        assert!(devices.is_sorted_by(|one, other| one < other), "{devices:x?}");

        let snapshot = branches[0].root();
        assert_eq!(names(&*snapshot), ["d", "f", "g"]);
        assert_eq!(get_at(&*open("/.snap/v1/d").unwrap().root(), c"deep"), b"deep");
        assert_eq!(errno(snapshot.create(n(c"new"), 0o600)), Errno::ROFS);
        assert_eq!(errno(snapshot.remove(n(c"f"))), Errno::ROFS);
        assert_eq!(errno(snapshot.set_mode_at(n(c"f"), 0o600)), Errno::ROFS);
        assert_eq!(errno(branches[0].find_file(attrs[0].ino)), Errno::ROFS);
        let writer = CephWriter { name: b"one", goes_on: false, gone: None, is_logged: false };
        let taken = CephBranch::open_to_write(client, &at("/.snap/v1"), writer);
        assert_eq!(errno(taken), Errno::ROFS);
        for (rest, wanted) in [
            ("/.snap", Errno::INVAL),
            ("/.snap/..", Errno::INVAL),
            ("/.snap/none", Errno::NOENT),
            ("/.snap/.snap", Errno::NOENT),
            ("/.snap/v1/.snap/v1", Errno::NOENT),
            ("/.snap/v1/f", Errno::NOTDIR),
        ] {
            assert_eq!(errno(open(rest)), wanted, "{rest}");
        }
        // Below a root it is a name as any other.
        for root in [f.root(), Arc::clone(&snapshot)] {
            assert_eq!(errno(root.stat_at(n(c".snap"))), Errno::NOENT);
        }
        assert_eq!(errno(branches[3].open_dir_path(c".snap/v1")), Errno::NOENT);
    }
    // Not the same file, though one number.
    let old =
        CephBranch::open(&one, &at("/.snap/v1")).unwrap().root().open_file(n(c"f"), OpenMode::READ).unwrap();
    assert_eq!(file.copy_range(0, &*old, 0, 10), Ok(10));
    assert_eq!(get(&*file), b"contents 1");
}

fn an_expelled_client_says_so() {
    let client = client();
    let f = Fixture::ceph(&client);
    let root = f.root();
    let file = put(&*root, c"f", b"data");
    // The only one of this process; the manager may have some.
    let sessions = administrator(&["tell", "mds.a", "client", "ls"]);
    let own = format!("\"pid\": \"{}\"", std::process::id());
    let one = sessions.split("\"id\": ").find(|session| session.contains(&own)).unwrap();
    let id = one.split([',', '\n', ' ']).next().unwrap();
    administrator(&["tell", "mds.a", "client", "evict", &format!("id={id}")]);
    let begin = Instant::now();
    let outcome = loop {
        match root.create(n(c"g"), 0o600).and_then(|made| made.sync(false)) {
            Err(error) => break error,
            Ok(()) => assert!(begin.elapsed() < Duration::from_secs(60), "it may go on"),
        }
        root.remove(n(c"g")).ok();
        std::thread::sleep(Duration::from_millis(50));
    };
    println!("expelled: {outcome} ({} ms)", begin.elapsed().as_millis());
    for result in [
        root.make_dir(n(c"d"), 0o755),
        file.write_at(b"more", 0).map(drop).and_then(|()| file.sync(false)),
        root.list(&mut |_| Ok(())),
    ] {
        assert!(matches!(errno(result), Errno::IO | Errno::STALE));
    }
    drop((file, root, f, client));
    // Another one goes on.
    assert!(!names(&*Fixture::ceph(&self::client()).root()).contains(&"d".to_owned()));
}
