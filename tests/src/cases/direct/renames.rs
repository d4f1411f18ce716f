//! Files that programs rename over rings.

use super::client::Program;
use super::{Ground, SETTLED, forget, status};
use crate::harness::Cx;
use crate::harness::outcome::{Outcome, ensure, ensure_eq};
use libc::{O_CREAT, O_EXCL, O_RDWR};
use rustix::process::{Signal, kill_process};
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use vellum_ring::files::{ASK_KERNEL, LOOK};

const NOENT: u32 = libc::ENOENT as u32;

/// Makes a file whose contents are its name.
fn make(program: &Program, dir: u64, name: &str) -> Outcome<File> {
    let mut file = program.open(dir, name, O_CREAT | O_EXCL | O_RDWR, 0o644)?.or_else(status)?;
    file.write_all(name.as_bytes())?;
    Ok(file)
}

fn names(of: &Path) -> Outcome<Vec<String>> {
    let mut all: Vec<_> =
        fs::read_dir(of)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    all.sort();
    Ok(all)
}

/// What is renamed is seen by all under its new name only, whoever has it open keeps it, and what is not plainly so is the kernel's.
pub(super) fn renames(cx: &Cx) -> Outcome {
    let fill = |lower: &Path| {
        fs::create_dir(lower.join("d"))?;
        fs::write(lower.join("d/low"), "low")?;
        Ok(())
    };
    let ground = Ground::new(cx, fill)?;
    let program = ground.program()?;
    let new = ground.path("new");
    let dir = program.enter(&new)?.or_else(status)?;
    ensure!(!new.join("missed").exists() && names(&new)?.is_empty(), "something is there");
    std::thread::sleep(SETTLED);
    let mut held = make(&program, dir, "a")?;
    // The kernel believes a list, and when the directory was changed.
    ensure_eq!(names(&new)?, ["a"], "names before");
    forget()?;
    let before = fs::metadata(&new)?;
    std::thread::sleep(SETTLED);
    program.rename(dir, "a", "b")?.or_else(status)?;
    ensure_eq!(names(&new)?, ["b"], "names after");
    let after = fs::metadata(&new)?;
    ensure!(
        (after.mtime(), after.mtime_nsec()) > (before.mtime(), before.mtime_nsec()),
        "the directory's time"
    );
    held.write_all(b"!")?;
    ensure_eq!(fs::read(new.join("b"))?, b"a!", "what the holder has written");
    ensure!(!new.join("a").exists(), "the old name is there");
    // Over another one, which stays with its holder.
    forget()?;
    let mut gone = make(&program, dir, "c")?;
    program.rename(dir, "b", "c")?.or_else(status)?;
    ensure_eq!(names(&new)?, ["c"], "names after one was replaced");
    ensure_eq!(fs::read(new.join("c"))?, b"a!", "what has come in its place");
    let mut text = String::new();
    gone.rewind()?;
    gone.read_to_string(&mut text)?;
    ensure_eq!((text.as_str(), gone.metadata()?.nlink()), ("c", 0), "what was replaced, for its holder");
    // The kernel knows one of them.
    ensure_eq!(program.rename(dir, "c", "x")?, Err(LOOK), "what the kernel knows");
    make(&program, dir, "e")?;
    ensure_eq!(program.rename(dir, "e", "c")?, Err(LOOK), "over what the kernel knows");
    ensure_eq!(
        program.rename(dir, "e", "missed")?,
        Err(ASK_KERNEL),
        "what the kernel believes not to be there"
    );
    ensure_eq!(program.rename(dir, "none", "x")?, Err(NOENT), "nothing");
    program.make_dir(dir, "t", 0o755)?.or_else(status)?;
    make(&program, dir, "t/f")?;
    program.rename(dir, "t/f", "g")?.or_else(status)?;
    program.make_link(dir, "l", "e")?.or_else(status)?;
    for (from, to) in
        [("t", "u"), ("l", "u"), ("e", "t"), ("e", "l"), ("e", "e"), ("e", ""), ("e", "."), ("e", "..")]
    {
        ensure_eq!(program.rename(dir, from, to)?, Err(ASK_KERNEL), "{from} to {to:?}");
    }
    for to in ["t/f", "../f", ".wh.f", "a\0b", &"x".repeat(256)] {
        ensure_eq!(program.rename(dir, "e", to)?, Err(ASK_KERNEL), "to {to:?}");
    }
    below(&ground, &program)?;
    // The next service knows the names.
    kill_process(ground.mount.service()?, Signal::KILL)?;
    ensure_eq!(fs::read(new.join("t/g"))?, b"t/f", "after a kill");
    ensure_eq!(names(&new)?, ["c", "e", "l", "t"], "names after a kill");
    Ok(())
}

/// Where a lower layer shows, or has shown, something: the kernel's.
fn below(ground: &Ground<'_>, program: &Program) -> Outcome {
    let d = ground.path("d");
    fs::write(d.join("upper"), "")?;
    let dir = program.enter(&d)?.or_else(status)?;
    std::thread::sleep(SETTLED);
    make(program, dir, "m")?;
    ensure_eq!(program.rename(dir, "low", "x")?, Err(ASK_KERNEL), "a lower file");
    ensure_eq!(program.rename(dir, "m", "low")?, Err(ASK_KERNEL), "over a lower file");
    program.rename(dir, "m", "n")?.or_else(status)?;
    forget()?;
    fs::remove_file(d.join("low"))?;
    std::thread::sleep(SETTLED);
    ensure_eq!(program.rename(dir, "n", "low")?, Err(ASK_KERNEL), "over a whiteout");
    ensure_eq!(names(&d)?, ["n", "upper"], "names in a merged directory");
    Ok(())
}
