//! `vellum zoned list`, `put`, `get` and `remove`: the objects of a store.

use super::args::{ClassArg, GetArgs, LookArgs, PutArgs, RemoveArgs};
use super::device::{of_object, open, store, store_on};
use crate::options::quote;
use crate::{inspect::size, json};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use vellum_service::Failure;
use vellum_zoned::device::Access;
use vellum_zoned::store::{Class, Error, NAME_MAX, Store};

/// Bytes that are moved at once.
const PIECE: usize = 1 << 20;

#[derive(Serialize)]
struct Object {
    name: String,
    class: &'static str,
    size: u64,
    zones: Vec<u32>,
}

/// What a class is called.
pub(super) fn class_name(class: Class) -> &'static str {
    match class {
        Class::Normal => "normal",
        Class::Checkpoint => "checkpoint",
    }
}

/// All objects.
pub(super) fn list(arguments: &LookArgs) -> Result<String, Failure> {
    let (_, store) = store(&arguments.device, Access::Read)?;
    let object = |entry: vellum_zoned::store::Entry| {
        let zones = store.places(&entry.name).map_err(|e| of_object(&entry.name, e))?;
        Ok(Object { name: quote(&entry.name), class: class_name(entry.class), size: entry.size, zones })
    };
    let all = store.list().into_iter().map(object).collect::<Result<Vec<_>, Failure>>()?;
    if arguments.json {
        return json::pretty(&all);
    }
    let mut text = format!("{:<12}{:>12}{:>8}  NAME\n", "CLASS", "SIZE", "ZONES");
    for object in &all {
        let _ = writeln!(
            text,
            "{:<12}{:>12}{:>8}  {}",
            object.class,
            size(object.size),
            object.zones.len(),
            object.name
        );
    }
    Ok(text)
}

fn check_name(name: &OsStr) -> Result<&[u8], Failure> {
    let bytes = name.as_bytes();
    if (1..=NAME_MAX).contains(&bytes.len()) { Ok(bytes) } else { Err(of_object(bytes, Error::BadName)) }
}

/// Writes an object.
pub(super) fn put(arguments: &PutArgs) -> Result<String, Failure> {
    let name = check_name(&arguments.name)?;
    let mut input: Box<dyn Read> = match &arguments.file {
        Some(file) => Box::new(opened(file)?),
        None => Box::new(std::io::stdin().lock()),
    };
    let class = match arguments.class {
        ClassArg::Normal => Class::Normal,
        ClassArg::Checkpoint => Class::Checkpoint,
    };
    let (_, store) = store(&arguments.device, Access::Write)?;
    let of = |error| of_object(name, error);
    let mut writer = store.writer(class).map_err(of)?;
    let mut piece = vec![0; PIECE];
    loop {
        let read = match input.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => read,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Failure::system("cannot read what the object is to hold").because(e)),
        };
        writer.write(&piece[..read]).map_err(of)?;
    }
    writer.commit(name).map_err(of)?;
    store.sync().map_err(of)?;
    Ok(String::new())
}

fn opened(file: &Path) -> Result<File, Failure> {
    let opened = File::open(file).and_then(|opened| match opened.metadata()?.is_dir() {
        true => Err(std::io::ErrorKind::IsADirectory.into()),
        false => Ok(opened),
    });
    opened.map_err(|e| {
        Failure::input(file.display().to_string()).because(e).remedy("give a file that can be read")
    })
}

/// Reads an object.
pub(super) fn get(arguments: &GetArgs) -> Result<String, Failure> {
    let name = check_name(&arguments.name)?;
    let (_, store) = store(&arguments.device, Access::Read)?;
    // Before anything is made.
    store.entry(name).map_err(|e| of_object(name, e))?;
    match &arguments.file {
        None => copy(&store, name, &mut std::io::stdout().lock())?,
        Some(path) => {
            let failed = |e| Failure::system(format!("{}: cannot be written", path.display())).because(e);
            let mut file = File::create(path)
                .map_err(|e| Failure::input(format!("{}: cannot be made", path.display())).because(e))?;
            copy(&store, name, &mut file)?;
            file.sync_all().or_else(|e| {
                if file.metadata().is_ok_and(|m| m.is_file()) { Err(failed(e)) } else { Ok(()) }
            })?;
        }
    }
    Ok(String::new())
}

fn copy(store: &Store, name: &[u8], out: &mut dyn Write) -> Result<(), Failure> {
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    loop {
        let read = store.read(name, at, &mut piece).map_err(|e| of_object(name, e))?;
        if read == 0 {
            break;
        }
        let written = out.write_all(&piece[..read]);
        written.map_err(|e| Failure::system("cannot write what the object holds").because(e))?;
        at += read as u64;
    }
    out.flush().map_err(|e| Failure::system("cannot write what the object holds").because(e))
}

/// Takes objects away, all or none.
pub(super) fn remove(arguments: &RemoveArgs) -> Result<String, Failure> {
    let names: Vec<&[u8]> =
        arguments.names.iter().map(OsString::as_os_str).map(check_name).collect::<Result<_, _>>()?;
    let found = open(&arguments.device, Access::Write)?;
    // Opening a store to write to it writes.
    let before = store_on(&found, &arguments.device, Access::Read)?;
    for name in &names {
        before.entry(name).map_err(|e| of_object(name, e))?;
    }
    let store = store_on(&found, &arguments.device, Access::Write)?;
    for name in names {
        match store.remove(name) {
            // It was named twice.
            Ok(()) | Err(Error::NotFound) => {}
            Err(e) => return Err(of_object(name, e)),
        }
    }
    let failed = |e| Failure::system(format!("{}: cannot be written", arguments.device.display())).because(e);
    store.sync().map_err(failed)?;
    // That their zones are empty is to be found by whoever looks next; otherwise the next that writes would empty them again.
    found.device.flush().map_err(|e| failed(e.into()))?;
    Ok(String::new())
}
