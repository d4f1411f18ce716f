//! A pool that says which cluster its mounts' layers are on: as whom it is reached, what a mount says itself, and what is refused.

use super::cluster::Cluster;
use super::trees::{conf, layers};
use crate::cases::pool::Pools;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, fail};
use crate::harness::{Cx, Mount};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;

/// The client of the cluster that the pool has.
const TENANT: &str = "tenant";

/// Mounts in the pool have its cluster, client and filesystem, unless they say otherwise.
pub(super) fn settings(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let local = cx.dir.join("local");
    fs::create_dir(&local)?;
    fs::write(local.join("file"), "on CephFS")?;
    cluster.put(&local, "settings")?;
    let key = cluster.ceph(&["fs", "authorize", "cephfs", &format!("client.{TENANT}"), "/", "rw"])?;
    let keys = cluster.conf.with_file_name("keyring");
    fs::OpenOptions::new().append(true).open(keys)?.write_all(key.as_bytes())?;

    let pools = Pools::new(cx)?;
    let file = cluster.conf.display().to_string();
    pools.run("create", &["--ceph-conf", &file, "--ceph-id", TENANT, "--ceph-fs", "cephfs"])?;
    let shown = pools.show()?;
    ensure_eq!(
        (&shown["ceph"], &shown["ceph_conf"], &shown["ceph_id"], &shown["ceph_fs"]),
        (&true.into(), &file.as_str().into(), &TENANT.into(), &"cephfs".into()),
        "pool show --json"
    );
    let shown = pools.run("show", &[])?;
    for line in
        [format!("ceph conf     {file}"), format!("ceph id       {TENANT}"), "ceph fs       cephfs".into()]
    {
        ensure!(shown.lines().any(|one| one == line), "pool show: {line} is not in {shown}");
    }

    let named = format!("pool={}", pools.name());
    let mount = |name: &str, more: &[&str]| -> Outcome<Mount> {
        let layers = layers(cx, name, &["ceph:/settings"])?;
        pools.mount_with(&layers, &[&[named.as_str()], more].concat())
    };
    let usual = mount("usual", &[])?;
    ensure_eq!(fs::read_to_string(usual.path("file"))?, "on CephFS", "contents");
    ensure_eq!(clients(cluster, &usual)?, [TENANT], "the service's client");
    let own = mount("own", &["ceph.id=admin"])?;
    ensure_eq!(fs::read_to_string(own.path("file"))?, "on CephFS", "contents, as another client");
    ensure_eq!(clients(cluster, &own)?, ["admin", TENANT], "clients of one service");

    // What is changed holds for the next mount, and what a mount says holds in any case.
    pools.run("set", &["--ceph-fs", "nowhere"])?;
    match mount("nowhere", &[]) {
        Ok(_) => return fail("mounted, of a filesystem that is not there"),
        Err(stop) => ensure!(stop.to_string().contains("ceph.fs"), "of no filesystem: {stop}"),
    }
    let named_here = mount("named", &["ceph.fs=cephfs", &conf(cluster)])?;
    ensure_eq!(
        fs::read_to_string(named_here.path("file"))?,
        "on CephFS",
        "contents, of a filesystem that is named"
    );
    ensure_eq!(fs::read_to_string(usual.path("file"))?, "on CephFS", "contents, of the first mount");
    drop((usual, own, named_here));

    let missing = cx.dir.join("missing").display().to_string();
    for (bad, words) in [
        (&["--ceph", "none"][..], "set ceph to on"),
        (&["--ceph-conf", &missing], missing.as_str()),
        (&["--ceph-id", ""], "ceph_id"),
    ] {
        let output = pools.attempt("set", bad)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure_eq!(output.status.code(), Some(2), "{bad:?}: {said}");
        ensure!(said.contains(words) && said.lines().count() == 1, "{bad:?}: {said}");
    }
    pools.run("set", &["--ceph", "none", "--ceph-conf", "none", "--ceph-id", "none", "--ceph-fs", "none"])?;
    let text = fs::read_to_string(cx.dir.join("pools").join(Path::new(pools.name())).join("pool.toml"))?;
    ensure_eq!(text, "", "settings, all taken back");
    Ok(())
}

/// The names of the clients that a mount's service has, sorted.
fn clients(cluster: &Cluster, mount: &Mount) -> Outcome<Vec<String>> {
    let listed = cluster.ceph(&["tell", "mds.a", "client", "ls", "--format=json"])?;
    let sessions: Value = serde_json::from_str(&listed).doing("the sessions")?;
    let service = mount.service()?.as_raw_nonzero().to_string();
    let its = sessions.as_array().into_iter().flatten().filter_map(|session| {
        let of = &session["client_metadata"];
        (of["pid"] == service.as_str()).then(|| of["entity_id"].as_str().unwrap_or_default().to_owned())
    });
    let mut names: Vec<String> = its.collect();
    names.sort();
    Ok(names)
}
