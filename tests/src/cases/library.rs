//! The preload library: programs read the same with it as without it, whatever happens to their files and descriptors.

mod attributes;
mod service;

use super::Case;
use super::pool::PoolMount;
use crate::harness::PATIENCE;
use crate::harness::outcome::{Outcome, ensure, ensure_eq, fail, skip};
use crate::harness::{Cx, shell, source_root};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub(super) const CASES: &[Case] = &[
    Case::mounted("library/same-results", 120, same_results),
    Case::mounted("library/programs", 120, programs),
    Case::mounted("library/descriptors", 60, descriptors),
    Case::mounted("library/signals", 60, signals),
    Case::mounted("library/cut-by-others", 60, cut_by_others),
    Case::mounted("library/truncated-in-a-read", 60, truncated_in_a_read),
    Case::mounted("library/behind-the-mount", 60, behind_the_mount),
    Case::mounted("library/threads", 120, threads),
    Case::mounted("library/attributes", 60, attributes::attributes),
    Case::mounted("library/killed-service", 120, service::killed_service),
    Case::once("library/one-file-for-every-libc", 60, every_libc),
    Case::once("library/report-and-example", 60, report_and_example),
    Case::once("library/without-a-pool", 60, service::without_a_pool),
    Case::once("library/before-the-first-service", 60, service::before_the_first_service),
    Case::once("library/memory-is-read-only", 60, service::memory_is_read_only),
];

/// A block of the programs' files.
const BLOCK: usize = 512;
/// Blocks of a file.
const BLOCKS: u64 = 200;

/// The library, which `make test` builds.
pub(super) fn library() -> Outcome<PathBuf> {
    let library = source_root().join("target/release/libvellum.so");
    if !library.exists() {
        shell::run(&mut Command::new(source_root().join("scripts/library")))?;
    }
    Ok(library.canonicalize()?)
}

/// The compilers that are here; each makes a program for another libc.
pub(super) fn compilers() -> Outcome<Vec<&'static str>> {
    let all = ["gcc", "musl-gcc"].into_iter().filter(|compiler| shell::have(compiler));
    let all: Vec<_> = all.collect();
    if all.len() < 2 {
        return skip(format!("of gcc and musl-gcc there is only {all:?}: run make deps"));
    }
    Ok(all)
}

/// Compiles one of the programs.
pub(super) fn compile(cx: &Cx, compiler: &str, name: &str) -> Outcome<PathBuf> {
    let source = source_root().join(format!("tests/programs/library-{name}.c"));
    let program = cx.dir.join(format!("{name}-{compiler}"));
    shell::run(Command::new(compiler).args(["-O2", "-pthread", "-o"]).arg(&program).arg(source))?;
    Ok(program)
}

/// A mount in a pool, and the library.
struct Ground<'a> {
    pooled: PoolMount<'a>,
    library: PathBuf,
}

impl<'a> std::ops::Deref for Ground<'a> {
    type Target = PoolMount<'a>;

    fn deref(&self) -> &PoolMount<'a> {
        &self.pooled
    }
}

impl<'a> Ground<'a> {
    fn new(cx: &'a Cx, fill: impl FnOnce(&Path) -> Outcome) -> Outcome<Self> {
        Ok(Self { library: library()?, pooled: PoolMount::new(cx, fill)? })
    }

    /// A command with the library.
    fn preloaded(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        self.preload(&mut command);
        command.stdin(Stdio::null());
        command
    }

    fn preload(&self, command: &mut Command) {
        self.pooled.preload(command, &self.library);
        command.env("VELLUM_REPORT", "1");
    }

    /// Runs it; what it says, and how many reads came from mappings.
    fn run(&self, command: &mut Command) -> Outcome<(String, u64)> {
        self.preload(command);
        let output = command.output()?;
        let (out, report) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{:?}: {}\n{out}{report}", command.get_program(), output.status);
        Ok((out.into_owned(), served(&report)))
    }
}

/// Files that are handed out are read by the kernel; here they are to be mapped.
fn without_rings(command: &mut Command) -> &mut Command {
    command.env("VELLUM_RING", "off")
}

