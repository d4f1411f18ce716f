//! The option model: tables of what callers really pass, the lines that refusals print, and properties.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;
use vellum::options::argv::{Classic, is_subcommand, parse};
use vellum::options::{LogTarget, Options, Request, tokenizer};
use vellum_service::LayerSource;
use vellum_service::config::{AccessTimes, LayerWriters, OverrideStat, Profile, Propagation};

fn args(list: &[&str]) -> Vec<OsString> {
    list.iter().map(OsString::from).collect()
}

fn request(list: &[&str]) -> Request {
    match parse(&args(list)) {
        Ok(Classic::Mount(request)) => *request,
        other => panic!("{list:?}: {other:?}"),
    }
}

fn refusal(list: &[&str]) -> String {
    let line = parse(&args(list)).expect_err("it must be refused").to_string();
    assert!(!line.contains('\n'), "{line:?}");
    line
}

/// The refusal of one option among others that are good.
fn option_refusal(option: &str) -> String {
    refusal(&["vellum", "-o", &format!("lowerdir=/a,{option}"), "/m"])
}

fn paths(list: &[&str]) -> Vec<LayerSource> {
    list.iter().map(|path| Path::new(path).into()).collect()
}

fn directory(layer: &Option<LayerSource>) -> Option<&Path> {
    layer.as_ref().and_then(LayerSource::directory)
}

#[test]
fn the_list_of_podman_and_docker() {
    for program in ["vellum", "/usr/bin/fuse-overlayfs", "x", ""] {
        let got = request(&[
            program,
            "-o",
            "lowerdir=l/AAA:l/BBB,upperdir=/s/o/1/diff,workdir=/s/o/1/work,,volatile,",
            "/s/o/1/merged",
        ]);
        assert_eq!(got.config.lowers, paths(&["l/AAA", "l/BBB"]));
        assert_eq!(directory(&got.config.upper), Some(Path::new("/s/o/1/diff")));
        assert_eq!(directory(&got.config.work), Some(Path::new("/s/o/1/work")));
        assert_eq!(got.config.mountpoint, Path::new("/s/o/1/merged"));
        assert!(got.config.volatile && !got.foreground && got.config.writable());
    }
}

#[test]
fn the_list_of_podman_with_maps_and_labels() {
    let got = request(&[
        "vellum",
        "-o",
        "lowerdir=/a,uidmapping=:0:1:1001:1001:0:1,gidmapping=:0:100000:65536,context=\"system_u:object_r:c_t:s0:c1,c2\"",
        "/m",
    ]);
    assert_eq!((got.config.uid_map.to_mount(1001), got.config.gid_map.to_layer(100_005)), (0, 5));
    assert_eq!(got.config.labels, [("context".into(), "system_u:object_r:c_t:s0:c1,c2".into())]);
    assert!(!got.config.writable() && got.config.upper.is_none());
}

#[test]
fn the_list_of_containerd() {
    let got = request(&["vellum", "overlay", "/t", "-o", "workdir=/w,upperdir=/u,lowerdir=/l2:/l1,dev,suid"]);
    assert_eq!(got.config.lowers, paths(&["/l2", "/l1"]));
    assert_eq!(got.config.source.as_deref(), Some(OsStr::new("overlay")));
    assert_eq!((got.config.flags.dev, got.config.flags.suid), (Some(true), Some(true)));
    assert_eq!(got.config.mountpoint, Path::new("/t"));
}

#[test]
fn the_lists_of_mount() {
    let helper = "/sbin/mount.fuse.vellum";
    let got = request(&[helper, "src", "/m", "-s", "-n", "-v", "-o", "ro,lowerdir=/a,sync,fiddlesticks=7"]);
    assert!(got.config.flags.read_only && got.config.flags.sync);
    assert_eq!(got.config.workers, None, "mount's -s is no libfuse -s");
    let fake = parse(&args(&[helper, "src", "/m", "-f", "-o", "lowerdir=/a"]));
    assert_eq!(fake, Ok(Classic::Pretend));
    assert!(parse(&args(&[helper, "src", "/m", "-f", "-o", "lowerdir=/a,wrkdir=/b"])).is_err());
    // Through mount.fuse3.
    let got = request(&["/usr/bin/vellum", "src", "/m", "-o", "rw,noatime,noexec,nosuid,nodev,lowerdir=/a"]);
    assert_eq!(got.config.flags.exec, Some(false));
    let got = request(&["vellum", "src", "/m", "-o", "ro,remount,dev,suid"]);
    assert!(got.remount && got.config.flags.read_only);
}

