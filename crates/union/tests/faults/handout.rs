//! What clients do past the kernel.

use crate::common::fault::FaultPlan;
use crate::common::{Deaf, ROOT, name, walk};
use crate::scenarios::{List, Scenario, USER, place};
use crate::stage::{Kind, Stage};
use std::sync::Arc;
use vellum_union::{Directory, Union};
use vellum_vfs::{
    Client, Context, DirName, Errno, ExportFile, Handout, HandoutError, HandoutFlags, Result, SetAttr,
    Verdict,
};

/// What a client does past the kernel, with a name in a directory that it enters first. A refusal is EAGAIN.
fn past<T>(
    cx: Context<'static>,
    path: &'static str,
    act: impl Fn(&Union, &Client<'_>, &DirName<'_, Directory>) -> Verdict<T>,
) -> impl Fn(&Union) -> Result<()> {
    move |fs| {
        let (parent, last) = place(fs, path)?;
        let errno = |refused| match refused {
            HandoutError::Error(errno) => errno,
            _ => Errno::AGAIN,
        };
        let dir = fs.enter(parent).map_err(errno)?;
        let client = Client { uid: cx.uid, gid: cx.gid, progress: &() };
        let wanted = DirName { dir: &dir, name: name(&last), checked: false };
        act(fs, &client, &wanted).map_err(errno)?;
        Ok(())
    }
}

/// What a client writes to a file that it has open by way of the kernel, too.
fn reopened(cx: Context<'static>, path: &'static str) -> impl Fn(&Union) -> Result<()> {
    move |fs| {
        let node = walk(fs, path)?.ok_or(Errno::NOENT)?.node;
        let client = Client { uid: cx.uid, gid: cx.gid, progress: &() };
        match fs.reopen(&client, node, HandoutFlags::WRITE) {
            Ok(ExportFile::Object(file)) => file.write_at(b"by another way", 100).map(drop),
            Ok(ExportFile::Descriptor(_)) => unreachable!("a disk in memory has no descriptors"),
            Err(_) => Err(Errno::AGAIN.into()),
        }
    }
}

/// All that clients do past the kernel.
pub fn past_the_kernel() -> Vec<Scenario> {
    const TO_WRITE: HandoutFlags = HandoutFlags::READ.union(HandoutFlags::WRITE);
    let mut list = List(Vec::new());
    let create = |fs: &Union, client: &Client<'_>, at: &DirName<'_, Directory>| {
        fs.open_or_create(client, at, TO_WRITE | HandoutFlags::CREATE, 0o640)
    };
    let mkdir = |fs: &Union, client: &Client<'_>, at: &DirName<'_, Directory>| fs.mkdir(client, at, 0o750);
    let symlink =
        |fs: &Union, client: &Client<'_>, at: &DirName<'_, Directory>| fs.symlink(client, at, c"to");
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    list.add("create past the kernel", past(ROOT, "new", create));
    list.add("create past the kernel, in an upper directory", past(ROOT, "updir/new", create));
    list.add("create past the kernel, for a user", past(USER, "shared/new", create));
    list.add("mkdir past the kernel", past(ROOT, "updir/new", mkdir));
    list.add("mkdir past the kernel, for a user", past(USER, "shared/new", mkdir));
    list.add("symlink past the kernel", past(ROOT, "updir/new", symlink));
    list.add(
        "open and cut past the kernel",
        past(ROOT, "updir/in", |fs, client, at| fs.open(client, at, TO_WRITE | HandoutFlags::TRUNCATE)),
    );
    list.add(
        "chmod past the kernel",
        past(ROOT, "updir/in", move |fs, client, at| fs.setattr(client, at, &mode, false)),
    );
    list.add("write past the kernel", reopened(ROOT, "updir/in"));
    // A copy, which has to be made durable before.
    list.add("write past the kernel, to a copy", reopened(USER, "part"));
    list.0
}

/// Who is refused asks the kernel for the same, which may say no: until then the file stays as it is.
#[test]
fn a_refused_open_does_not_truncate_a_forgotten_file() {
    let stage = Stage::new(Kind::HANDOUT);
    let fs = stage.mount_under(&stage.disk(), &FaultPlan::new(), Arc::new(Deaf { forgetful: true }));
    let (parent, last) = place(&fs, "updir/in").unwrap();
    let size = |fs: &Union| walk(fs, "updir/in").unwrap().unwrap().attr.size;
    // The kernel knows it from here on, as far as one can tell.
    let before = size(&fs);
    assert!(before > 0);
    let dir = fs.enter(parent).unwrap();
    let client = Client { uid: ROOT.uid, gid: ROOT.gid, progress: &() };
    let wanted = DirName { dir: &dir, name: name(&last), checked: true };
    let refused = fs.open(&client, &wanted, HandoutFlags::WRITE | HandoutFlags::TRUNCATE);
    assert!(matches!(refused, Err(HandoutError::Kernel)), "it is not refused");
    assert_eq!(size(&fs), before, "refused, and cut");
}
