//! An OCI image layout: index, manifest, configuration, and the blobs that they name.

use super::LAYOUT_FILE;
use super::digest;
use super::files::{Files, Here};
use super::store::LayerStore;
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType, OciLayout};
use serde::de::DeserializeOwned;
use std::io::Read;
use std::path::{Path, PathBuf};
use vellum_service::Failure;

/// The annotation that gives an image its name in a layout.
const NAME: &str = "org.opencontainers.image.ref.name";
/// The largest document that is read.
const DOCUMENT_MAX: u64 = 8 << 20;
/// How deep indexes may lie in each other.
const DEPTH_MAX: u32 = 4;
/// As many lower layers as a mount takes.
const LAYERS_MAX: usize = 500;

/// A layer as it is packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blob {
    /// Its path in the layout.
    pub(super) path: PathBuf,
    pub(super) size: u64,
    /// Digest of the file.
    pub(super) digest: String,
    /// Digest of what is packed in it.
    pub(super) content: String,
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

/// An image in a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    layers: Vec<Blob>,
    defaults: Defaults,
}

impl Layout {
    /// Reads the image `tag` of the layout in `dir`. Without a tag there has to be one image only, or one that is called latest.
    pub fn open(dir: &Path, tag: Option<&str>) -> Result<Self, Failure> {
        Self::open_of(&Here(dir.to_owned()), tag)
    }

    /// As [`Self::open`], of a layout anywhere.
    pub(crate) fn open_of(files: &dyn Files, tag: Option<&str>) -> Result<Self, Failure> {
        let reader = Reader { files };
        let layout: OciLayout = reader.file(Path::new(LAYOUT_FILE), None)?;
        let version = layout.image_layout_version();
        if !version.starts_with("1.") {
            return Err(reader.bad(&format!("layout version {version} is not known; this is for 1.0.0")));
        }
        let index: ImageIndex = reader.file(Path::new("index.json"), None)?;
        let descriptor = reader.chosen(index.manifests(), tag)?;
        let manifest = reader.manifest(descriptor.clone(), DEPTH_MAX)?;
        let configuration: ImageConfiguration = reader.blob(manifest.config())?;
        let contents = configuration.rootfs().diff_ids();
        let layers = manifest.layers();
        if contents.len() != layers.len() {
            let (layers, contents) = (layers.len(), contents.len());
            return Err(
                reader.bad(&format!("{layers} layers in the manifest, {contents} in the configuration"))
            );
        }
        if layers.len() > LAYERS_MAX {
            return Err(reader.bad(&format!("{} layers; at most {LAYERS_MAX} can be mounted", layers.len())));
        }
        let blob = |(layer, content): (&Descriptor, &String)| {
            let digest = digest::digest_of(layer.digest()).map_err(|why| reader.bad(&why))?;
            let content = digest::sha256(content).map_err(|why| reader.bad(&why))?;
            Ok(Blob { path: blob_path(&digest), size: layer.size(), digest, content })
        };
        let layers = layers.iter().zip(contents).map(blob).collect::<Result<_, Failure>>()?;
        let config = configuration.config().clone().unwrap_or_default();
        let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let defaults = Defaults {
            env: config.env().clone().unwrap_or_default(),
            entrypoint: config.entrypoint().clone().unwrap_or_default(),
            cmd: config.cmd().clone().unwrap_or_default(),
            workdir: text(config.working_dir()),
            user: text(config.user()),
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
        self.layers.iter().rev().map(|blob| blob.content.clone()).collect()
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

/// Where a layout has a blob.
fn blob_path(digest: &str) -> PathBuf {
    Path::new("blobs/sha256").join(digest)
}

struct Reader<'a> {
    files: &'a dyn Files,
}

impl Reader<'_> {
    fn bad(&self, why: &str) -> Failure {
        Failure::input(format!("image {}: {why}", self.files.shown(Path::new(""))))
    }

    /// The one that is called `tag`.
    fn chosen<'d>(&self, all: &'d [Descriptor], tag: Option<&str>) -> Result<&'d Descriptor, Failure> {
        let name = |one: &Descriptor| one.annotations().as_ref().and_then(|all| all.get(NAME)).cloned();
        let called = |tag: &str| all.iter().find(|one| name(one).as_deref() == Some(tag));
        let found = match (tag, all) {
            (Some(tag), _) => called(tag),
            (None, [one]) => Some(one),
            (None, _) => called("latest"),
        };
        found.ok_or_else(|| {
            let names: Vec<String> = all.iter().filter_map(name).collect();
            let there = if names.is_empty() { "none with a name".to_owned() } else { names.join(", ") };
            let asked = tag.map_or_else(|| "several images".to_owned(), |tag| format!("no image {tag}"));
            self.bad(&format!("{asked} in it; give oci:DIR:TAG with one of: {there}"))
        })
    }

    /// A manifest; of those for several platforms, that of this one.
    fn manifest(&self, descriptor: Descriptor, depth: u32) -> Result<ImageManifest, Failure> {
        match descriptor.media_type() {
            MediaType::ImageIndex => {}
            MediaType::Other(kind) if kind.ends_with("manifest.list.v2+json") => {}
            _ => return self.blob(&descriptor),
        }
        let index: ImageIndex = self.blob(&descriptor)?;
        let here = architecture();
        let fits = |one: &&Descriptor| {
            one.platform().as_ref().is_some_and(|platform| {
                platform.os().to_string() == "linux" && platform.architecture().to_string() == here
            })
        };
        match index.manifests().iter().find(fits) {
            Some(fit) if depth > 0 => self.manifest(fit.clone(), depth - 1),
            Some(_) => Err(self.bad("indexes in indexes without end")),
            None => Err(self.bad(&format!("nothing for linux/{here} in it"))),
        }
    }

    fn blob<T: DeserializeOwned>(&self, descriptor: &Descriptor) -> Result<T, Failure> {
        let digest = digest::digest_of(descriptor.digest()).map_err(|why| self.bad(&why))?;
        self.file(&blob_path(&digest), Some(&digest))
    }

    fn file<T: DeserializeOwned>(&self, path: &Path, digest: Option<&str>) -> Result<T, Failure> {
        let shown = self.files.shown(path);
        let bad = |why: &str| Failure::input(format!("image file {shown}: {why}"));
        let failed = |e| Failure::input(format!("image file {shown}")).because(e);
        let file = self.files.open(path).map_err(failed)?;
        let mut text = Vec::new();
        file.data.take(DOCUMENT_MAX + 1).read_to_end(&mut text).map_err(failed)?;
        if text.len() as u64 > DOCUMENT_MAX {
            return Err(bad("too large to be a description of an image"));
        }
        if let Some(wanted) = digest
            && digest::of(&text) != wanted
        {
            let is = digest::of(&text);
            return Err(bad(&format!("its digest is {is}")).remedy("get the image again"));
        }
        serde_json::from_slice(&text).map_err(|e| failed(e.into()).remedy("get the image again"))
    }
}

/// This machine, as Go calls it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}
