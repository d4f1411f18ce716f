//! A cluster for the cases, and what another client does to it.

use crate::harness::outcome::{DuringContext, Outcome, Stop, ensure, fail};
use crate::harness::{shell, skip, source_root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vellum_branch::{CephAccess, CephBranch, CephClient};
use vellum_sys::ceph::CephInode;
use vellum_vfs::{Branch, BranchDir, Name, Object, SetTime, Timestamp};

/// The exit status of scripts/ceph-local where something is not installed.
const MISSING: i32 = 77;
/// How long a daemon may take to do something.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes that are copied at a time.
const STEP: usize = 4 << 20;

/// A cluster, which ends with this.
pub(in crate::cases) struct Cluster {
    pub(in crate::cases) conf: PathBuf,
    /// A client beside those of mounts.
    client: Option<Arc<CephClient>>,
    /// It lives as long as its input is open.
    script: Child,
    /// A metadata server that was started again.
    server: Option<Child>,
}

impl Cluster {
    /// Starts one. Skips the case where Ceph is not installed.
    pub(in crate::cases) fn start() -> Outcome<Self> {
        let mut script = Command::new(source_root().join("scripts/ceph-local"))
            .args(["sh", "-c", "echo \"$CEPH_CONF\"; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut conf = String::new();
        if let Some(said) = script.stdout.as_mut() {
            BufReader::new(said).read_line(&mut conf)?;
        }
        if conf.is_empty() {
            let status = script.wait()?;
            let mut why = String::new();
            if let Some(said) = script.stderr.as_mut() {
                said.read_to_string(&mut why)?;
            }
            let why = why.trim();
            return if status.code() == Some(MISSING) { skip(why) } else { fail(format!("{status}: {why}")) };
        }
        let conf = PathBuf::from(conf.trim());
        let text = CString::new(conf.as_os_str().as_bytes()).doing("the configuration")?;
        let access = CephAccess { conf: Some(&text), ..CephAccess::default() };
        let client = CephClient::connect(access).doing("a client")?;
        Ok(Self { conf, client: Some(client), script, server: None })
    }

    fn client(&self) -> Outcome<&Arc<CephClient>> {
        self.client.as_ref().ok_or_else(|| Stop::Fail("no client".into()))
    }

    /// Copies a local tree to a new directory of the filesystem's root.
    pub(in crate::cases) fn put(&self, tree: &Path, name: &str) -> Outcome {
        let root = self.root()?;
        let name = CString::new(name).doing("a name")?;
        let name = Name::new(&name).doing("a name")?;
        root.make_dir(name, 0o755).doing("a directory")?;
        let dir = root.open_dir(name).doing("a directory")?;
        copy_dir(tree, &dir, &mut HashMap::new())?;
        // What is written stays in the client's memory otherwise, until another asks.
        self.client()?.sync().doing("sync")
    }

    /// The filesystem's root.
    pub(in crate::cases) fn root(&self) -> Outcome<Arc<dyn BranchDir>> {
        Ok(CephBranch::open(self.client()?, c"").doing("the root")?.root())
    }

    /// A directory.
    pub(super) fn open(&self, path: &CStr) -> Outcome<Arc<dyn BranchDir>> {
        Ok(CephBranch::open(self.client()?, path).doing("a directory")?.root())
    }

    /// The names in a directory.
    pub(in crate::cases) fn names(&self, path: &str) -> Outcome<Vec<String>> {
        let dir = self.open(&CString::new(path).doing("a path")?)?;
        let mut names = Vec::new();
        dir.list(&mut |item| {
            names.push(item.name.to_string());
            Ok(())
        })
        .doing("a list")?;
        Ok(names)
    }

    /// Whose a directory is to write to, as he has said.
    pub(in crate::cases) fn writer(&self, path: &str) -> Outcome<Option<Vec<u8>>> {
        let path = CString::new(path).doing("a path")?;
        CephBranch::open(self.client()?, &path).and_then(|branch| branch.writer()).doing("a writer")
    }

    /// Sets how many bytes a directory may hold.
    pub(in crate::cases) fn set_quota(&self, path: &str, bytes: u64) -> Outcome {
        let inode = self.inode(path)?;
        inode.set_xattr(c"ceph.quota.max_bytes", bytes.to_string().as_bytes(), 0).doing("a quota")
    }

    /// Bytes that the cluster counts in a directory and below it, which is what a quota is compared with. It does so some time after a change.
    pub(in crate::cases) fn counted_bytes(&self, path: &str) -> Outcome<u64> {
        let mut value = [0; 32];
        let len = self.inode(path)?.get_xattr(c"ceph.dir.rbytes", &mut value).doing("its bytes")?;
        let text = String::from_utf8_lossy(value.get(..len).unwrap_or_default()).into_owned();
        text.trim_end_matches('\0').parse().doing(text)
    }

    /// Takes a snapshot of a directory.
    pub(super) fn snapshot(&self, path: &str, name: &str) -> Outcome {
        let name = CString::new(name).doing("a name")?;
        let snapshots = self.inode(path)?.snapshots().doing("the snapshots")?;
        snapshots.make_dir(&name, 0o755).doing("a snapshot")
    }

    /// Writes to a file from its beginning, for all clients.
    pub(super) fn write(&self, path: &str, data: &[u8]) -> Outcome {
        let file = Arc::new(self.inode(path)?).open(libc::O_WRONLY).doing("a file")?;
        file.write_at(data, 0).doing("a write")?;
        file.sync(false).doing("a sync")
    }

    /// Renames a file in a directory.
    pub(super) fn rename(&self, path: &str, from: &str, to: &str) -> Outcome {
        let [from, to] = [CString::new(from).doing("a name")?, CString::new(to).doing("a name")?];
        let dir = self.inode(path)?;
        dir.rename(&from, &dir, &to).doing("a rename")
    }

    /// Makes a symbolic link, of whatever length.
    pub(super) fn link(&self, path: &str, name: &str, target: &str) -> Outcome {
        let [name, target] = [CString::new(name).doing("a name")?, CString::new(target).doing("a target")?];
        self.inode(path)?.make_symlink(&name, &target).doing("a link")
    }

    fn inode(&self, path: &str) -> Outcome<CephInode> {
        let (client, path) = (self.client()?, CString::new(path).doing("a path")?);
        let mut inode = client.root().doing("the root")?;
        for name in path.to_bytes().split(|byte| *byte == b'/') {
            let name = CString::new(name).doing("a name")?;
            inode = inode.lookup(&name).doing("a directory")?.0;
        }
        Ok(inode)
    }

    /// What an administrator says; the answer.
    pub(in crate::cases) fn ceph(&self, words: &[&str]) -> Outcome<String> {
        let mut command = Command::new("ceph");
        shell::run(command.arg("--connect-timeout=10").args(words).env("CEPH_CONF", &self.conf))
    }

    /// What its daemons have been asked for so far, by whatever client.
    pub(in crate::cases) fn asked(&self) -> Outcome<RequestCounts> {
        let count = |daemon: &str, counter: &str| -> Outcome<Value> {
            let text = self.ceph(&["tell", daemon, "perf", "dump", counter, "--format=json"])?;
            Ok(serde_json::from_str::<Value>(&text).doing("counters")?[counter].clone())
        };
        let (server, storage) = (count("mds.a", "mds_server")?, count("osd.0", "osd")?);
        let requests = |kind: &str| server[format!("req_{kind}_latency")]["avgcount"].as_u64();
        let lookups = requests("lookup").ok_or("none").doing("lookups")?;
        let attributes = requests("getattr").ok_or("none").doing("attributes")?;
        let reads = storage["op_r"].as_u64().ok_or("none").doing("reads")?;
        Ok(RequestCounts { lookups, attributes, reads })
    }

    /// The sessions that a process's clients have with the metadata server.
    pub(in crate::cases) fn sessions(&self, process: Pid) -> Outcome<Vec<u64>> {
        let listed = self.ceph(&["tell", "mds.a", "client", "ls", "--format=json"])?;
        let sessions: Value = serde_json::from_str(&listed).doing("the sessions")?;
        let of = process.as_raw_nonzero().to_string();
        let is_its = |session: &&Value| session["client_metadata"]["pid"] == of.as_str();
        let its = sessions.as_array().into_iter().flatten().filter(is_its);
        Ok(its.filter_map(|session| session["id"].as_u64()).collect())
    }

    /// Expels the clients of a process.
    pub(in crate::cases) fn expel(&self, process: Pid) -> Outcome {
        let sessions = self.sessions(process)?;
        ensure!(!sessions.is_empty(), "no session of process {process:?}");
        self.forget(process)
    }

    /// Ends the sessions of a process, if it has any.
    pub(super) fn forget(&self, process: Pid) -> Outcome {
        for id in self.sessions(process)? {
            self.ceph(&["tell", "mds.a", "client", "evict", &format!("id={id}")])?;
        }
        Ok(())
    }

    /// A process of a program that knows this cluster.
    pub(in crate::cases) fn process(&self, program: &str) -> Outcome<Option<Pid>> {
        // Others may have clusters, too; the configuration is in the environment.
        let named = format!("CEPH_CONF={}", self.conf.display());
        Ok(fs::read_dir("/proc")?.flatten().find_map(|entry| {
            let process = entry.file_name().to_str()?.parse::<i32>().ok()?;
            let is_it = fs::read_to_string(entry.path().join("comm")).ok()?.trim() == program;
            let environment = fs::read(entry.path().join("environ")).ok()?;
            let is_ours = environment.split(|byte| *byte == 0).any(|one| one == named.as_bytes());
            (is_it && is_ours).then(|| Pid::from_raw(process)).flatten()
        }))
    }

    /// The daemon of a program, which this cluster has one of.
    fn daemon(&self, program: &str) -> Outcome<Pid> {
        self.process(program)?.ok_or_else(|| Stop::Fail(format!("no {program}")))
    }

    /// Stops the storage daemon until what is returned is dropped.
    pub(in crate::cases) fn stop_storage(&self) -> Outcome<StopGuard> {
        self.stop("ceph-osd")
    }

    /// Stops the metadata server until what is returned is dropped.
    pub(in crate::cases) fn stop_server(&self) -> Outcome<StopGuard> {
        self.stop("ceph-mds")
    }

    fn stop(&self, program: &str) -> Outcome<StopGuard> {
        let daemon = self.daemon(program)?;
        kill_process(daemon, Signal::STOP)?;
        Ok(StopGuard(daemon))
    }

    /// The metadata server that serves, by its number.
    fn active_server(&self) -> Outcome<Option<u64>> {
        let dump: Value =
            serde_json::from_str(&self.ceph(&["fs", "dump", "--format=json"])?).doing("the servers")?;
        let info = dump["filesystems"][0]["mdsmap"]["info"].as_object();
        let servers = info.into_iter().flat_map(|servers| servers.values());
        let active = servers.filter(|server| server["state"] == "up:active");
        Ok(active.filter_map(|server| server["gid"].as_u64()).next())
    }

    /// Kills the metadata server; its number.
    pub(in crate::cases) fn kill_server(&self) -> Outcome<Option<u64>> {
        let active = self.active_server()?;
        kill_process(self.daemon("ceph-mds")?, Signal::KILL)?;
        Ok(active)
    }

    /// Starts another in its place, and returns when that serves.
    pub(in crate::cases) fn start_server(&mut self, before: Option<u64>) -> Outcome {
        let mut command = Command::new("ceph-mds");
        command.args(["-f", "-i", "a"]).env("CEPH_CONF", &self.conf).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.server = Some(command.spawn()?);
        let begin = Instant::now();
        loop {
            let active = self.active_server()?;
            if active.is_some() && active != before {
                return Ok(());
            }
            ensure!(begin.elapsed() < PATIENCE, "the metadata server is not back");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // While it can still say goodbye.
        self.client = None;
        drop(self.script.stdin.take());
        let _ = self.script.wait();
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// Requests that the daemons of a cluster have had.
#[derive(Clone, Copy, Debug)]
pub(in crate::cases) struct RequestCounts {
    /// Names that the metadata server has looked up.
    pub(in crate::cases) lookups: u64,
    /// Attributes that it has told.
    pub(in crate::cases) attributes: u64,
    /// Reads of objects, also those of the metadata server.
    pub(in crate::cases) reads: u64,
}

impl RequestCounts {
    /// Those since `before`.
    pub(in crate::cases) const fn since(self, before: Self) -> Self {
        Self {
            lookups: self.lookups.saturating_sub(before.lookups),
            attributes: self.attributes.saturating_sub(before.attributes),
            reads: self.reads.saturating_sub(before.reads),
        }
    }
}

/// A daemon that is stopped until this is dropped.
pub(in crate::cases) struct StopGuard(Pid);

impl Drop for StopGuard {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Where the first name of an inode with several is.
type Links = HashMap<u64, (Arc<dyn BranchDir>, CString)>;

fn copy_dir(from: &Path, to: &Arc<dyn BranchDir>, links: &mut Links) -> Outcome {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, name) = (entry.path(), CString::new(entry.file_name().as_bytes()).doing("a name")?);
        copy(&path, to, &name, links).doing(path.display()).or_else(|stop| match stop {
            Stop::Fail(why) => fail(why),
            stop => Err(stop),
        })?;
    }
    attributes(from, &**to)
}

fn copy(path: &Path, to: &Arc<dyn BranchDir>, text: &CString, links: &mut Links) -> Outcome {
    let name = Name::new(text).doing("a name")?;
    let found = path.symlink_metadata()?;
    let kind = found.file_type();
    if kind.is_dir() {
        to.make_dir(name, 0o755).doing("mkdir")?;
        return copy_dir(path, &to.open_dir(name).doing("open")?, links);
    }
    if let Some((dir, first)) = links.get(&found.ino()) {
        return dir.link(Name::new(first).doing("a name")?, &**to, name).doing("link");
    }
    if found.nlink() > 1 {
        links.insert(found.ino(), (Arc::clone(to), text.clone()));
    }
    if kind.is_symlink() {
        let target = CString::new(fs::read_link(path)?.as_os_str().as_bytes()).doing("a target")?;
        to.make_symlink(name, &target).doing("symlink")?;
    } else if kind.is_file() {
        let made = to.create(name, 0o644).doing("create")?;
        let (mut file, mut buf, mut at) = (File::open(path)?, vec![0; STEP], 0);
        loop {
            let count = file.read(&mut buf)?;
            if count == 0 {
                break;
            }
            made.write_at(buf.get(..count).unwrap_or_default(), at).doing("write")?;
            at += count as u64;
        }
    } else {
        let rdev = if kind.is_char_device() || kind.is_block_device() { found.rdev() } else { 0 };
        to.make_node(name, found.mode(), rdev).doing("mknod")?;
    }
    attributes(path, &*to.hold(name).doing("hold")?)
}

/// Owner, mode, extended attributes, and the time last of all.
fn attributes(path: &Path, to: &dyn Object) -> Outcome {
    let found = path.symlink_metadata()?;
    to.set_owner(Some(found.uid()), Some(found.gid())).doing("chown")?;
    if !found.file_type().is_symlink() {
        to.set_mode(found.mode() & 0o7777).doing("chmod")?;
    }
    for (name, value) in crate::harness::tree::xattrs(path)? {
        let name = CString::new(name).doing("a name")?;
        to.set_xattr(&name, &value, 0).doing("setxattr")?;
    }
    let at = SetTime::At(Timestamp {
        secs: found.mtime(),
        nanos: u32::try_from(found.mtime_nsec()).doing("a time")?,
    });
    to.set_times(Some(at), Some(at)).doing("utimes")
}
