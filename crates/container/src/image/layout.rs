//! An OCI image layout: index, manifest, configuration, and the blobs that they name.

use super::LAYOUT_FILE;
use super::digest::Digest;
use super::documents::{self, Configuration, Descriptor, Index, Manifest, texts};
use super::files::{Files, HostFiles};
use super::platform::Machine;
use super::store::LayerStore;
use serde::de::DeserializeOwned;
use std::cell::Cell;
use std::cmp::Reverse;
use std::io::Read;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use vellum_service::Failure;

/// The largest document that is read.
const DOCUMENT_MAX: u64 = 8 << 20;
/// How deep indexes may lie in each other.
const DEPTH_MAX: u32 = 4;
/// As many documents are read for one image. An index may have any number of images whose own documents alone say where they run.
const DOCUMENTS_MAX: u32 = 200;
/// As many lower layers as a mount takes.
const LAYERS_MAX: usize = 500;

/// A layer as it is packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blob {
    pub(super) path: PathBuf,
    pub(super) size: u64,
    /// Digest of the file.
    pub(super) digest: Digest,
    /// Digest of what is packed in it.
    pub(super) content: Digest,
}

/// What an image says about processes in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// Variables, as `NAME=VALUE`.
    pub env: Vec<String>,
    /// What runs, with its first arguments.
    pub entrypoint: Vec<String>,
    /// The arguments, or without an entrypoint what runs.
    pub cmd: Vec<String>,
    /// Where it runs.
    pub workdir: Option<String>,
    /// As whom, in the image's own names or numbers.
    pub user: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    layers: Vec<Blob>,
    defaults: Defaults,
}

impl Layout {
    /// Reads the image `tag` of the layout in `dir`. Without a tag there has to be one image only, or one that is called latest.
    pub fn open(dir: &Path, tag: Option<&str>) -> Result<Self, Failure> {
        Self::open_of(&HostFiles(dir.to_owned()), tag)
    }

    /// As [`Self::open`], of a layout anywhere.
    pub(crate) fn open_of(files: &dyn Files, tag: Option<&str>) -> Result<Self, Failure> {
        let reader = Reader { files, machine: Machine::this(), left: Cell::new(DOCUMENTS_MAX) };
        let layout: documents::Layout = reader.file(Path::new(LAYOUT_FILE), None)?;
        let version = &*layout.image_layout_version;
        if !version.starts_with("1.") {
            return Err(reader.bad(&format!("layout version {version:?} is not known; this is for 1.0.0")));
        }
        let index: Index = reader.file(Path::new("index.json"), None)?;
        let manifest = reader.chosen(&index, tag)?;
        let configuration: Configuration = reader.blob(&manifest.config)?;
        let contents = &configuration.rootfs.diff_ids;
        let layers = &manifest.layers;
        if contents.len() != layers.len() {
            let (layers, contents) = (layers.len(), contents.len());
            return Err(
                reader.bad(&format!("{layers} layers in the manifest, {contents} in the configuration"))
            );
        }
        if layers.len() > LAYERS_MAX {
            return Err(reader.bad(&format!("{} layers; at most {LAYERS_MAX} can be mounted", layers.len())));
        }
        let blob = |(layer, content): (&Descriptor, &str)| {
            let digest = layer.digest().map_err(|why| reader.bad(&why))?;
            let content = Digest::parse(content).map_err(|why| reader.bad(&why))?;
            Ok(Blob { path: digest.blob_path(), size: *layer.size, digest, content })
        };
        let contents = contents.iter().map(|text| text.as_str());
        let layers =
            layers.iter().map(Deref::deref).zip(contents).map(blob).collect::<Result<_, Failure>>()?;
        let process = &configuration.config;
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let defaults = Defaults {
            env: texts(&process.env),
            entrypoint: texts(&process.entrypoint),
            cmd: texts(&process.cmd),
            workdir: text(&process.working_dir),
            user: text(&process.user),
        };
        Ok(Self { layers, defaults })
    }

    /// What it says about processes.
    #[must_use]
    pub fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    /// Digests of what is in its layers, the top one first.
    pub(crate) fn contents(&self) -> Vec<String> {
        self.layers.iter().rev().map(|blob| blob.content.digits().to_owned()).collect()
    }

    /// The directories of its layers, the top one first; what is not in the store yet is unpacked. `files`: where it was opened. None:
    /// `stop` said so.
    pub(crate) fn unpacked(
        &self,
        files: &dyn Files,
        store: &LayerStore,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<PathBuf>>, Failure> {
        let mut dirs = Vec::new();
        for blob in self.layers.iter().rev() {
            match store.layer(blob, files, stop)? {
                Some(dir) => dirs.push(dir),
                None => return Ok(None),
            }
        }
        Ok(Some(dirs))
    }
}

struct Reader<'a> {
    files: &'a dyn Files,
    machine: Machine,
    /// Documents that may still be read.
    left: Cell<u32>,
}

