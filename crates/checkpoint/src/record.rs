//! What a checkpoint says of itself: `checkpoint.json`.

use crate::containerd;
use crate::podman::RestoreSpec;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use vellum_container::Lowers;
use vellum_container::Settings;
use vellum_service::Failure;

/// The file.
pub(crate) const NAME: &str = "checkpoint.json";
/// The newest format that is read. 1: a container of `vellum run`. 2: one of podman. 3: one of containerd. 4: any of them, in an object of its own.
/// 5: one of `vellum run` whose image is on CephFS, in whatever form. 6: any of them whose memory was read twice.
const FORMAT: u32 = 6;
/// The largest one that is read, in bytes.
pub(crate) const RECORD_MAX: u64 = 16 << 20;

/// All that is known of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RecordForm", into = "RecordForm")]
pub struct Record {
    /// The version of Vellum that has taken it.
    pub vellum: String,
    /// The version of CRIU.
    pub criu: String,
    pub container: String,
    /// When, in seconds since 1970.
    pub taken: u64,
    /// How long the container stood still, in microseconds.
    pub pause_us: u64,
    /// And how long before, for a first pass over its memory. None: there was none.
    pub pause_ahead_us: Option<u64>,
    /// Bytes of images: memory, and what the kernel knows of the processes.
    pub image_bytes: u64,
    /// Bytes that the copy of the upper layer takes, as far as its blocks are its own.
    pub upper_bytes: u64,
    /// Objects in the upper layer.
    pub upper_objects: u64,
    /// Whether the container went on.
    pub left_running: bool,
    /// Bytes that memory and files take where they are. None: as many as they are.
    pub stored_bytes: Option<u64>,
    /// The checkpoints at the same place that it needs, the nearest first.
    pub parents: Vec<String>,
    /// Whose it is, and what it takes for it to go on.
    pub of: ContainerEngine,
}

/// Whose container it is, and what it takes for it to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerEngine {
    /// One of `vellum run`.
    Run {
        /// The layers below.
        lowers: Lowers,
        /// What it was started with.
        settings: Box<Settings>,
    },
    Podman(RestoreSpec),
    Containerd(Box<containerd::RestoreSpec>),
}

/// A record as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordForm {
    format: u32,
    vellum: String,
    criu: String,
    container: String,
    taken: u64,
    pause_us: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pause_ahead_us: Option<u64>,
    image_bytes: u64,
    upper_bytes: u64,
    upper_objects: u64,
    left_running: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stored_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parents: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lowers: Option<Lowers>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    settings: Option<Settings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    podman: Option<RestoreSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    containerd: Option<containerd::RestoreSpec>,
}

impl From<Record> for RecordForm {
    fn from(record: Record) -> Self {
        let (format, lowers, settings, podman, containerd) = match record.of {
            ContainerEngine::Run { lowers, settings } => (1, Some(lowers), Some(*settings), None, None),
            ContainerEngine::Podman(described) => (2, None, None, Some(described), None),
            ContainerEngine::Containerd(described) => (3, None, None, None, Some(*described)),
        };
        let is_far = lowers.as_ref().is_some_and(Lowers::are_remote);
        let format = match record.stored_bytes {
            _ if record.pause_ahead_us.is_some() => 6,
            _ if is_far => 5,
            Some(_) => 4,
            None => format,
        };
        Self {
            format,
            vellum: record.vellum,
            criu: record.criu,
            container: record.container,
            taken: record.taken,
            pause_us: record.pause_us,
            pause_ahead_us: record.pause_ahead_us,
            image_bytes: record.image_bytes,
            upper_bytes: record.upper_bytes,
            upper_objects: record.upper_objects,
            left_running: record.left_running,
            stored_bytes: record.stored_bytes,
            parents: record.parents,
            lowers,
            settings,
            podman,
            containerd,
        }
    }
}

impl TryFrom<RecordForm> for Record {
    type Error = &'static str;

    fn try_from(written: RecordForm) -> Result<Self, Self::Error> {
        let of = match (written.lowers, written.settings, written.podman, written.containerd) {
            (Some(lowers), Some(settings), None, None) => {
                ContainerEngine::Run { lowers, settings: Box::new(settings) }
            }
            (None, None, Some(described), None) => ContainerEngine::Podman(described),
            (None, None, None, Some(described)) => ContainerEngine::Containerd(Box::new(described)),
            _ => return Err("either lowers and settings, or podman, or containerd"),
        };
        Ok(Self {
            vellum: written.vellum,
            criu: written.criu,
            container: written.container,
            taken: written.taken,
            pause_us: written.pause_us,
            pause_ahead_us: written.pause_ahead_us,
            image_bytes: written.image_bytes,
            upper_bytes: written.upper_bytes,
            upper_objects: written.upper_objects,
            left_running: written.left_running,
            stored_bytes: written.stored_bytes,
            parents: written.parents,
            of,
        })
    }
}

/// A checkpoint in a list.
#[derive(Clone, Debug)]
pub struct CheckpointEntry {
    pub name: String,
    /// What it says of itself, or why that cannot be read.
    pub record: Result<Record, Failure>,
}

/// As much as says what it is.
#[derive(Deserialize)]
struct Head {
    format: u32,
}

impl Record {
    /// The image, for people.
    #[must_use]
    pub fn image(&self) -> String {
        match &self.of {
            ContainerEngine::Run { lowers, .. } => lowers.display(),
            ContainerEngine::Podman(described) => format!("podman:{}", described.image_name),
            ContainerEngine::Containerd(described) => described.image(),
        }
    }

    /// The command, for people.
    #[must_use]
    pub fn command(&self) -> String {
        match &self.of {
            ContainerEngine::Run { settings, .. } => settings.command(),
            ContainerEngine::Podman(described) => described.command.join(" "),
            ContainerEngine::Containerd(described) => described.command(),
        }
    }

