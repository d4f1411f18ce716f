//! Files of a layer on CephFS that are whole in the cache are lent to the kernel: reads, mappings and programs come from one copy in
//! memory, and no request reaches the service.

use super::cluster::Cluster;
use super::trees::{layers, mount};
use crate::cases::cache::handover::kill;
use crate::cases::library::{library, served};
use crate::cases::monitoring::stats_of;
use crate::cases::pool::Pools;
use crate::harness::mount::Profile;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, Mount, shell, skip};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SMALL: usize = 300_000;
const LARGE: usize = 4 << 20;

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 4096 + seed) as u8).collect()
}

/// Requests to read that the service has had.
fn reads(mount: &Mount) -> Outcome<u64> {
    Ok(stats_of(mount)?["operations"]["READ"]["count"].as_u64().unwrap_or_default())
}

fn read_all(file: &File, len: usize) -> Outcome<Vec<u8>> {
    let mut found = vec![0; len];
    file.read_exact_at(&mut found, 0)?;
    Ok(found)
}

pub(super) fn lent(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let tree = cx.dir.join("tree");
    fs::create_dir(&tree)?;
    let (small, large) = (bytes(SMALL, 1), bytes(LARGE, 2));
    fs::write(tree.join("small"), &small)?;
    fs::write(tree.join("large"), &large)?;
    fs::copy("/bin/busybox", tree.join("busybox")).doing("busybox")?;
    cluster.put(&tree, "lent")?;
    let layers = layers(cx, "lent", &["ceph:/lent"])?;
    let mut mount = mount(cluster, &layers, Profile::Passthrough, &["cache=immutable", "cache_size=64M"])?;

    // A small file is fetched when it is opened, a large one lent when it has been read.
    ensure!(fs::read(mount.path("small"))? == small, "small");
    ensure_eq!(reads(&mount)?, 0, "requests to read a small file");
    ensure!(fs::read(mount.path("large"))? == large, "large");
    let asked = reads(&mount)?;
    ensure!(asked > 0, "a large file is not read without being asked for");
    let open = File::open(mount.path("large"))?;
    ensure!(read_all(&open, LARGE)? == large, "large again");
    let said = shell::run(
        Command::new("cmp").args(["-n", "4194304"]).arg(tree.join("large")).arg(mount.path("large")),
    )?;
    ensure_eq!(said, "", "compared by another process");
    ensure_eq!(reads(&mount)?, asked, "requests to read what was lent");
    let said = shell::run(Command::new(mount.path("busybox")).args(["echo", "it runs"]))?;
    ensure_eq!(said, "it runs\n", "a program");

    // Another service has what was cached, as it was lent. The file that is open stays so, and who opens it joins.
    kill(&mount)?;
    ensure!(read_all(&open, LARGE)? == large, "what was open when the service died");
    ensure!(read_all(&File::open(mount.path("large"))?, LARGE)? == large, "opened beside it");
    ensure!(fs::read(mount.path("small"))? == small, "small, from another service");
    let said = shell::run(Command::new(mount.path("busybox")).args(["echo", "it runs"]))?;
    ensure_eq!(said, "it runs\n", "a program, from another service");
    let cache = stats_of(&mount)?["cache"].clone();
    ensure_eq!((cache["misses"].as_u64(), reads(&mount)?), (Some(0), 0), "fetches and requests after that");

    // A write goes to a copy of its own.
    let writer = OpenOptions::new().read(true).write(true).open(mount.path("large"))?;
    writer.write_all_at(b"changed", 100)?;
    let mut changed = large.clone();
    changed.get_mut(100..107).ok_or("short").doing("large")?.copy_from_slice(b"changed");
    ensure!(read_all(&writer, LARGE)? == changed, "what was written");
    ensure!(fs::read(mount.path("large"))? == changed, "opened again");
    ensure!(read_all(&open, LARGE)? == large, "who had the lower file open goes on with it");
    drop((open, writer));
    mount.unmount()
}

/// Reads a file here and there with pread(2), which the library answers from a mapping, and all of it from one of its own; says a digest of
/// both, and does it again for each line that it is told.
const MAPS: &str = "import hashlib, mmap, os, sys
f = os.open(sys.argv[1], os.O_RDONLY)
m = mmap.mmap(f, 0, prot=mmap.PROT_READ)
n = len(m)
def digest():
    parts = hashlib.sha256()
    for at in range(0, n, 4096): parts.update(os.pread(f, 4096, at))
    return parts.hexdigest() + ' ' + hashlib.sha256(m).hexdigest()