#[test]
fn switches_may_stand_anywhere() {
    for list in [
        &["v", "-f", "-s", "-olowerdir=/a", "/m"][..],
        &["v", "/m", "-fso", "lowerdir=/a"],
        &["v", "-sfolowerdir=/a", "--", "/m"],
        &["v", "-t", "fuse.vellum", "--foreground", "-s", "/m", "-o", "lowerdir=/a"],
    ] {
        let got = request(list);
        assert!(got.foreground && !got.debug, "{list:?}");
        assert_eq!(got.config.workers.map(std::num::NonZero::get), Some(1));
    }
    assert!(request(&["v", "-d", "-o", "lowerdir=/a", "/m"]).foreground);
    assert!(request(&["v", "-o", "lowerdir=/a,debug", "/m"]).foreground);
    assert_eq!(request(&["v", "-o", "lowerdir=/a", "--", "-m"]).config.mountpoint, Path::new("-m"));
    assert!(request(&["v", "-r", "-o", "lowerdir=/a", "/m"]).config.flags.read_only);
    assert_eq!(parse(&args(&["v", "--version"])), Ok(Classic::Version));
    assert_eq!(parse(&args(&["v", "-V", "junk", "-o", "junk"])), Ok(Classic::Version));
    assert_eq!(parse(&args(&["v", "-h"])), Ok(Classic::Help));
}

#[test]
fn repeated_o_options_combine_and_the_last_wins() {
    let got = request(&["v", "-o", "lowerdir=/a,ro", "-o", "rw,lowerdir=/b:/c,nosuid,suid", "-o", "", "/m"]);
    assert_eq!(got.config.lowers, paths(&["/b", "/c"]));
    assert!(!got.config.flags.read_only);
    assert_eq!(got.config.flags.suid, Some(true));
    let got = request(&["v", "-o", "lowerdir+=/a:b,lowerdir+=/c", "/m"]);
    assert_eq!(got.config.lowers, paths(&["/a:b", "/c"]));
}

#[test]
fn escapes_make_any_path_possible() {
    let got = request(&["v", "-o", r"lowerdir=/a\:b:/c\,d:/e\\f::/g,upperdir=/u\:1,workdir=/w\,2", "/m"]);
    assert_eq!(got.config.lowers, paths(&["/a:b", "/c,d", r"/e\f", "/g"]));
    assert_eq!(directory(&got.config.upper), Some(Path::new("/u:1")));
    assert_eq!(directory(&got.config.work), Some(Path::new("/w,2")));
    // A colon means nothing in a single path.
    assert_eq!(
        request(&["v", "-o", "lowerdir=/a,upperdir=/u:1,workdir=/w", "/m"]).config.upper,
        Some(Path::new("/u:1").into())
    );
}

/// Layers in memory are for tests alone.
#[test]
#[cfg(not(feature = "memory-layers"))]
fn an_escaped_prefix_names_a_directory() {
    let got = request(&["v", "-o", r"lowerdir=memory\:f=x:ceph\:/a,upperdir=memory:,workdir=/w", "/m"]);
    assert_eq!(got.config.lowers, paths(&["memory:f=x", "ceph:/a"]));
    assert_eq!(directory(&got.config.upper), Some(Path::new("memory:")));
}

