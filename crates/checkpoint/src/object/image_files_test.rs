//! A directory among images: what CRIU writes there is read while more is written, and again from the object.

use super::*;
use crate::object::format::{Index, ObjectInfo, tail};
use crate::object::sink::WriteOptions;
use crate::object::sink::tests::InMemory;
use crate::record::tests::of_podman;
use std::ffi::CString;

struct Names(Vec<(String, Option<FileKind>)>);

impl DirSink for Names {
    fn fits(&self, _: usize) -> bool {
        true
    }

    fn push(&mut self, entry: DirEntry<'_>, _: Option<&Entry>) {
        self.0.push((String::from_utf8_lossy(entry.name).into_owned(), entry.kind));
    }
}

fn names(files: &Files, directory: NodeId) -> Vec<(String, Option<FileKind>)> {
    let mut names = Names(Vec::new());
    files.readdir(&Context::default(), directory, Handle(0), 0, &mut names).unwrap();
    names.0.sort_by(|one, other| one.0.cmp(&other.0));
    names.0
}

fn named<T>(name: &str, what: impl FnOnce(Name<'_>) -> T) -> T {
    let text = CString::new(name).unwrap();
    what(Name::new(&text).unwrap())
}

fn find(files: &Files, directory: NodeId, name: &str) -> Option<NodeId> {
    named(name, |name| files.lookup(&Context::default(), directory, name)).unwrap().map(|entry| entry.node)
}

fn write(files: &Files, directory: NodeId, name: &str, parts: &[&[u8]]) -> NodeId {
    let cx = Context::default();
    let (entry, _) =
        named(name, |name| files.create(&cx, directory, name, 0o600, OpenFlags::empty())).unwrap();
    let mut at = 0;
    for part in parts {
        let len = files.write(&cx, entry.node, Handle(1), at, part, WriteFlags::empty()).unwrap();
        assert_eq!(len, part.len());
        at += len as u64;
    }
    files.release(entry.node, Handle(1));
    entry.node
}

fn read(files: &Files, node: NodeId, offset: u64) -> Result<Vec<u8>> {
    let mut buffer = vec![0; 100];
    let len = files.read(&Context::default(), node, Handle(1), offset, &mut buffer)?;
    buffer.truncate(len);
    Ok(buffer)
}

fn file(name: &str) -> (String, Option<FileKind>) {
    (name.to_owned(), Some(FileKind::Regular))
}

fn mkdir(files: &Files, directory: NodeId, name: &str) -> Result<NodeId> {
    named(name, |name| files.mkdir(&Context::default(), directory, name, 0o700)).map(|entry| entry.node)
}

#[test]
fn first_pass_images_are_readable_from_the_object() {
    let cx = Context::default();
    let writing = InMemory::begin(WriteOptions::default());
    let files = Files::to(writing.pipeline.sink().clone());
    let parent = mkdir(&files, NodeId::ROOT, "parent").unwrap();
    for again in ["parent", "other"] {
        assert!(mkdir(&files, if again == "other" { parent } else { NodeId::ROOT }, again).is_err());
    }
    let map = write(&files, parent, "pagemap-1.img", &[b"which ", b"pages"]);
    let pages = write(&files, parent, "pages-1.img", &[&[7; 4096], &[8; 4096]]);
    // CRIU reads maps of pages while it dumps, and not the pages.
    assert_eq!(read(&files, map, 0).unwrap(), b"which pages");
    assert_eq!(read(&files, map, 6).unwrap(), b"pages");
    assert_eq!(read(&files, map, 20).unwrap(), b"");
    assert!(read(&files, pages, 0).is_err());
    // A link of that name is there already.
    assert!(named("parent", |name| files.symlink(&cx, NodeId::ROOT, name, c"parent")).is_err());
    assert_eq!(find(&files, NodeId::ROOT, "parent"), Some(parent));
    // One name, at two places.
    let own = write(&files, NodeId::ROOT, "pages-1.img", &[&[9; 4096]]);
    assert_eq!(find(&files, NodeId::ROOT, "pages-1.img"), Some(own));
    assert_eq!(find(&files, parent, "pages-1.img"), Some(pages));
    assert_eq!(find(&files, NodeId::ROOT, "pagemap-1.img"), None);
    assert_eq!(
        names(&files, NodeId::ROOT),
        [file("pages-1.img"), ("parent".into(), Some(FileKind::Directory))]
    );
    assert_eq!(names(&files, parent), [file("pagemap-1.img"), file("pages-1.img")]);
    // As it is restored.
    let images = files.contents();
    let (out, map) = writing.finish();
    let index = Index { images, ..Index::default() };
    let bytes = [out, tail(map.stored(), &index, &map, &of_podman()).unwrap()].concat();
    let (index, bytes) = ObjectInfo::in_memory(bytes, "x").unwrap().open(Vec::new()).unwrap();
    let object = Object { bytes: Mutex::new(Some(Arc::new(bytes))), trouble: Mutex::default() };
    let files = Files::from(Arc::new(object), &index.images);
    let parent = find(&files, NodeId::ROOT, "parent").unwrap();
    assert_eq!(files.getattr(&cx, parent, None).unwrap().attr.mode & 0o170_000, 0o040_000);
    for (directory, name, expected) in [
        (parent, "pagemap-1.img", &b"which pages"[..]),
        (parent, "pages-1.img", &[7; 100]),
        (NodeId::ROOT, "pages-1.img", &[9; 100]),
    ] {
        assert_eq!(read(&files, find(&files, directory, name).unwrap(), 0).unwrap(), expected, "{name}");
    }
    assert!(mkdir(&files, NodeId::ROOT, "new").is_err());
}

#[test]
fn a_first_pass_that_failed_leaves_nothing() {
    let cx = Context::default();
    let writing = InMemory::begin(WriteOptions::default());
    let files = Files::to(writing.pipeline.sink().clone());
    let parent = mkdir(&files, NodeId::ROOT, "parent").unwrap();
    write(&files, parent, "pages-1.img", &[&[7; 4096]]);
    assert!(named("parent", |name| files.rmdir(&cx, NodeId::ROOT, name)).is_err());
    named("pages-1.img", |name| files.unlink(&cx, parent, name)).unwrap();
    named("parent", |name| files.rmdir(&cx, NodeId::ROOT, name)).unwrap();
    assert!(files.contents().is_empty() && names(&files, NodeId::ROOT).is_empty());
    assert!(files.getattr(&cx, parent, None).is_err());
}

#[test]
fn image_names_stay_inside() {
    for (path, plain) in [
        ("pages-1.img", true),
        ("parent/pages-1.img", true),
        ("", false),
        ("..", false),
        ("/pages-1.img", false),
        ("parent/", false),
        ("../x", false),
        ("parent/..", false),
        ("a/b/c", false),
    ] {
        assert_eq!(is_plain(path), plain, "{path}");
    }
    let images = ["..", "a/b/c", "/x", "a/b"].map(|path| (path.to_owned(), Contents::default()));
    let files = Files::from(
        Arc::new(Object { bytes: Mutex::default(), trouble: Mutex::default() }),
        &BTreeMap::from(images),
    );
    assert_eq!(names(&files, NodeId::ROOT), [("a".into(), Some(FileKind::Directory))]);
    assert_eq!(names(&files, find(&files, NodeId::ROOT, "a").unwrap()), [file("b")]);
}