/// Reads from mappings, of all programs that reported.
pub(super) fn served(report: &str) -> u64 {
    let counts = report.lines().filter_map(|line| line.strip_prefix("vellum: preads from mappings: "));
    counts.filter_map(|count| count.parse::<u64>().ok()).sum()
}

const fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

/// A file whose blocks say which they are, as `library.h` of the programs has it.
fn blocks(file: u64, blocks: u64) -> Vec<u8> {
    let block = |number: u64| {
        let rest = (2..BLOCK as u64 / 8).map(move |at| mix(file * 1_000_003 + number * 64 + at));
        [file, number].into_iter().chain(rest)
    };
    (0..blocks).flat_map(block).flat_map(u64::to_ne_bytes).collect()
}

fn five_files(lower: &Path) -> Outcome {
    for file in 1..6 {
        fs::write(lower.join(format!("f{file}")), blocks(file, BLOCKS))?;
    }
    Ok(())
}

/// Random reads, cuts, appends and replaced descriptors: every result is that of an ordinary file. Small files are copied whole when
/// they are first written to, large ones block by block.
fn same_results(cx: &Cx) -> Outcome {
    let sizes = [("small", 60_000), ("large", 3 << 20)];
    let data = |len: usize| -> Vec<u8> { (0..len).map(|at| (at * 7 + at / 251) as u8).collect() };
    let ground = Ground::new(cx, |lower| {
        for (name, size) in sizes {
            for compiler in ["gcc", "musl-gcc"] {
                fs::write(lower.join(format!("{name}-{compiler}")), data(size))?;
            }
        }
        Ok(())
    })?;
    for compiler in compilers()? {
        let program = compile(cx, compiler, "reads")?;
        for (name, size) in sizes {
            let (plain, file) = (cx.dir.join("plain"), ground.mount.path(&format!("{name}-{compiler}")));
            fs::write(&plain, data(size))?;
            let mut all = 0;
            for seed in 0..6 {
                let arguments = [seed.to_string(), "1500".to_owned()];
                let expected = shell::run(Command::new(&program).arg(&plain).args(&arguments))?;
                let mut command = Command::new(&program);
                let (found, served) = ground.run(without_rings(command.arg(&file).args(&arguments)))?;
                ensure_eq!(found, expected, "{name}, {compiler}, seed {seed}: results");
                all += served;
            }
            ensure!(all > 1000, "{name}, {compiler}: only {all} reads came from mappings");
            ensure!(fs::read(&plain)? == fs::read(&file)?, "{name}, {compiler}: contents at the end");
        }
    }
    Ok(())
}