#[test]
fn each_option_means_something() {
    let of = |option: &str| request(&["v", "-o", &format!("lowerdir=/a,{option}"), "/m"]);
    assert_eq!(of("profile=passthrough").config.profile, Profile::Passthrough);
    assert_eq!(of("profile=cached").config.profile, Profile::Cached);
    let far = "upperdir=ceph:/u,workdir=ceph:/w";
    let behind = |option: &str| {
        of(&format!("{far},{option}"))
            .config
            .write_behind
            .map(|behind| (behind.bytes >> 20, behind.age.as_millis()))
    };
    assert_eq!(behind("ceph.write=back"), Some((64, 5000)));
    assert_eq!(behind("ceph.write=back,ceph.dirty=4M,ceph.age=0.5"), Some((4, 500)));
    for sync in ["ro", "ceph.write=back,ceph.write=sync", "ceph.write=back,ro"] {
        assert_eq!(behind(sync), None, "{sync}");
    }
    let cache = |option: &str| of(option).config.cache.map(|cache| (cache.sharing, cache.bytes));
    assert_eq!(cache("cache=shared"), Some((LayerWriters::Shared, 256 << 20)));
    assert_eq!(cache("cache_size=1G,cache=immutable"), Some((LayerWriters::Immutable, 1 << 30)));
    assert_eq!((cache("cache=shared,cache=off"), cache("ro")), (None, None));
    assert_eq!((of("weight=10000").config.weight, of("ro").config.weight), (Some(10_000), None));
    assert_eq!(of("squash_to_root").config.squash_uid, Some(0));
    let squashed = of("squash_to_root,squash_to_uid=7").config;
    assert_eq!((squashed.squash_uid, squashed.squash_gid), (Some(7), Some(0)));
    assert_eq!(of("squash_to_gid=9").config.squash_gid, Some(9));
    assert_eq!(of("timeout=1.5").config.timeout, Some(Duration::from_millis(1500)));
    assert_eq!(of("timeout=0").config.timeout, Some(Duration::ZERO));
    assert_eq!(of("threaded=0").config.workers.map(std::num::NonZero::get), Some(1));
    assert_eq!(of("threaded=1").config.workers, None);
    assert_eq!(of("max_threads=1000000").config.workers.map(std::num::NonZero::get), Some(64));
    assert_eq!(of("workers=3").config.workers.map(std::num::NonZero::get), Some(3));
    assert!(
        of("fsync=0").config.volatile && of("volatile").config.volatile && !of("fsync=1").config.volatile
    );
    assert!(of("noxattrs=1").config.no_xattrs && !of("noxattrs=0").config.no_xattrs);
    assert!(of("noacl").config.no_acl && of("static_nlink").config.static_nlink);
    assert!(of("writeback=0").config.write_through && of("no_writeback_cache").config.write_through);
    assert!(!of("writeback=0,writeback=1").config.write_through && !of("writeback").config.write_through);
    assert!(
        of("xattr_permissions=2").config.override_owners == Some(OverrideStat::User)
            && of("xattr_permissions=1").config.override_owners == Some(OverrideStat::Privileged)
            && of("xattr_permissions=0").config.override_owners.is_none()
    );
    assert_eq!(of("fsname=disk").config.source.as_deref(), Some(OsStr::new("disk")));
    assert_eq!(of("subtype=x").config.subtype.as_deref(), Some(OsStr::new("x")));
    assert_eq!(of("allow_other").config.allow_other, Some(true));
    assert_eq!(of("max_read=65536").config.max_read, Some(65_536));
    assert_eq!(of("log=debug,log_to=kmsg").log.as_deref(), Some("debug"));
    assert_eq!(of("log_to=/var/log/v").log_to, LogTarget::File("/var/log/v".into()));
    assert!(of("auto_unmount").config.auto_unmount && of("dirsync").config.flags.dirsync);
    for (option, expected) in [
        ("relatime", AccessTimes::Relative),
        ("strictatime", AccessTimes::Always),
        ("strictatime,noatime", AccessTimes::Never),
        ("nodiratime", AccessTimes::Relative),
        ("nodiratime,noatime", AccessTimes::Never),
        ("noatime,nodiratime", AccessTimes::Never),
        ("ro", AccessTimes::Never),
    ] {
        assert_eq!(of(option).config.flags.access_times, expected, "{option}");
    }
    assert_eq!(of("plugins=").config, of("plugins").config);
}

