//! Layers and images of which engines make different things, or which are rare: what podman, containerd and umoci make of each, and what
//! Vellum does and why.
//!
//! podman is 5.4.2 with its overlay driver, umoci 0.4.7, both of Debian, and run here; umoci 0.6.0 differs where it is said. containerd is
//! what its packages `pkg/archive` and `core/images` of v2.4.2 do for its overlayfs snapshotter.

use super::layout::{digest, put};
use super::support::Runs;
use crate::harness::outcome::{Outcome, ensure, ensure_eq, fail, skip};
use crate::harness::{Cx, shell, source_root};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tar::{EntryType, Header};

/// What an engine says that does not take an image.
const REFUSED: &str = "refused";

/// An image, and what is found in a container of it.
struct Row {
    input: &'static str,
    image: Image,
    /// Where it is looked.
    path: &'static str,
    podman: &'static str,
    containerd: &'static str,
    umoci: &'static str,
    vellum: &'static str,
    /// Why it does.
    why: &'static str,
}

/// What an image is made of, above a layer with a shell.
enum Image {
    /// Layers, the lowest first.
    Layers(&'static [&'static [Entry]]),
    /// An index, with the architecture in the file `who` of each image.
    Index(&'static [Node]),
    /// A layer, and everything under digests by sha512.
    Sha512(&'static [Entry]),
    /// A layer, and null in the configuration and the manifest wherever Go writes it for an empty list or map.
    Nulls(&'static [Entry]),
}

enum Node {
    /// An image for an architecture and a variant, and whether its descriptor says so.
    Image(&'static str, bool),
    Index(&'static [Node]),
}

struct Entry {
    kind: u8,
    name: &'static str,
    mode: u32,
    owner: u64,
    /// Of a link, where it leads.
    data: &'static str,
    pax: &'static [(&'static str, &'static str)],
}

const fn entry(kind: u8, name: &'static str, mode: u32, owner: u64, data: &'static str) -> Entry {
    Entry { kind, name, mode, owner, data, pax: &[] }
}

const fn file(name: &'static str, data: &'static str) -> Entry {
    entry(b'0', name, 0o644, 0, data)
}

const fn dir(name: &'static str, mode: u32, owner: u64) -> Entry {
    entry(b'5', name, mode, owner, "")
}

const fn symlink(name: &'static str, target: &'static str) -> Entry {
    entry(b'2', name, 0o777, 0, target)
}

/// A file of 5000 bytes with the last five in it, as `tar --format=posix -S` writes it: the list of regions fills the first block.
const SPARSE: Entry = Entry {
    pax: &[
        ("GNU.sparse.major", "1"),
        ("GNU.sparse.minor", "0"),
        ("GNU.sparse.name", "sparse"),
        ("GNU.sparse.realsize", "5000"),
    ],
    ..entry(b'0', "GNUSparseFile.1/sparse", 0o644, 0, "1\n4995\n5\n")
};

const TABLE: &[Row] = &[
    Row {
        input: "names that begin with /, as ko and nixpkgs write them",
        image: Image::Layers(&[&[dir("/", 0o755, 0), dir("/abs/", 0o755, 7), file("/abs/f", "one")]]),
        path: "abs/f",
        podman: "file 644 0:0 one",
        containerd: "file 644 0:0 one",
        umoci: "file 644 0:0 one",
        vellum: "file 644 0:0 one",
        why: "a name begins at the layer's root, with a slash or without",
    },
    Row {
        input: "a name with .. in it, e/../dd",
        image: Image::Layers(&[&[file("e/../dd", "two")]]),
        path: "dd",
        podman: "file 644 0:0 two",
        containerd: "file 644 0:0 two",
        umoci: "file 644 0:0 two",
        vellum: "file 644 0:0 two",
        why: "the name is shortened before anything is looked up, so no link can change what it means",
    },
    Row {
        input: "a name that leads above the root, ../out",
        image: Image::Layers(&[&[file("../out", "x")]]),
        path: "out",
        podman: "file 644 0:0 x",
        containerd: "file 644 0:0 x",
        umoci: "file 644 0:0 x",
        vellum: REFUSED,
        why: "no builder writes it; moby/go-archive, GNU tar and bsdtar refuse it, too",
    },
    Row {
        input: "the entry ./ with mode 0700 of user 1000, as tar makes it of a temporary directory",
        image: Image::Layers(&[&[dir("./", 0o700, 1000), file("f", "x")]]),
        path: ".",
        podman: "directory 555 0:0",
        containerd: "directory 755 0:0",
        umoci: "directory 700 1000:1000",
        vellum: "directory 755 0:0",
        why: "an image must not work or not by its last layer; no user but root could run a thing",
    },
    Row {
        input: "the entry / with mode 0711",
        image: Image::Layers(&[&[dir("/", 0o711, 0), file("f", "x")]]),
        path: ".",
        podman: "directory 711 0:0",
        containerd: "directory 755 0:0",
        umoci: "directory 711 0:0",
        vellum: "directory 755 0:0",
        why: "it is the same entry as ./",
    },
    Row {
        input: "a hard link whose header has another mode and owner than its target's",
        image: Image::Layers(&[&[entry(b'0', "a", 0o600, 1, "data"), entry(b'1', "b", 0o755, 5, "a")]]),
        path: "a",
        podman: "file 755 5:5 data",
        containerd: "file 755 5:5 data",
        umoci: "file 600 1:1 data",
        vellum: "file 755 5:5 data",
        why: "the engines agree: the last header of a file counts",
    },
    Row {
        input: "a/b/f without an entry for a/, above a layer where a/ is private",
        image: Image::Layers(&[&[dir("a/", 0o700, 1000)], &[file("a/b/f", "x")]]),
        path: "a",
        podman: "directory 755 0:0",
        containerd: "directory 700 1000:1000",
        umoci: "directory 700 1000:1000",
        vellum: "directory 700 1000:1000",
        why: "the upper layer says nothing of a/; what was private stays so",
    },
    Row {
        input: "the same, and a/ is opaque",
        image: Image::Layers(&[&[dir("a/", 0o700, 1000)], &[file("a/.wh..wh..opq", ""), file("a/f", "x")]]),
        path: "a",
        podman: "directory 755 0:0",
        containerd: "directory 700 1000:1000",
        umoci: "directory 700 1000:1000",
        vellum: "directory 700 1000:1000",
        why: "opaque is what was in a/, not a/ itself",
    },
    Row {
        input: "lib/two without an entry for lib/, above a layer where lib is a link to usr/lib",
        image: Image::Layers(&[
            &[dir("usr/lib/", 0o755, 0), symlink("lib", "usr/lib")],
            &[file("lib/two", "x")],
        ]),
        path: "lib",
        // With its driver vfs, and in containerd's native snapshotter, it stays a link.
        podman: "directory 755 0:0",
        containerd: "directory 755 0:0",
        umoci: "link",
        vellum: "directory 755 0:0",
        why: "layers are unpacked once for all images, without a look at what is below",
    },
    Row {
        input: "a directory with entries, then a file of its name",
        image: Image::Layers(&[&[dir("d/", 0o755, 0), file("d/x", "x"), file("d", "file")]]),
        path: "d",
        podman: REFUSED,
        containerd: "file 644 0:0 file",
        umoci: "file 644 0:0 file",
        vellum: "file 644 0:0 file",
        why: "the last entry of a name counts",
    },
    Row {
        input: "the same with a directory in the directory",
        image: Image::Layers(&[&[
            dir("d/", 0o755, 0),
            dir("d/e/", 0o755, 0),
            file("d/e/x", "x"),
            file("d", "file"),
        ]]),
        path: "d",
        podman: REFUSED,
        containerd: REFUSED,
        umoci: "file 644 0:0 file",
        vellum: "file 644 0:0 file",
        why: "the last entry of a name counts",
    },
    Row {
        input: "a file, then a name below it",
        image: Image::Layers(&[&[file("d", "file"), file("d/x", "x")]]),
        path: "d",
        podman: REFUSED,
        containerd: REFUSED,
        // 0.6.0 makes it a directory.
        umoci: REFUSED,
        vellum: REFUSED,
        why: "nothing says that the file is to go",
    },
    Row {
        input: "a name below a link to a directory that is not there yet",
        image: Image::Layers(&[&[symlink("l", "there"), file("l/x", "x")]]),
        path: "there/x",
        podman: REFUSED,
        containerd: "file 644 0:0 x",
        umoci: "file 644 0:0 x",
        vellum: REFUSED,
        why: "the directory may lie in another layer, where it is not looked for",
    },
    Row {
        input: "the same name twice, as tar -r and -u leave it",
        image: Image::Layers(&[&[file("f", "old"), file("f", "new")]]),
        path: "f",
        podman: REFUSED,
        containerd: "file 644 0:0 new",
        umoci: "file 644 0:0 new",
        vellum: "file 644 0:0 new",
        why: "the last entry of a name counts",
    },
    Row {
        input: "a regular file whose name ends with a slash",
        image: Image::Layers(&[&[file("s/", "")]]),
        path: "s",
        podman: "file 644 0:0",
        containerd: "file 644 0:0",
        umoci: "file 644 0:0",
        vellum: "file 644 0:0",
        why: "the type says what it is; a slash counts where there is none, in the oldest archives",
    },
    Row {
        input: "a file with holes, by pax headers (tar --format=posix -S)",
        image: Image::Layers(&[&[SPARSE]]),
        path: "sparse",
        podman: "file 644 0:0 bytes",
        containerd: "file 644 0:0 bytes",
        umoci: "file 644 0:0 bytes",
        vellum: "file 644 0:0 bytes",
        why: "its versions 0.0, 0.1 and 1.0 are read",
    },
    Row {
        input: "a file with holes, by GNU tar's old type S",
        image: Image::Layers(&[&[entry(b'S', "f", 0o644, 0, "")]]),
        path: "f",
        podman: REFUSED,
        containerd: REFUSED,
        umoci: REFUSED,
        vellum: REFUSED,
        why: "nobody takes it",
    },
    Row {
        input: "a pax header with an empty path",
        image: Image::Layers(&[&[Entry { pax: &[("path", "")], ..file("named", "x") }]]),
        path: "named",
        podman: "file 644 0:0 x",
        containerd: "file 644 0:0 x",
        umoci: "file 644 0:0 x",
        vellum: "file 644 0:0 x",
        why: "an empty value takes back what was said before the header itself",
    },
    Row {
        input: "an index with amd64/v3, amd64/v2 and amd64",
        image: Image::Index(&[
            Node::Image("amd64/v3", true),
            Node::Image("amd64/v2", true),
            Node::Image("amd64", true),
        ]),
        path: "who",
        podman: "file 644 0:0 amd64",
        containerd: "file 644 0:0 amd64",
        umoci: REFUSED,
        vellum: "file 644 0:0 amd64",
        why: "the plain one runs on every processor",
    },
    Row {
        input: "an index with amd64/v3 alone",
        image: Image::Index(&[Node::Image("amd64/v3", true)]),
        path: "who",
        podman: REFUSED,
        containerd: REFUSED,
        umoci: "file 644 0:0 amd64/v3",
        vellum: REFUSED,
        why: "an older processor would stop it in the middle; skopeo copy takes it by name",
    },
    Row {
        input: "an index whose descriptors have no platform: arm64, then amd64",
        image: Image::Index(&[Node::Image("arm64", false), Node::Image("amd64", false)]),
        path: "who",
        podman: "file 644 0:0 arm64",
        containerd: REFUSED,
        umoci: REFUSED,
        vellum: "file 644 0:0 amd64",
        why: "the platform is optional there, and the configuration says it",
    },
    Row {
        input: "indexes in an index: of arm64, then of amd64",
        image: Image::Index(&[
            Node::Index(&[Node::Image("arm64", true)]),
            Node::Index(&[Node::Image("amd64", true)]),
        ]),
        path: "who",
        podman: REFUSED,
        containerd: REFUSED,
        umoci: REFUSED,
        vellum: "file 644 0:0 amd64",
        why: "the format allows it; four deep, and 200 documents at most",
    },
    Row {
        input: "null for Env, Cmd, Labels, a label, Volumes, history, annotations",
        image: Image::Nulls(&[file("f", "x")]),
        path: "f",
        podman: "file 644 0:0 x",
        containerd: "file 644 0:0 x",
        umoci: "file 644 0:0 x",
        vellum: "file 644 0:0 x",
        why: "it is what Go writes for an empty list or map",
    },
    Row {
        input: "digests by sha512",
        image: Image::Sha512(&[file("f", "x")]),
        path: "f",
        // It takes them for layers alone.
        podman: REFUSED,
        containerd: "file 644 0:0 x",
        umoci: REFUSED,
        vellum: "file 644 0:0 x",
        why: "the format has them, and sha384",
    },
];

/// Says what is at a path.
const LOOK: &str = r#"look() {
  if [ -L "$1" ]; then echo link
  elif [ -d "$1" ]; then echo directory $(stat -c '%a %u:%g' "$1")
  elif [ -f "$1" ]; then echo file $(stat -c '%a %u:%g' "$1") $(tr -d '\000' < "$1")
  else echo nothing; fi
}"#;

/// What Vellum does.
pub(super) fn vellum(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let rows = rows(cx, &runs.image)?;
    let mut answers = String::new();
    for (row, dir) in &rows {
        let image = format!("oci:{}:v1", dir.display());
        let look = format!("{LOOK}\nlook {}", row.path);
        let output = runs.bare(&["--image", &image, "sh", "-c", &look]).output()?;
        let why = String::from_utf8_lossy(&output.stderr);
        let is_refused = output.status.code() == Some(2);
        ensure!(!is_refused || why.lines().count() == 1, "{}: {why}", row.input);
        let said = String::from_utf8_lossy(&output.stdout);
        answers += &format!("{}\n", if is_refused { REFUSED } else { said.trim() });
        runs.check_no_leftovers()?;
    }
    compare("vellum", &answers, &rows, |row| row.vellum)
}

/// What the others do, as far as they are Debian's.
pub(super) fn others(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let mut apt = Command::new(source_root().join("scripts/apt"));
    if !apt.arg("umoci").stdin(Stdio::null()).status()?.success() {
        return skip("umoci is missing: run make deps");
    }
    let rows = rows(cx, &runs.image)?;
    let umoci = format!(
        r#"{LOOK}
        for row in $(seq 0 {last}); do
          if umoci unpack --image $row:v1 $row/bundle > /dev/null 2>&1; then (cd $row/bundle/rootfs; look $(cat ../../path)); else echo {REFUSED}; fi
          rm -rf $row/bundle
        done"#,
        last = rows.len() - 1
    );
    let dir = cx.dir.join("rows");
    let said = shell::run(shell::bash(&umoci).current_dir(&dir))?;
    compare("umoci", &said, &rows, |row| row.umoci)?;
    // Storage in a tmpfs of its own, which is gone with the namespace.
    let podman = format!(
        r#"{LOOK}
        cd /rows; p="podman --root /run/storage --runroot /run/podman"
        for row in $(seq 0 {last}); do
          if id=$($p pull -q oci:$row:v1 2> /dev/null); then (cd "$($p image mount $id)"; look $(cat /rows/$row/path)); $p image umount $id > /dev/null; else echo {REFUSED}; fi
        done"#,
        last = rows.len() - 1
    );
    let mut command = Command::new(source_root().join("scripts/debian13"));
    command.arg("--bind").arg(format!("{}:/rows", dir.display())).args(["bash", "-euc", &podman]);
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.code() == Some(125) {
        return skip("no Debian 13 tree: run make deps");
    }
    compare("podman", &String::from_utf8_lossy(&output.stdout), &rows, |row| row.podman)
}

fn compare(
    engine: &str,
    said: &str,
    rows: &[(&Row, PathBuf)],
    wanted: impl Fn(&Row) -> &'static str,
) -> Outcome {
    let seen: Vec<&str> = said.lines().map(str::trim).collect();
    ensure_eq!(seen.len(), rows.len(), "{engine}: answers in {said}");
    let differ: Vec<String> = rows
        .iter()
        .zip(&seen)
        .filter(|((row, _), seen)| wanted(row) != **seen)
        .map(|((row, _), seen)| format!("{}: {seen} and not {} ({})", row.input, wanted(row), row.why))
        .collect();
    ensure!(differ.is_empty(), "{engine}: {}", differ.join("; "));
    Ok(())
}

/// The images, each in a directory with its number, and beside it where to look.
fn rows(cx: &Cx, tree: &Path) -> Outcome<Vec<(&'static Row, PathBuf)>> {
    if std::env::consts::ARCH != "x86_64" {
        return skip("the images of the table are for amd64");
    }
    let mut rows = Vec::new();
    for (number, row) in TABLE.iter().enumerate() {
        let dir = cx.dir.join("rows").join(number.to_string());
        Writer::new(&dir, tree, matches!(row.image, Image::Sha512(_)))?.write(&row.image)?;
        fs::write(dir.join("path"), row.path)?;
        // That a row says something is what a reader needs of it.
        if row.why.is_empty() || row.containerd.is_empty() {
            return fail(format!("{}: nothing is said", row.input));
        }
        rows.push((row, dir));
    }
    Ok(rows)
}

struct Writer<'a> {
    dir: &'a Path,
    algorithm: &'static str,
    /// The lowest layer: a shell.
    shell: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn new(dir: &'a Path, tree: &Path, is_long: bool) -> Outcome<Self> {
        let algorithm = if is_long { "sha512" } else { "sha256" };
        fs::create_dir_all(dir.join("blobs").join(algorithm))?;
        fs::write(dir.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
        let mut shell = Vec::new();
        append(&mut shell, &self::dir("bin/", 0o755, 0), b"");
        let program = fs::read(tree.join("bin/busybox"))?;
        append(&mut shell, &entry(b'0', "bin/busybox", 0o755, 0, ""), &program);
        for name in ["bin/sh", "bin/stat", "bin/tr"] {
            append(&mut shell, &symlink(name, "busybox"), b"");
        }
        Ok(Self { dir, algorithm, shell: end(shell) })
    }

    fn put(&self, kind: &str, bytes: &[u8]) -> Outcome<Value> {
        put(self.dir, self.algorithm, kind, bytes)
    }

    fn write(&self, image: &Image) -> Outcome {
        let mut top = match image {
            Image::Layers(layers) => self.image(layers, "amd64", &json!({}))?,
            Image::Sha512(layer) => self.image(&[layer], "amd64", &json!({}))?,
            Image::Nulls(layer) => {
                let nulls = json!({
                    "Env": null, "Cmd": null, "Entrypoint": null, "Labels": {"a": null}, "Volumes": null,
                    "ExposedPorts": null,
                });
                self.image(&[layer], "amd64", &nulls)?
            }
            Image::Index(nodes) => self.index(nodes)?,
        };
        top["annotations"] = json!({"org.opencontainers.image.ref.name": "v1"});
        fs::write(self.dir.join("index.json"), json!({"schemaVersion": 2, "manifests": [top]}).to_string())?;
        Ok(())
    }

    fn index(&self, nodes: &[Node]) -> Outcome<Value> {
        let mut all = Vec::new();
        for node in nodes {
            all.push(match node {
                Node::Index(nodes) => self.index(nodes)?,
                Node::Image(platform, is_said) => {
                    let mut image = self.image(&[&[file("who", platform)]], platform, &json!({}))?;
                    let (architecture, variant) = platform.split_once('/').unwrap_or((platform, ""));
                    if *is_said {
                        image["platform"] = json!({"os": "linux", "architecture": architecture});
                    }
                    if *is_said && !variant.is_empty() {
                        image["platform"]["variant"] = variant.into();
                    }
                    image
                }
            });
        }
        let kind = "application/vnd.oci.image.index.v1+json";
        self.put(
            "index.v1+json",
            json!({"schemaVersion": 2, "mediaType": kind, "manifests": all}).to_string().as_bytes(),
        )
    }

    fn image(&self, layers: &[&[Entry]], platform: &str, process: &Value) -> Outcome<Value> {
        let mut blobs = vec![self.shell.clone()];
        for layer in layers {
            let mut blob = Vec::new();
            for entry in *layer {
                append(&mut blob, entry, entry.data.as_bytes());
            }
            blobs.push(end(blob));
        }
        let (architecture, variant) = platform.split_once('/').unwrap_or((platform, ""));
        let contents: Vec<String> = blobs.iter().map(|blob| digest(self.algorithm, blob)).collect();
        let mut config = json!({
            "architecture": architecture, "os": "linux", "config": process, "history": null,
            "rootfs": {"type": "layers", "diff_ids": contents},
        });
        if !variant.is_empty() {
            config["variant"] = variant.into();
        }
        let blobs = blobs.iter().map(|blob| self.put("layer.v1.tar", blob)).collect::<Outcome<Vec<_>>>()?;
        let config = self.put("config.v1+json", config.to_string().as_bytes())?;
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": blobs, "annotations": null});
        self.put("manifest.v1+json", manifest.to_string().as_bytes())
    }
}

/// Puts an entry into an archive, and before it its pax header; names are not checked.
fn append(archive: &mut Vec<u8>, entry: &Entry, data: &[u8]) {
    let mut pax = String::new();
    for (key, value) in entry.pax {
        let rest = key.len() + value.len() + 3;
        let len = (rest..rest + 9).find(|len| len.to_string().len() + rest == *len).unwrap_or(rest);
        pax += &format!("{len} {key}={value}\n");
    }
    if !pax.is_empty() {
        blocks(archive, &self::entry(b'x', "pax", 0o644, 0, ""), pax.as_bytes());
    }
    if entry.name == SPARSE.name {
        let mut whole = data.to_vec();
        whole.resize(512, 0);
        whole.extend(b"bytes");
        blocks(archive, entry, &whole);
    } else {
        blocks(archive, entry, data);
    }
}

fn blocks(archive: &mut Vec<u8>, entry: &Entry, data: &[u8]) {
    let is_link = matches!(entry.kind, b'1' | b'2');
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::new(entry.kind));
    // Names are short.
    let mut place = |at: usize, text: &[u8]| header.as_mut_bytes()[at..at + text.len()].copy_from_slice(text);
    place(0, entry.name.as_bytes());
    if is_link {
        place(157, entry.data.as_bytes());
    }
    header.set_size(if is_link { 0 } else { data.len() as u64 });
    header.set_mode(entry.mode);
    header.set_uid(entry.owner);
    header.set_gid(entry.owner);
    header.set_mtime(1_600_000_000);
    header.set_cksum();
    archive.extend(header.as_bytes());
    if !is_link {
        archive.extend(data);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
}

fn end(mut archive: Vec<u8>) -> Vec<u8> {
    archive.resize(archive.len() + 1024, 0);
    archive
}