/// Programs as they are.
fn programs(cx: &Cx) -> Outcome {
    if let Some(missing) = ["python3", "sqlite3", "gcc"].into_iter().find(|program| !shell::have(program)) {
        return skip(format!("{missing} is missing: run make deps"));
    }
    let ground = Ground::new(cx, |lower| {
        shell::run(shell::bash(
            "sqlite3 $A/db 'create table t(id integer primary key, v text, n int); create index i on t(n);
             with recursive c(x) as (select 1 union all select x+1 from c where x<20000)
             insert into t select x, printf(\"%064d\", x*x), x%977 from c;'; seq 200000 > $A/numbers",
        ).env("A", lower))
        .map(drop)
    })?;
    let compare = |line: &str| -> Outcome<u64> {
        let on = |dir: &Path| {
            let mut command = shell::bash(line);
            command.env("D", dir);
            command
        };
        let plain = shell::run(&mut on(ground.layers.lower()))?;
        let (found, served) = ground.run(&mut on(ground.mount.root()))?;
        ensure_eq!(found, plain, "{line}");
        Ok(served)
    };
    compare(
        "cat $D/numbers | sha256sum; grep -c 77 $D/numbers; tail -n 2 $D/numbers; wc $D/numbers | awk '{print $1}'",
    )?;
    let python = "import os,sys,hashlib; f=os.open(sys.argv[1],os.O_RDONLY); h=hashlib.sha256()
for i in range(3000): h.update(os.pread(f,600,i*431%1300000))
h.update(os.preadv(f,[bytearray(10),bytearray(9)],5).to_bytes(2,'little'))
print(h.hexdigest())";
    let served = compare(&format!("python3 -c \"{python}\" $D/numbers"))?;
    ensure!(served > 2000, "python3: {served} reads came from mappings");
    let query = "sqlite3 -readonly $D/db 'select count(*), sum(n) from t; select v from t where n=500; pragma integrity_check;'";
    let served = compare(query)?;
    ensure!(served > 100, "sqlite3: {served} reads came from mappings");
    // Both sides are changed alike; readers and a writer of one database.
    fs::copy(ground.layers.lower().join("db"), cx.dir.join("db"))?;
    for round in 0..4 {
        let line = format!(
            "sqlite3 $D/db \"begin; update t set v='round {round} '||id where n={}; delete from t where n={}; commit; vacuum;
             select count(*), sum(length(v)) from t; pragma integrity_check;\"",
            round * 31 + 5,
            round * 17 + 300
        );
        let plain = shell::run(shell::bash(&line).env("D", &cx.dir))?;
        let found = ground.run(shell::bash(&line).env("D", ground.mount.root()))?.0;
        ensure_eq!(found, plain, "round {round}");
        let without = shell::run(shell::bash(query).env("D", ground.mount.root()))?;
        ensure_eq!(
            ground.run(shell::bash(query).env("D", ground.mount.root()))?.0,
            without,
            "round {round}, a reader"
        );
    }
    Ok(())
}

/// close, dup2, fork, vfork, exec and all the rest.
fn descriptors(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx, |_| Ok(()))?;
    for compiler in compilers()? {
        let program = compile(cx, compiler, "descriptors")?;
        let (a, b) = (ground.mount.path("a"), ground.mount.path("b"));
        let output = ground.preloaded(&program).args([a, b]).output()?;
        let report = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{compiler}: {report}");
        ensure!(served(&report) > 100, "{compiler}: {report}");
    }
    Ok(())
}

/// The program's own handlers.
fn signals(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx, |_| Ok(()))?;
    for compiler in compilers()? {
        let program = compile(cx, compiler, "signals")?;
        let file = ground.mount.path(compiler);
        shell::run(Command::new(&program).arg(&file))?;
        let (_, served) = ground.run(Command::new(&program).arg(&file))?;
        ensure!(served > 0, "{compiler}: nothing was read from a mapping");
    }
    Ok(())
}

/// A reader in Python: reads a line, says what it has read at that offset; first often enough for a mapping.
const READER: &str = "import os,sys
f=os.open(sys.argv[1],os.O_RDONLY)
for i in range(50): os.pread(f,100,i)
print('ready',flush=True)
for line in sys.stdin: print(os.pread(f,20,int(line)).hex() or '-',flush=True)";

/// The reader as a process.
struct Reader(Child, std::io::BufReader<std::process::ChildStdout>);