#[test]
fn options_of_other_programs_are_ignored() {
    let bare = request(&["v", "-o", "lowerdir=/a", "/m"]);
    for option in [
        "rw",
        "async",
        "auto",
        "noauto",
        "user",
        "user=joe",
        "users",
        "nouser",
        "owner",
        "group",
        "_netdev",
        "nofail",
        "defaults",
        "x-systemd.automount",
        "x-systemd.requires=/b",
        "X-mount.mkdir=0755",
        "comment=hello",
        "silent",
        "uid=3",
        "gid=4",
        "umask=022",
        "nonempty",
        "big_writes",
        "default_permissions",
        "clone_fd",
        "max_idle_threads=4",
        "fast_ino=1",
        "xino=auto",
        "use_ino",
        "readdir_ino",
        "direct_io",
        "blksize=4096",
        "hard_remove",
        "noforget",
        "remember=5",
        "negative_timeout=0",
        "ac_attr_timeout=1",
        "intr_signal=10",
        "index=off",
        "nfs_export=on",
        "metacopy=on",
        "uuid=on",
        "lazytime",
        "max_write=131072",
        "verity=off",
        "redirect_dir=on",
        "redirect_dir=off",
        "userxattr",
        "diratime",
        "symfollow",
    ] {
        assert_eq!(request(&["v", "-o", &format!("lowerdir=/a,{option}"), "/m"]), bare, "{option}");
    }
}

#[test]
fn refusals_name_option_value_and_remedy() {
    for (option, line) in [
        ("nonsense", "option nonsense: unknown; leave it out (vellum --help lists what there is)"),
        ("nonsense=3", "option nonsense=3: unknown; leave it out (vellum --help lists what there is)"),
        ("uperdir=/u", "option uperdir=/u: unknown; did you mean upperdir?"),
        ("volatil", "option volatil: unknown; did you mean volatile?"),
        (
            "a\nb=\u{1b}[1m",
            r"option a\nb=\u{1b}[1m: unknown; leave it out (vellum --help lists what there is)",
        ),
        ("upperdir", "option upperdir: it needs a value; give it as upperdir=DIR"),
        ("lowerdir=", "option lowerdir: it needs a value; give it as lowerdir=DIR[:DIR...]"),
        ("volatile=1", "option volatile=1: it takes no value; write volatile alone"),
        (
            "uidmapping=0:1",
            "option uidmapping=0:1: not triples of LAYER:MOUNT:LEN; write uidmapping=LAYER:MOUNT:LEN[:LAYER:MOUNT:LEN...]",
        ),
        (
            "timeout=soon",
            "option timeout=soon: not a time; write timeout=SECONDS, 0 or more, e.g. timeout=1.5",
        ),
        ("timeout=-1", "option timeout=-1: not a time; write timeout=SECONDS, 0 or more, e.g. timeout=1.5"),
        ("timeout=nan", "option timeout=nan: not a time; write timeout=SECONDS, 0 or more, e.g. timeout=1.5"),
        ("writeback=2", "option writeback=2: not a number in range; write writeback=N with N from 0 to 1"),
        ("workers=0", "option workers=0: not a number in range; write workers=N with N from 1 to 64"),
        ("cache=yes", "option cache=yes: no such value; write cache=off|shared|immutable"),
        ("cache_size=1M", "option cache_size: there is no cache; add cache=shared or cache=immutable"),
        ("ceph.write=later", "option ceph.write=later: no such value; write ceph.write=sync|back"),
        (
            "ceph.age=1",
            "option ceph.age: each change is written before it is answered; add ceph.write=back, or leave it out",
        ),
        (
            "ceph.write=back",
            "option ceph.write=back: no upper layer on CephFS is written to; give one with upperdir=ceph:PATH,workdir=ceph:PATH, or leave it out",
        ),
        ("weight=0", "option weight=0: not a number in range; write weight=N with N from 1 to 10000"),
        ("cache=shared,cache_size=9", "option cache_size: 9 is too small; write 1M or more"),
        (
            "cache=shared,profile=passthrough",
            "option cache: with profile=passthrough the kernel reads layers itself; leave one of both out",
        ),
        ("profile=fast", "option profile=fast: no such value; write profile=cached|passthrough"),
        ("xattr_permissions=3", "option xattr_permissions=3: no such value; write xattr_permissions=0|1|2"),
        (
            "plugins=/x.so",
            "option plugins=/x.so: layers by plugins are not supported; leave the option out, give layers as directories",
        ),
        ("verity=require", "option verity=require: no such value; write verity=off"),
        (
            "upperdir=/u",
            "upperdir without workdir; add workdir=DIR, an empty directory on the filesystem of upperdir",
        ),
    ] {
        assert_eq!(option_refusal(option), line);
    }
    let no_lower = "no lowerdir given; add -o lowerdir=DIR[:DIR...]";
    assert_eq!(refusal(&["v", "/m"]), no_lower);
    assert_eq!(refusal(&["v", "-o", "lowerdir=::,ro", "/m"]), no_lower);
    let no_target = "no mount point given; add the directory to mount on as the last argument";
    assert_eq!(refusal(&["v", "-o", "lowerdir=/a"]), no_target);
    assert_eq!(refusal(&[]), no_target);
    assert_eq!(refusal(&["v", "a", "b", "c"]), "argument c: one too many; give [SOURCE] MOUNTPOINT");
    assert_eq!(refusal(&["v", "-o"]), "argument -o: it needs a value after it");
    assert_eq!(
        refusal(&["v", "--frobnicate"]),
        "argument --frobnicate: unknown; leave it out (vellum --help lists what there is)"
    );
    assert_eq!(
        refusal(&["v", "-fx"]),
        "argument -fx: unknown; leave it out (vellum --help lists what there is)"
    );
    assert_eq!(
        refusal(&["v", "-o", "lowerdir=/a", ""]),
        "the mount point is empty; give the directory to mount on"
    );
    let many = vec!["/l"; 501].join(":");
    assert_eq!(
        refusal(&["v", "-o", &format!("lowerdir={many}"), "/m"]),
        "option lowerdir: 501 lower layers, more than 500; merge some of them first"
    );
    let long = "x".repeat(5000);
    assert!(option_refusal(&format!("nonsense={long}")).len() < 400);
    assert!(option_refusal(&long).len() < 400);
}

