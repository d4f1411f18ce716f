//! Indexes of images for several platforms, and documents by programs in Go.

use super::*;
use crate::image::digest::Algorithm;
use serde_json::{Value, json};
use std::fs;

/// A layout, in a directory of its own.
struct World(tempfile::TempDir);

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(LAYOUT_FILE), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
        Self(dir)
    }

    fn put(&self, kind: &str, document: &Value, algorithm: Algorithm) -> Value {
        let text = document.to_string();
        let digest = algorithm.digest(text.as_bytes());
        let path = self.0.path().join(digest.blob_path());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &text).unwrap();
        json!({"mediaType": format!("application/vnd.oci.image.{kind}+json"), "digest": digest.to_string(), "size": text.len()})
    }

    /// An image without layers, by whose user it is known.
    fn image(&self, user: &str, platform: &str) -> Value {
        let mut words = platform.split('/');
        let mut next = || words.next().unwrap_or_default();
        let config =
            json!({"os": next(), "architecture": next(), "variant": next(), "config": {"User": user}});
        let config = self.put("config.v1", &config, Algorithm::Sha256);
        self.put("manifest.v1", &json!({"config": config, "layers": []}), Algorithm::Sha256)
    }

    /// Such an image, with its platform in the descriptor, too.
    fn named(&self, user: &str, platform: &str) -> Value {
        let mut image = self.image(user, platform);
        let words: Vec<&str> = platform.split('/').collect();
        image["platform"] = json!({"os": words[0], "architecture": words[1], "variant": words.get(2)});
        image
    }

    fn index(&self, all: Vec<Value>) -> Value {
        self.put("index.v1", &json!({"manifests": all}), Algorithm::Sha256)
    }

    /// The user of the image that is taken.
    fn selected(&self, all: Vec<Value>) -> Result<String, Failure> {
        let all: Vec<Value> = all
            .into_iter()
            .map(|mut one| {
                one["annotations"] = json!({"org.opencontainers.image.ref.name": "v1", "other": null});
                one
            })
            .collect();
        fs::write(self.0.path().join("index.json"), json!({"manifests": all}).to_string()).unwrap();
        Layout::open(self.0.path(), Some("v1")).map(|layout| layout.defaults.user.unwrap_or_default())
    }

    fn is_refused(&self, all: Vec<Value>, cause: &str) {
        let failure = self.selected(all).unwrap_err();
        assert_eq!(failure.exit_status(), 2, "{failure}");
        assert!(failure.to_string().contains(cause), "{failure} does not name {cause}");
    }
}

/// This machine's platform.
fn here() -> String {
    Machine::this().to_string()
}

#[test]
fn the_image_for_this_machine_is_selected() {
    let world = World::new();
    let here = here();
    let other = if here == "linux/s390x" { "linux/amd64" } else { "linux/s390x" };
    let newer = format!("{here}/v99");
    let all = vec![world.named("newer", &newer), world.named("other", other), world.named("plain", &here)];
    assert_eq!(world.selected(vec![world.index(all)]).unwrap(), "plain");
    let only = world.index(vec![world.named("newer", &newer), world.named("other", other)]);
    world.is_refused(vec![only], &format!("only for {newer}, {other}"));
    // One alone is meant, whatever it runs on; of several with a name it is again the one for this machine.
    assert_eq!(world.selected(vec![world.named("other", other)]).unwrap(), "other");
    assert_eq!(
        world.selected(vec![world.named("other", other), world.named("plain", &here)]).unwrap(),
        "plain"
    );
}

#[test]
fn images_without_a_platform_are_inspected() {
    let world = World::new();
    let here = here();
    let other = "linux/other";
    let silent = vec![world.image("other", other), world.image("plain", &here)];
    assert_eq!(world.selected(vec![world.index(silent)]).unwrap(), "plain");
    // What says so comes first.
    let both = vec![world.image("silent", &here), world.named("named", &here)];
    assert_eq!(world.selected(vec![world.index(both)]).unwrap(), "named");
    let inner =
        vec![world.index(vec![world.named("other", other)]), world.index(vec![world.image("inner", &here)])];
    assert_eq!(world.selected(vec![world.index(inner)]).unwrap(), "inner");
    // Something that is stored like an image is none; a configuration without a word about it is taken.
    let config = world.put("empty.v1", &json!({}), Algorithm::Sha256);
    let artifact = world.put("manifest.v1", &json!({"config": config}), Algorithm::Sha256);
    assert_eq!(
        world.selected(vec![world.index(vec![artifact.clone(), world.image("mute", "")])]).unwrap(),
        "mute"
    );
    world.is_refused(vec![world.index(vec![artifact, world.image("other", other)])], "nothing for");
}

#[test]
fn indexes_have_an_end() {
    let world = World::new();
    let mut deep = world.image("deep", &here());
    for _ in 0..=DEPTH_MAX {
        deep = world.index(vec![deep]);
    }
    world.is_refused(vec![deep], "without end");
    let wide = vec![world.image("x", "linux/other"); 1000];
    world.is_refused(vec![world.index(wide)], "documents");
}

#[test]
fn null_values_of_go_are_empty() {
    let world = World::new();
    let config = json!({
        "os": "linux", "architecture": "amd64", "created": null, "history": null, "rootfs": {"type": "layers", "diff_ids": null},
        "config": {"User": "u", "Env": null, "Cmd": ["c"], "Labels": {"a": null}, "Volumes": null, "ExposedPorts": null},
    });
    let config = world.put("config.v1", &config, Algorithm::Sha256);
    let manifest = json!({"config": config, "layers": null, "annotations": null});
    let manifest = world.put("manifest.v1", &manifest, Algorithm::Sha256);
    assert_eq!(world.selected(vec![manifest]).unwrap(), "u");
    let manifest = world.put("manifest.v1", &json!({"config": null, "layers": null}), Algorithm::Sha256);
    world.is_refused(vec![manifest], "digest");
    fs::write(world.0.path().join("index.json"), r#"{"manifests": null}"#).unwrap();
    assert!(Layout::open(world.0.path(), None).unwrap_err().to_string().contains("none with a name"));
}

#[test]
fn documents_have_their_digests_by_any_algorithm() {
    let world = World::new();
    for algorithm in [Algorithm::Sha384, Algorithm::Sha512] {
        let config = world.put("config.v1", &json!({"config": {"User": "u"}}), algorithm);
        let manifest = world.put("manifest.v1", &json!({"config": config}), algorithm);
        assert_eq!(world.selected(vec![manifest.clone()]).unwrap(), "u");
        let digest = Digest::parse(manifest["digest"].as_str().unwrap()).unwrap();
        fs::write(world.0.path().join(digest.blob_path()), "{}").unwrap();
        world.is_refused(vec![manifest], "its digest is");
    }
}
