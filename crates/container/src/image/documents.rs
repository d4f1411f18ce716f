//! The documents of an image: index, manifest, configuration, as far as they matter here.
//!
//! Most of them are written by programs in Go, which writes null for a list or a map that is empty, and reads null and what is not
//! there as the same. So nothing is required here, and what is needed is checked where it is used.

use super::digest::Digest;
use serde::{Deserialize, Deserializer};
use std::collections::HashMap;
use std::ops::Deref;

/// The annotation that gives an image its name in a layout.
const NAME: &str = "org.opencontainers.image.ref.name";

/// A value, or null for an empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Nullable<T>(pub(super) T);

impl<T> Deref for Nullable<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'de, T: Default + Deserialize<'de>> Deserialize<'de> for Nullable<T> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        Ok(Self(Option::deserialize(source)?.unwrap_or_default()))
    }
}

type Text = Nullable<String>;
type List<T> = Nullable<Vec<Nullable<T>>>;

/// The file that says what a directory is.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Layout {
    pub(super) image_layout_version: Text,
}

/// Images, for several names or platforms.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Index {
    manifests: List<Descriptor>,
}

impl Index {
    pub(super) fn all(&self) -> Vec<&Descriptor> {
        self.manifests.iter().map(Deref::deref).collect()
    }
}

/// What a document says of another one, or of a layer.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Descriptor {
    pub(super) media_type: Text,
    digest: Text,
    pub(super) size: Nullable<u64>,
    annotations: Nullable<HashMap<String, Text>>,
    platform: Option<Platform>,
}

impl Descriptor {
    /// The digest of what it leads to.
    pub(super) fn digest(&self) -> Result<Digest, String> {
        Digest::parse(&self.digest)
    }

    /// The image's name in the layout.
    pub(super) fn name(&self) -> Option<&str> {
        self.annotations.get(NAME).map(|name| name.as_str())
    }

    /// Where it runs, if that is said.
    pub(super) fn platform(&self) -> Option<&Platform> {
        self.platform.as_ref().filter(|platform| !platform.architecture.is_empty())
    }

    /// Whether it leads to an index, OCI's or Docker's.
    pub(super) fn is_index(&self) -> bool {
        self.media_type.ends_with(".image.index.v1+json")
            || self.media_type.ends_with(".manifest.list.v2+json")
    }

    /// Whether it leads to the configuration of an image, and not to one of something else that is stored as images are.
    pub(super) fn is_configuration(&self) -> bool {
        self.media_type.ends_with(".image.config.v1+json")
            || self.media_type.ends_with(".container.image.v1+json")
    }
}

/// What an image runs on.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Platform {
    pub(super) architecture: Text,
    pub(super) os: Text,
    pub(super) variant: Text,
}

/// An image: its configuration and its layers, the lowest first.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Manifest {
    pub(super) config: Nullable<Descriptor>,
    pub(super) layers: List<Descriptor>,
}

/// What an image says about itself.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Configuration {
    #[serde(flatten)]
    pub(super) platform: Platform,
    pub(super) config: Nullable<Process>,
    pub(super) rootfs: Nullable<Rootfs>,
}

/// What it is made of.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Rootfs {
    /// Digests of what is packed in its layers.
    pub(super) diff_ids: List<String>,
}

/// What it says about processes in it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct Process {
    pub(super) env: List<String>,
    pub(super) entrypoint: List<String>,
    pub(super) cmd: List<String>,
    pub(super) working_dir: Text,
    pub(super) user: Text,
}

pub(super) fn texts(list: &List<String>) -> Vec<String> {
    list.iter().map(|text| text.0.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_an_empty_value() {
        let read = |text: &str| serde_json::from_str::<Configuration>(text).unwrap();
        for text in [
            "{}",
            r#"{"architecture": null, "os": null, "config": null, "rootfs": null}"#,
            r#"{"config": {"Env": null, "Cmd": null, "User": null, "Labels": {"a": null}}, "rootfs": {"diff_ids": null}}"#,
        ] {
            let read = read(text);
            assert!(read.platform.architecture.is_empty() && read.rootfs.diff_ids.is_empty(), "{text}");
            assert_eq!(texts(&read.config.env), [""; 0], "{text}");
        }
        assert_eq!(texts(&read(r#"{"config": {"Env": ["A=1", null]}}"#).config.env), ["A=1", ""]);
        let index: Index = serde_json::from_str(
            r#"{"manifests": [{"annotations": null, "platform": null, "size": null, "digest": null}, null,
                {"annotations": {"org.opencontainers.image.ref.name": "v1", "x": null}, "platform": {"variant": null}}]}"#,
        )
        .unwrap();
        let names: Vec<_> = index.all().into_iter().map(Descriptor::name).collect();
        assert_eq!(names, [None, None, Some("v1")]);
        assert!(index.all().into_iter().all(|one| one.platform().is_none()));
        for bad in
            [r#"{"config": 1}"#, r#"{"config": {"Env": [1]}}"#, r#"{"rootfs": {"diff_ids": "x"}}"#, "1"]
        {
            assert!(serde_json::from_str::<Configuration>(bad).is_err(), "{bad}");
        }
    }
}