impl Reader<'_> {
    fn bad(&self, why: &str) -> Failure {
        Failure::input(format!("image {}: {why}", self.files.display(Path::new(""))))
    }

    /// The one that is called `tag`; of several with this name, the one for this machine.
    fn chosen(&self, index: &Index, tag: Option<&str>) -> Result<Manifest, Failure> {
        let all = index.all();
        let called = |tag: &str| all.iter().copied().filter(|one| one.name() == Some(tag)).collect();
        let found: Vec<&Descriptor> = match (tag, all.as_slice()) {
            (Some(tag), _) => called(tag),
            (None, [one]) => vec![one],
            (None, _) => called("latest"),
        };
        match found.as_slice() {
            [] => {
                let names: Vec<&str> = all.iter().filter_map(|one| one.name()).collect();
                let there = if names.is_empty() { "none with a name".to_owned() } else { names.join(", ") };
                let asked = tag.map_or_else(|| "several images".to_owned(), |tag| format!("no image {tag}"));
                Err(self.bad(&format!("{asked} in it; give oci:DIR:TAG with one of: {there}")))
            }
            // Who gives a name to one alone means it, whatever it runs on.
            [one] if !one.is_index() => self.blob(one),
            [one] => self.best(&self.blob::<Index>(one)?.all()),
            several => self.best(several),
        }
    }

    fn best(&self, all: &[&Descriptor]) -> Result<Manifest, Failure> {
        self.fitting(all, DEPTH_MAX)?.ok_or_else(|| {
            let there: Vec<String> =
                all.iter().filter_map(|one| one.platform().map(ToString::to_string)).collect();
            let only =
                if there.is_empty() { String::new() } else { format!(", only for {}", there.join(", ")) };
            self.bad(&format!("nothing for {} in it{only}", self.machine))
        })
    }

    /// The image for this machine, of those in an index. What does not say where it runs comes last: its configuration says that.
    fn fitting(&self, all: &[&Descriptor], depth: u32) -> Result<Option<Manifest>, Failure> {
        let depth = depth.checked_sub(1).ok_or_else(|| self.bad("indexes in indexes without end"))?;
        let mut said: Vec<(u32, &Descriptor)> =
            all.iter().filter_map(|one| Some((self.machine.rank(one.platform()?)?, *one))).collect();
        said.sort_by_key(|(fit, _)| Reverse(*fit));
        let silent = all.iter().copied().filter(|one| one.platform().is_none());
        for one in said.into_iter().map(|(_, one)| one).chain(silent) {
            if one.is_index() {
                let index: Index = self.blob(one)?;
                if let Some(found) = self.fitting(&index.all(), depth)? {
                    return Ok(Some(found));
                }
                continue;
            }
            let manifest: Manifest = self.blob(one)?;
            if one.platform().is_some() || self.runs_here(&manifest)? {
                return Ok(Some(manifest));
            }
        }
        Ok(None)
    }

    /// Whether the configuration of an image says so, or does not say anything else.
    fn runs_here(&self, manifest: &Manifest) -> Result<bool, Failure> {
        if !manifest.config.is_configuration() {
            return Ok(false);
        }
        let platform = self.blob::<Configuration>(&manifest.config)?.platform;
        Ok(platform.architecture.is_empty() || self.machine.rank(&platform).is_some())
    }

    fn blob<T: DeserializeOwned>(&self, descriptor: &Descriptor) -> Result<T, Failure> {
        let digest = descriptor.digest().map_err(|why| self.bad(&why))?;
        self.file(&digest.blob_path(), Some(&digest))
    }

    fn file<T: DeserializeOwned>(&self, path: &Path, digest: Option<&Digest>) -> Result<T, Failure> {
        let display = self.files.display(path);
        let bad = |why: &str| Failure::input(format!("image file {display}: {why}"));
        let failed = |e| Failure::input(format!("image file {display}")).because(e);
        let left = self.left.get().checked_sub(1);
        self.left.set(
            left.ok_or_else(|| self.bad(&format!("more than {DOCUMENTS_MAX} documents for one image")))?,
        );
        let file = self.files.open(path).map_err(failed)?;
        let mut text = Vec::new();
        file.data.take(DOCUMENT_MAX + 1).read_to_end(&mut text).map_err(failed)?;
        if text.len() as u64 > DOCUMENT_MAX {
            return Err(bad("too large to be a description of an image"));
        }
        if let Some(wanted) = digest {
            let is = wanted.algorithm.digest(&text);
            if is != *wanted {
                return Err(bad(&format!("its digest is {is}")).remedy("get the image again"));
            }
        }
        serde_json::from_slice(&text).map_err(|e| failed(e.into()).remedy("get the image again"))
    }
}

#[cfg(test)]
#[path = "layout_test.rs"]
mod tests;