impl Reader {
    fn start(ground: &Ground<'_>, file: &Path) -> Outcome<Self> {
        let mut command = ground.preloaded("python3");
        command
            .args(["-c", READER])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let Some(out) = child.stdout.take() else { return fail("no output") };
        let mut reader = Self(child, std::io::BufReader::new(out));
        ensure_eq!(reader.line()?, "ready", "the reader's first word");
        Ok(reader)
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut self.1, &mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// What is at an offset.
    fn at(&mut self, offset: u64) -> Outcome<String> {
        let Some(input) = self.0.stdin.as_mut() else { return fail("no input") };
        std::io::Write::write_all(input, format!("{offset}\n").as_bytes())?;
        self.line()
    }

    /// How many of its reads came from mappings.
    fn end(mut self) -> Outcome<u64> {
        drop(self.0.stdin.take());
        let output = self.0.wait_with_output()?;
        Ok(served(&String::from_utf8_lossy(&output.stderr)))
    }
}

/// What others cut off is gone for the reader at once, and zeros when the file grows again; what others write is there.
fn cut_by_others(cx: &Cx) -> Outcome {
    if !shell::have("python3") {
        return skip("python3 is missing: run make deps");
    }
    let ground = Ground::new(cx, |lower| Ok(fs::write(lower.join("file"), vec![b'a'; 40_000])?))?;
    let path = ground.mount.path("file");
    // In the upper already, so that the reader's descriptor goes on with it in `passthrough` too.
    fs::OpenOptions::new().append(true).open(&path)?.sync_all()?;
    let file = fs::OpenOptions::new().read(true).write(true).open(&path)?;
    rustix::io::pwrite(&file, b"b", 0)?;
    file.sync_all()?;
    let mut reader = Reader::start(&ground, &path)?;
    let hex = |byte: u8, count: usize| format!("{byte:02x}").repeat(count);
    for round in 0..20 {
        ensure_eq!(reader.at(30_000)?, hex(b'a', 20), "round {round}: the file as it was");
        rustix::io::pwrite(&file, b"cccccccccccccccccccc", 20_000)?;
        ensure_eq!(reader.at(20_000)?, hex(b'c', 20), "round {round}: what was written");
        match round % 4 {
            0 => file.set_len(29_990 + 20)?,
            1 => drop(fs::File::create(&path)?),
            2 => drop(shell::run(Command::new("truncate").args(["-s", "30010"]).arg(&path))?),
            _ => file.set_len(30_010)?,
        }
        let rest = if round % 4 == 1 { "-".to_owned() } else { hex(b'a', 10) };
        ensure_eq!(reader.at(30_000)?, rest, "round {round}: after a cut");
        ensure_eq!(reader.at(39_000)?, "-", "round {round}: beyond a cut");
        file.set_len(40_000)?;
        ensure_eq!(reader.at(39_000)?, hex(0, 20), "round {round}: after it has grown");
        rustix::io::pwrite(&file, &vec![b'a'; 40_000], 0)?;
        file.sync_all()?;
        for offset in 0..100 {
            ensure_eq!(reader.at(offset)?, hex(b'a', 20), "round {round}: the file as it was");
        }
    }
    let served = reader.end()?;
    ensure!(served > 200, "only {served} reads came from mappings");
    Ok(())
}

/// A thread that is stopped between the two halves of a copy does not return what was there before the truncation.
fn truncated_in_a_read(cx: &Cx) -> Outcome {
    const NO_USERFAULTFD: i32 = 77;
    let ground = Ground::new(cx, five_files)?;
    let program = compile(cx, "gcc", "truncation")?;
    let mut command = ground.preloaded(&program);
    let output = without_rings(&mut command).arg(ground.mount.path("f1")).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(NO_USERFAULTFD) {
        return skip(said.trim());
    }
    ensure!(output.status.success(), "{said}");
    Ok(())
}

/// Whoever changes a layer under a mount may get anything, but the reader lives.
fn behind_the_mount(cx: &Cx) -> Outcome {
    if !shell::have("python3") {
        return skip("python3 is missing: run make deps");
    }
    let ground = Ground::new(cx, |lower| Ok(fs::write(lower.join("file"), vec![b'a'; 400_000])?))?;
    let mut reader = Reader::start(&ground, &ground.mount.path("file"))?;
    fs::OpenOptions::new().write(true).open(ground.layers.lower().join("file"))?.set_len(100)?;
    for offset in (0..400_000).step_by(3001) {
        let read = reader.at(offset)?;
        ensure!(!read.is_empty(), "the reader has died at {offset}");
    }
    reader.end()?;
    Ok(())
}

/// Readers, cutters, writers, and descriptors that move, in threads.
fn threads(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx, five_files)?;
    let programs: Vec<_> =
        compilers()?.into_iter().map(|compiler| compile(cx, compiler, "stress")).collect::<Outcome<_>>()?;
    for program in &programs {
        let mut command = Command::new(program);
        let (_, served) = ground.run(without_rings(command.arg(ground.mount.root()).arg("8")))?;
        ensure!(served > 10_000, "{program:?}: only {served} reads came from mappings");
    }
    // A file that was handed out is not mapped again while somebody has it open through the mount.
    for program in &programs {
        ground.run(Command::new(program).arg(ground.mount.root()).arg("4"))?;
    }
    Ok(())
}