print(digest(), flush=True)
for line in sys.stdin: print(digest(), flush=True)
";

/// A program that reads a lent file in both ways.
struct Reader {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Reader {
    fn start(mount: &Mount, pools: &Pools<'_>) -> Outcome<Self> {
        let mut command = Command::new("python3");
        command.args(["-c", MAPS]).arg(mount.path("large")).env("LD_PRELOAD", library()?);
        command.env("VELLUM_SOCKET", pools.session_socket()?).env("VELLUM_REPORT", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().ok_or("none").doing("its output")?);
        Ok(Self { child, to, from })
    }

    fn read_line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn again(&mut self) -> Outcome<String> {
        let to = self.to.as_mut().ok_or("none").doing("its input")?;
        to.write_all(b"again\n")?;
        self.read_line()
    }

    /// Its part of shared memory that is no file's pages, in bytes: where others have a page mapped, too, that counts in part.
    fn shared(&self) -> Outcome<u64> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss_Shmem:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        Ok(kib.ok_or("none").doing("Pss_Shmem")? * 1024)
    }

    /// Ends it: how many reads the library has answered.
    fn end(mut self) -> Outcome<u64> {
        drop(self.to.take());
        let mut report = String::new();
        if let Some(mut said) = self.child.stderr.take() {
            said.read_to_string(&mut report)?;
        }
        ensure!(self.child.wait()?.success(), "{report}");
        Ok(served(&report))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Programs of two containers map a lent file, by themselves and by the library: they show the one copy, which is the cache's memory.
pub(super) fn mapped(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    if !shell::have("python3") {
        return skip("python3 is missing: run make deps");
    }
    let tree = cx.dir.join("tree");
    fs::create_dir(&tree)?;
    let data = bytes(LARGE, 3);
    fs::write(tree.join("large"), &data)?;
    cluster.put(&tree, "lent-mapped")?;
    let digest = shell::run(Command::new("sha256sum").arg(tree.join("large")))?;
    let digest = digest.split(' ').next().unwrap_or_default();
    let right = format!("{digest} {digest}");

    let cx = Cx { dir: cx.dir.clone(), profile: Some(Profile::Passthrough) };
    let pools = Pools::new(&cx)?;
    pools.run("create", &["--ceph-conf", &cluster.conf.display().to_string()])?;
    let pool = format!("pool={}", pools.name());
    let [one, two] = ["one", "two"].map(|name| {
        let layers = layers(&cx, name, &["ceph:/lent-mapped"])?;
        pools.mount_with(&layers, &[&pool, "cache=immutable", "cache_size=64M"])
    });
    let (one, two) = (one?, two?);
    // From here on it is whole, and lent.
    ensure!(fs::read(one.path("large"))? == data, "read the first time");
    let before = (reads(&one)?, reads(&two)?);
    let mut readers = [Reader::start(&one, &pools)?, Reader::start(&two, &pools)?];
    for reader in &mut readers {
        ensure_eq!(reader.read_line()?, right, "mapped");
    }
    ensure_eq!((reads(&one)?, reads(&two)?), before, "requests to read what is mapped");
    let shared: Vec<u64> = readers.iter().map(Reader::shared).collect::<Outcome<_>>()?;
    let all: u64 = shared.iter().sum();
    let (least, most) = (LARGE as u64, LARGE as u64 + LARGE as u64 / 4);
    ensure!((least..most).contains(&all), "memory of both, for a file of {LARGE} bytes: {shared:?}");
    let lent = stats_of(&one)?["cache"]["bytes"].as_u64().unwrap_or_default()
        + stats_of(&two)?["cache"]["bytes"].as_u64().unwrap_or_default();
    ensure!(lent <= most, "what both pay for in the cache: {lent} bytes");

    // They go on, whoever serves, and so does who comes later.
    kill(&one)?;
    let mut third = Reader::start(&two, &pools)?;
    ensure_eq!(third.read_line()?, right, "mapped by way of another service");
    for reader in &mut readers {
        ensure_eq!(reader.again()?, right, "mapped before the service died");
    }
    let shared = readers.iter().chain([&third]).map(Reader::shared).sum::<Outcome<u64>>()?;
    ensure!((least..most).contains(&shared), "memory of all three: {shared}");
    for reader in readers.into_iter().chain([third]) {
        let served = reader.end()?;
        ensure!(served > 500, "reads from mappings: {served}");
    }
    Ok(())
}