#[test]
fn libfuses_times_are_the_shorter_of_both() {
    let of =
        |options: &str| request(&["vellum", "-o", &format!("lowerdir=/a,{options}"), "/m"]).config.timeout;
    let seconds = |seconds| Some(Duration::from_secs_f64(seconds));
    assert_eq!(of("attr_timeout=2"), seconds(2.0));
    assert_eq!(of("attr_timeout=2,entry_timeout=0.5"), seconds(0.5));
    assert_eq!(of("entry_timeout=0,timeout=7,attr_timeout=1"), seconds(7.0));
    assert!(option_refusal("attr_timeout=x").contains("attr_timeout"));
}

#[test]
fn propagation_options_have_all_their_spellings() {
    let of = |options: &str| {
        request(&["vellum", "-o", &format!("lowerdir=/a,{options}"), "/m"]).config.propagation
    };
    assert_eq!(of("ro"), None);
    for (word, propagation) in [
        ("private", Propagation::Private),
        ("shared", Propagation::Shared),
        ("slave", Propagation::Slave),
        ("unbindable", Propagation::Unbindable),
    ] {
        assert_eq!(of(word), Some(propagation));
        assert_eq!(of(&format!("private,r{word},z,Z")), Some(propagation));
        assert!(option_refusal(&format!("{word}=x")).contains("it takes no value"));
    }
}

#[test]
fn allow_root_does_not_imply_allow_other() {
    let of = |options: &str| {
        let config = request(&["vellum", "-o", &format!("lowerdir=/a,{options}"), "/m"]).config;
        (config.allow_other, config.allow_root)
    };
    assert_eq!(of("ro"), (None, false));
    assert_eq!(of("allow_root"), (None, true));
    assert_eq!(of("allow_other"), (Some(true), false));
    assert_eq!(of("allow_root,allow_other"), (Some(true), false));
}

