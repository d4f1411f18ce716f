//! An OCI image layout, made here: two layers over a tree, one packed and one not.

use crate::harness::outcome::{DuringContext, Outcome, fail};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256, Sha512};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use tar::{Builder, EntryType, Header};

/// A blob, before it was damaged.
pub(in crate::cases) struct Blob {
    pub(in crate::cases) path: PathBuf,
    pub(in crate::cases) contents: Vec<u8>,
}

/// The digest of bytes by sha256 or sha512.
pub(super) fn digest(algorithm: &str, bytes: &[u8]) -> String {
    let digest = match algorithm {
        "sha512" => Sha512::digest(bytes).to_vec(),
        _ => Sha256::digest(bytes).to_vec(),
    };
    let digits: Vec<String> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{algorithm}:{}", digits.concat())
}

/// Puts a blob into a layout; its descriptor.
pub(super) fn put(dir: &Path, algorithm: &str, kind: &str, bytes: &[u8]) -> Outcome<Value> {
    let digest = digest(algorithm, bytes);
    let name = digest.trim_start_matches(algorithm).trim_start_matches(':');
    fs::write(dir.join("blobs").join(algorithm).join(name), bytes)?;
    Ok(
        json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest, "size": bytes.len()}),
    )
}

fn entry(
    tar: &mut Builder<Vec<u8>>,
    name: &str,
    kind: EntryType,
    owner: u64,
    mode: u32,
    data: &str,
) -> Outcome {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(if kind == EntryType::Regular { data.len() as u64 } else { 0 });
    header.set_mode(mode);
    header.set_uid(owner);
    header.set_gid(owner);
    header.set_mtime(1_600_000_000);
    match kind {
        EntryType::Link | EntryType::Symlink => tar.append_link(&mut header, name, data)?,
        _ => tar.append_data(&mut header, name, data.as_bytes())?,
    }
    Ok(())
}

/// Writes the layout, with `tree` in the lower layer, under the tag v1.
pub(in crate::cases) fn write(dir: &Path, tree: &Path) -> Outcome {
    fs::create_dir_all(dir.join("blobs/sha256"))?;
    let mut lower = Builder::new(Vec::new());
    lower.follow_symlinks(false);
    lower.append_dir_all(".", tree)?;
    entry(&mut lower, "gone", EntryType::Regular, 0, 0o644, "below")?;
    entry(&mut lower, "opaque/below", EntryType::Regular, 0, 0o644, "below")?;
    entry(&mut lower, "bin/linked", EntryType::Link, 0, 0o755, "bin/busybox")?;
    let lower = lower.into_inner()?;
    let mut upper = Builder::new(Vec::new());
    entry(&mut upper, ".wh.gone", EntryType::Regular, 0, 0o644, "")?;
    entry(&mut upper, "opaque/", EntryType::Directory, 0, 0o755, "")?;
    entry(&mut upper, "opaque/.wh..wh..opq", EntryType::Regular, 0, 0o644, "")?;
    entry(&mut upper, "opaque/above", EntryType::Regular, 0, 0o644, "above")?;
    entry(&mut upper, "owned", EntryType::Regular, 1234, 0o640, "x")?;
    let start = "#!/bin/sh\necho $(id -u) $(pwd) $A entrypoint $1\n";
    entry(&mut upper, "bin/start", EntryType::Regular, 0, 0o755, start)?;
    let upper = upper.into_inner()?;
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&lower)?;
    let packed = packed.finish()?;
    let layers =
        [put(dir, "sha256", "layer.v1.tar+gzip", &packed)?, put(dir, "sha256", "layer.v1.tar", &upper)?];
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "config": {"Env": ["A=image"], "Entrypoint": ["/bin/start"], "Cmd": ["cmd"], "WorkingDir": "/srv", "User": "web"},
        "rootfs": {"type": "layers", "diff_ids": [digest("sha256", &lower), digest("sha256", &upper)]},
    });
    let config = put(dir, "sha256", "config.v1+json", config.to_string().as_bytes())?;
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
    let mut manifest = put(dir, "sha256", "manifest.v1+json", manifest.to_string().as_bytes())?;
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": "v1"});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(dir.join("index.json"), index.to_string())?;
    fs::write(dir.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
    Ok(())
}

/// The files that are read of a layout once it is known to be one.
pub(super) fn files(dir: &Path) -> Outcome<Vec<PathBuf>> {
    let blobs = fs::read_dir(dir.join("blobs/sha256"))?.map(|file| Ok(file?.path()));
    std::iter::once(Ok(dir.join("index.json"))).chain(blobs).collect()
}

/// Each blob in turn, damaged as it is yielded, and what the refusal has to name.
pub(in crate::cases) fn damaged(dir: &Path) -> Outcome<impl Iterator<Item = (Blob, String)>> {
    let mut blobs = Vec::new();
    for file in fs::read_dir(dir.join("blobs/sha256"))? {
        let path = file?.path();
        let contents = fs::read(&path)?;
        if contents.is_empty() {
            return fail("an empty blob");
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        blobs.push((Blob { path, contents }, name));
    }
    Ok(blobs.into_iter().inspect(|(blob, _)| {
        let mut bytes = blob.contents.clone();
        if let Some(byte) = bytes.last_mut() {
            *byte ^= 1;
        }
        // What could not be damaged is not refused, and then the case fails.
        let _ = fs::write(&blob.path, bytes).doing("damage");
    }))
}