    /// Reads that of the checkpoint in a directory.
    pub(crate) fn read(dir: &Path) -> Result<Self, Failure> {
        let path = dir.join(NAME);
        let shown = path.display();
        let failed = |e: std::io::Error| Failure::input(format!("{shown}")).because(e);
        let mut text = Vec::new();
        let file = vellum_pool::regular_file::open(&path).map_err(failed)?;
        file.take(RECORD_MAX).read_to_end(&mut text).map_err(failed)?;
        Self::parse(&text, &shown.to_string())
    }

    /// Reads one from its text; `display` is where that was.
    pub(crate) fn parse(text: &[u8], shown: &str) -> Result<Self, Failure> {
        let unclear =
            |e: serde_json::Error| Failure::input(format!("{shown}: no record of a checkpoint")).because(e);
        let head: Head = serde_json::from_slice(text).map_err(unclear)?;
        if !(1..=FORMAT).contains(&head.format) {
            return Err(Failure::input(format!(
                "{shown}: format {}, and this version reads 1 to {FORMAT}; use the version of vellum that has written it",
                head.format
            )));
        }
        serde_json::from_slice(text).map_err(unclear)
    }

    /// Writes it, durably.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), Failure> {
        let path = dir.join(NAME);
        let failed = |e: std::io::Error| Failure::system(format!("{}", path.display())).because(e);
        let text = serde_json::to_vec_pretty(self).map_err(|e| Failure::system("a record").because(e))?;
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(failed)?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::podman::Mount;

    pub(in super::super) fn of_podman() -> Record {
        Record {
            vellum: "0.1.0".into(),
            criu: "4.1".into(),
            container: "web".into(),
            taken: 1,
            pause_us: 2,
            pause_ahead_us: None,
            image_bytes: 3,
            upper_bytes: 4,
            upper_objects: 5,
            left_running: true,
            stored_bytes: None,
            parents: Vec::new(),
            of: ContainerEngine::Podman(RestoreSpec {
                id: "0123".into(),
                podman: "5.4.2".into(),
                image: "4567".into(),
                image_name: "localhost/web".into(),
                layers: vec!["sha256:89".into()],
                command: vec!["httpd".into(), "-f".into()],
                mounts: vec![Mount { volume: Some("data".into()), source: "/data".into() }],
                host_network: false,
                library: None,
            }),
        }
    }

    #[test]
    fn records_parse_back_and_truncated_ones_do_not() {
        let record = of_podman();
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(Record::parse(text.as_bytes(), "x"), Ok(record.clone()));
        assert!(text.contains("\"format\":2") && !text.contains("settings"), "{text}");
        assert_eq!(
            (record.image().as_str(), record.command().as_str()),
            ("podman:localhost/web", "httpd -f")
        );
        for (from, to) in [
            ("\"format\":2", "\"format\":7"),
            ("\"format\":2", "\"format\":0"),
            ("\"podman\":{", "\"other\":{"),
            (
                "\"left_running\"",
                "\"lowers\":{\"tree\":{\"dir\":\"/x\",\"fingerprint\":\"y\"}},\"left_running\"",
            ),
        ] {
            let other = text.replacen(from, to, 1);
            assert_ne!(other, text);
            let failure = Record::parse(other.as_bytes(), "x").unwrap_err();
            assert_eq!(failure.exit_status(), 2, "{other}");
        }
    }

    #[test]
    fn a_packed_checkpoint_has_its_format_version() {
        let record = Record { stored_bytes: Some(7), parents: vec!["one".into()], ..of_podman() };
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.contains("\"format\":4"), "{text}");
        assert_eq!(Record::parse(text.as_bytes(), "x"), Ok(record));
    }

    #[test]
    fn a_memory_first_pass_has_its_own_format_version() {
        for stored_bytes in [None, Some(7)] {
            let record = Record { pause_ahead_us: Some(9), stored_bytes, ..of_podman() };
            let text = serde_json::to_string(&record).unwrap();
            assert!(text.contains("\"format\":6"), "{text}");
            assert_eq!(Record::parse(text.as_bytes(), "x"), Ok(record));
        }
    }

    /// As versions wrote it that knew no podman.
    #[test]
    fn records_of_vellum_run_are_read() {
        let text = r#"{ "format": 1, "vellum": "0.1.0", "criu": "4.1.1", "container": "one", "taken": 1, "pause_us": 2, "image_bytes": 3,
            "upper_bytes": 4, "upper_objects": 5, "left_running": false, "lowers": { "tree": { "dir": "/image", "fingerprint": "00" } },
            "settings": { "image": { "tree": "/image" }, "lowers": ["/image"], "plan": PLAN, "user": USER, "volumes": [], "pool": null,
            "ids": null, "weight": null, "cache": null, "hostname": "one", "terminal": false, "read_only": false, "host_network": false,
            "new_privileges": false, "library": false, "socket": false } }"#;
        let text = text.replace("PLAN", PLAN).replace("USER", USER);
        let record = Record::parse(text.as_bytes(), "x").unwrap();
        let again = serde_json::to_string(&record).unwrap();
        assert!(
            again.starts_with("{\"format\":1,") && matches!(record.of, ContainerEngine::Run { .. }),
            "{again}"
        );
        assert_eq!((record.image().as_str(), record.command().as_str()), ("/image", "sh -c x"));
    }

    const PLAN: &str = r#"{ "args": ["sh", "-c", "x"], "env": [], "workdir": "/", "user": "" }"#;
    const USER: &str = r#"{ "uid": 0, "gid": 0, "groups": [], "home": null }"#;
}