#[test]
fn subcommands_do_not_take_the_classic_lists() {
    for (list, is) in [
        (&["vellum", "mount", "-o", "lowerdir=/a", "/m"][..], true),
        (&["vellum", "inspect", "/m"], true),
        (&["vellum", "umount", "/m"], true),
        (&["vellum", "overlay", "/m", "-o", "lowerdir=/a"], false),
        (&["vellum", "inspect", "/m", "-o", "lowerdir=/a"], false),
        (&["vellum", "-o", "lowerdir=/a", "mount"], false),
        (&["/sbin/mount.fuse.vellum", "mount", "/m", "-o", "lowerdir=/a"], false),
        (&["vellum", "--version"], false),
        // A container's command may have an option -o; without an image it is a source that is called run.
        (&["vellum", "run", "--image", "x", "ps", "-o", "pid"], true),
        (&["vellum", "run", "--image=x", "ps", "-opid"], true),
        (&["vellum", "run"], true),
        (&["vellum", "run", "/mnt", "-o", "lowerdir=a"], false),
        (&["vellum"], false),
        (&[], false),
        // What was meant to be one, and what nobody calls a subcommand.
        (&["vellum", "umont", "m"], true),
        (&["vellum", "version"], true),
        (&["vellum", "merged"], true),
        (&["vellum", "umont", "m", "-o", "lowerdir=/a"], false),
        (&["vellum", "umont", "m", "-olowerdir=/a"], false),
        (&["vellum", "umont", "m", "-fo", "lowerdir=/a"], false),
        (&["vellum", "./merged"], false),
        (&["vellum", "-f", "merged"], false),
        (&["vellum", ""], false),
        (&["/sbin/mount.fuse.vellum", "umont", "m"], false),
    ] {
        assert_eq!(is_subcommand(&args(list)), is, "{list:?}");
    }
}

fn any_bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    // Bytes that mean something are frequent.
    let byte = prop_oneof![
        Just(b','),
        Just(b':'),
        Just(b'\\'),
        Just(b'='),
        Just(b'"'),
        Just(b'-'),
        Just(b'o'),
        b'a'..=b'z',
        any::<u8>()
    ];
    proptest::collection::vec(byte, 0..max)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_option_text_panics(text in any_bytes(200)) {
        let mut options = Options::default();
        let _ = options.take(OsStr::from_bytes(&text), false);
        let mut options = Options::default();
        let _ = options.take(OsStr::from_bytes(&text), true);
        let _ = options.finish("/m".into(), false);
    }

    #[test]
    fn no_argument_list_panics(list in proptest::collection::vec(any_bytes(24), 0..8)) {
        let list: Vec<OsString> = list.into_iter().map(OsString::from_vec).collect();
        let _ = is_subcommand(&list);
        if let Err(refused) = parse(&list) {
            prop_assert!(!refused.to_string().chars().any(char::is_control));
        }
    }

    #[test]
    fn no_option_value_panics(
        name in proptest::sample::select(vec![
            "lowerdir", "upperdir", "workdir", "uidmapping", "gidmapping", "squash_to_uid", "timeout", "threaded",
            "workers", "fsync", "noxattrs", "xattr_permissions", "profile", "log_to",
            "fsname", "max_read", "context", "plugins", "lowerdir+", "ceph.conf", "ceph.id", "ceph.fs",
        ]),
        value in any_bytes(40),
    ) {
        let text = [name.as_bytes(), b"=", &value].concat();
        let _ = Options::default().take(OsStr::from_bytes(&text), false);
    }

    #[test]
    fn an_escaped_path_parses_back(paths in proptest::collection::vec(any_bytes(30), 1..8), upper in any_bytes(30)) {
        let paths: Vec<Vec<u8>> = paths.into_iter().filter(|path| !path.is_empty()).collect();
        prop_assume!(!paths.is_empty() && !upper.is_empty() && !upper.starts_with(b"ceph:") && !upper.starts_with(b"zoned:"));
        let lowers: Vec<Vec<u8>> = paths.iter().map(|path| tokenizer::escape(path)).collect();
        let upper_text = tokenizer::escape(&upper);
        let lowers = lowers.join(&b':');
        let text = [b"lowerdir=", lowers.as_slice(), b",upperdir=", &upper_text, b",workdir=/w,volatile"];
        let mut options = Options::default();
        options.take(OsStr::from_bytes(&text.concat()), false).unwrap();
        let got = options.finish("/m".into(), false).unwrap();
        let named: Vec<LayerSource> =
            paths.into_iter().map(|path| LayerSource::local(OsString::from_vec(path))).collect();
        prop_assert_eq!(got.config.lowers, named);
        prop_assert_eq!(got.config.upper, Some(LayerSource::local(OsString::from_vec(upper))));
        prop_assert!(got.config.volatile);
    }
}

