//! Images from anywhere: layers, and the documents that describe them.

use crate::Input;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;
use vellum_container::image::{Layout, read_all};

/// A layer's archive, entry by entry, with its data.
pub(crate) fn archive(bytes: &[u8]) -> bool {
    let is_whole = read_all(bytes).is_ok();
    // A header is only read when its checksum is right, which bytes hardly ever are by chance.
    let mut blocks: Vec<u8> = bytes.to_vec();
    for block in blocks.as_chunks_mut::<512>().0 {
        let sum: u32 = block
            .iter()
            .enumerate()
            .map(|(at, b)| if (148..156).contains(&at) { 32 } else { u32::from(*b) })
            .sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    read_all(&blocks).is_ok() || is_whole
}

/// An OCI layout: its index, and below it what is found by digest.
pub(crate) fn layout(bytes: &[u8]) -> bool {
    let mut input = Input(bytes);
    let tag = if input.byte() & 1 == 0 { None } else { Some("latest") };
    let mut documents: Vec<Vec<u8>> = input.0.split(|byte| *byte == 0).take(4).map(<[u8]>::to_vec).collect();
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return false };
    // The last is written first, and its digest and size take the place of a word in those before it.
    let mut named = Vec::new();
    while let Some(document) = documents.pop() {
        let text = fill_in(&document, &named);
        let digest: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        if write(dir.path(), &digest, &text, documents.is_empty()).is_err() {
            return false;
        }
        named = format!("sha256:{digest}").into_bytes();
    }
    let opened = Layout::open(dir.path(), tag);
    opened.is_ok_and(|layout| !format!("{:?}", layout.defaults()).is_empty())
}

/// The text with `@` replaced.
fn fill_in(text: &[u8], with: &[u8]) -> Vec<u8> {
    text.iter().flat_map(|byte| if *byte == b'@' { with.to_vec() } else { vec![*byte] }).collect()
}

fn write(dir: &Path, digest: &str, text: &[u8], is_index: bool) -> std::io::Result<()> {
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    fs::write(blobs.join(digest), text)?;
    if is_index {
        fs::write(dir.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        fs::write(dir.join("index.json"), text)?;
    }
    Ok(())
}