/// It needs nothing of a libc but what all have, and no version of it.
fn every_libc(_: &Cx) -> Outcome {
    if !shell::have("readelf") {
        return skip("readelf is missing: run make deps");
    }
    let library = library()?;
    let symbols = shell::run(Command::new("readelf").args(["--dyn-syms", "--wide"]).arg(&library))?;
    let known = [
        "strlen",
        "bcmp",
        "memcmp",
        "memcpy",
        "memset",
        "memmove",
        "dl_iterate_phdr",
        "environ",
        "__errno_location",
        "getauxval",
    ];
    for line in symbols.lines().filter(|line| line.contains(" UND ")) {
        let Some(name) = line.split_whitespace().nth(7) else { continue };
        ensure!(known.contains(&name), "undefined: {name}");
    }
    for name in ["pread", "pread64", "close", "dup2", "sigaction", "vellum_open", "vellum_stats"] {
        ensure!(symbols.lines().any(|line| line.ends_with(&format!(" {name}"))), "{name} is not exported");
    }
    let dynamic =
        shell::run(Command::new("readelf").args(["--dynamic", "--version-info", "--wide"]).arg(&library))?;
    ensure!(!dynamic.contains("NEEDED") && !dynamic.contains("Version needs"), "it needs others:\n{dynamic}");
    ensure!(!dynamic.contains("TEXTREL"), "text relocations:\n{dynamic}");
    Ok(())
}

/// VELLUM_REPORT, and a program that is linked with the library.
fn report_and_example(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx, five_files)?;
    let [compiler, _] = compilers()?[..] else { return skip("a compiler is missing") };
    let include = source_root().join("crates/preload/include");
    let program = cx.dir.join("example");
    let source = source_root().join("tests/programs/library-example.c");
    let mut compile = Command::new(compiler);
    compile
        .args(["-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg("-I")
        .arg(include)
        .arg(source)
        .arg(&ground.library);
    shell::run(&mut compile)?;
    let run = |file: PathBuf, report: &str| -> Outcome<(String, String)> {
        let mut command = Command::new(&program);
        let dir = ground.library.parent().unwrap_or(Path::new("/"));
        command
            .arg(file)
            .env("VELLUM_SOCKET", &ground.socket)
            .env("VELLUM_REPORT", report)
            .env("LD_LIBRARY_PATH", dir);
        let output = command.output()?;
        ensure!(output.status.success(), "{output:?}");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((text(&output.stdout), text(&output.stderr)))
    };
    let (said, report) = run(ground.mount.path("f1"), "1")?;
    ensure_eq!(said.trim(), "version 3, served 46, few 4", "what the example counts");
    let expected = "vellum: preads from mappings: 46\nvellum: bytes from mappings: 4600\n\
                    vellum: preads by the kernel: 4 (not a Vellum file 0, too few reads 4, beyond the end 0, changed 0, \
                    no socket 0, other 0)\n";
    ensure_eq!(report, expected, "the report");
    ensure_eq!(run(ground.mount.path("f1"), "0")?.1, "", "what is said without being asked");
    if shell::have("python3") {
        // A child made by fork counts and reports for itself.
        let line = "import os,sys; f=os.open(sys.argv[1],os.O_RDONLY)
for i in range(14): os.pread(f,10,i)
c=os.fork()
if c==0:
    for i in range(5): os.pread(f,10,i)
    sys.exit(0)
os.waitpid(c,0)";
        let output = ground.preloaded("python3").args(["-c", line]).arg(ground.mount.path("f1")).output()?;
        let report = String::from_utf8_lossy(&output.stderr);
        let counts: Vec<&str> = report.lines().filter(|line| line.contains("preads from mappings")).collect();
        let expected = ["vellum: preads from mappings: 5", "vellum: preads from mappings: 10"];
        ensure_eq!(counts, expected, "reports of a child and its parent");
    }
    let (_, report) = run(ground.layers.lower().join("f1"), "1")?;
    ensure!(report.contains("(not a Vellum file 46,"), "an ordinary file: {report}");
    Ok(())
}