#[test]
fn layers_on_cephfs_have_their_cluster() {
    let got = request(&[
        "vellum",
        "-o",
        "ceph.id=x,lowerdir=ceph:/a:/b:ceph:c/d,lowerdir+=ceph:/e:f,upperdir=/u,workdir=/w,ceph.conf=c.conf,ceph.fs=y",
        "/m",
    ]);
    let shown: Vec<String> = got.config.lowers.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["ceph:/a", "/b", "ceph:/c/d", "ceph:/e:f"]);
    let layers: Vec<_> = got.config.ceph_layers().collect();
    assert_eq!(layers.len(), 3);
    for layer in layers {
        assert_eq!(layer.cluster.conf.as_deref(), Some(Path::new("c.conf")));
        assert_eq!(
            (layer.cluster.id.as_deref(), layer.cluster.filesystem.as_deref()),
            (Some("x"), Some("y"))
        );
    }
    // A directory of that name.
    for list in ["./ceph:/b", "/b:ceph", r"\ceph:/b", r"ceph\:/b"] {
        let got = request(&["vellum", "-o", &format!("lowerdir={list}"), "/m"]);
        assert_eq!(got.config.ceph_layers().count(), 0, "{list}");
    }
    for (options, all) in [
        ("lowerdir=/a,upperdir=ceph:/u,workdir=ceph:w", 2),
        ("lowerdir=ceph:/a,upperdir=ceph:/u,workdir=ceph:/w", 3),
        ("lowerdir=/a,upperdir=ceph:/u,workdir=ceph:/w,ro", 1),
    ] {
        let text = format!("{options},ceph.id=x");
        let got = request(&["vellum", "-o", &text, "/m"]).config;
        assert_eq!(got.ceph_layers().count(), all, "{options}");
        assert!(got.ceph_layers().all(|layer| layer.cluster.id.as_deref() == Some("x")), "{options}");
    }
    let cached = "lowerdir=/a:ceph:/b,profile=passthrough,cache=immutable";
    assert!(request(&["vellum", "-o", cached, "/m"]).config.cache.is_some());
}

#[test]
fn options_that_conflict_with_clusters_are_refused() {
    for (options, words) in [
        ("lowerdir=/a,ceph.id=x", ["ceph.id", "lowerdir=ceph:PATH"]),
        ("lowerdir=ceph:/a,ceph.id=", ["ceph.id", "needs a value"]),
        (
            "lowerdir=/a,upperdir=ceph:/u,workdir=ceph:/w,fill_at_end=1G",
            ["fill_at_end", "upper layer on CephFS"],
        ),
    ] {
        let line = refusal(&["vellum", "-o", options, "/m"]);
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
    }
}

#[test]
fn all_options_of_the_table_are_accepted() {
    let rows = vellum::options::table::SECTIONS.iter().flat_map(|section| section.rows);
    let names: Vec<&str> = rows
        .flat_map(|row| row.syntax.split(", "))
        .filter(|name| !name.starts_with('-'))
        .map(|name| name.split(['=', '[']).next().unwrap())
        .collect();
    assert!(names.len() > 70, "{names:?}");
    for (at, name) in names.iter().enumerate() {
        let taken = Options::default().take(OsStr::new(&format!("{name}=0")), false);
        let unknown = taken.is_err_and(|refused| refused.to_string().contains("unknown"));
        assert!(!unknown, "{name}");
        assert!(!names[..at].contains(name), "{name} stands there twice");
    }
}

#[test]
fn help_has_a_line_for_each_option() {
    let help = vellum::help::text();
    for line in [
        "  profile=cached|passthrough\n",
        "  volatile                 fsync does nothing (default: durable)\n",
        "  ceph.age=SECONDS         The longest that it waits, 0.1 to 3600 (default: 5)\n",
        "  -d, --debug              Stay in the foreground and log everything\n",
    ] {
        assert!(help.contains(line), "{help}");
    }
    assert!(!help.contains("](") && !help.contains('`'), "{help}");
    let widest = help.lines().skip(1).map(str::len).max();
    assert!(widest <= Some(110), "{help}");
}
