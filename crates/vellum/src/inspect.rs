//! `vellum inspect`: asks the service through the mount, and looks at the upper layer.

use crate::query::{ask, read, unreadable};
use rustix::fs::lgetxattr;
use serde::Serialize;
use std::ffi::CString;
use std::fmt::Write as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use vellum_service::Failure;
use vellum_service::instance::inspect::{InstanceReport, NodeAnswer};
use vellum_service::instance::{INSTANCE, LAYER, NODE};

/// Most objects of an upper layer that are counted.
const COUNTED_MAX: u64 = 1_000_000;

/// What an upper layer holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UpperContent {
    files: u64,
    directories: u64,
    symlinks: u64,
    /// Names that are removed from the layers below.
    whiteouts: u64,
    others: u64,
    /// Files that take some of their blocks from below.
    partial: u64,
    /// Bytes of them that need no space here.
    saved: u64,
    /// Space in bytes.
    bytes: u64,
    /// Whether counting ended early.
    incomplete: bool,
}

/// All that is known about a path.
#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    path: PathBuf,
    node: NodeAnswer,
    instance: InstanceReport,
    layers: Vec<String>,
    upper_content: Option<UpperContent>,
    /// Seconds after which the kernel ends a mount whose service does not answer, whatever that says.
    request_timeout: Option<u64>,
}

/// Finds out about `path`.
pub fn find(path: &Path) -> Result<Findings, Failure> {
    let instance = ask(path, INSTANCE.to_owned())?;
    let instance: InstanceReport = read(&instance)?;
    let node = read(&ask(path, NODE.to_owned())?)?;
    let mut layers = Vec::new();
    for number in 0..instance.layer_count.min(vellum_service::config::LAYERS_MAX + 1) {
        let question = CString::new(format!("{LAYER}{number}")).map_err(|_| unreadable())?;
        layers.push(String::from_utf8_lossy(&ask(path, question)?).into_owned());
    }
    let upper_content = instance.upper.as_ref().map(|upper| count(Path::new(upper)));
    let request_timeout = request_timeout();
    Ok(Findings { path: path.to_owned(), node, instance, layers, upper_content, request_timeout })
}

/// The most that the kernel grants a service for an answer, if it is limited.
fn request_timeout() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/fs/fuse/max_request_timeout").ok()?;
    text.trim().parse().ok().filter(|seconds| *seconds > 0)
}

/// Counts what is in an upper layer.
fn count(upper: &Path) -> UpperContent {
    let mut content = UpperContent::default();
    let mut seen = 0;
    let mut to_list = vec![upper.to_owned()];
    while let Some(dir) = to_list.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else {
            content.incomplete = true;
            continue;
        };
        for entry in entries {
            seen += 1;
            let Ok((entry, meta)) = entry.and_then(|entry| entry.metadata().map(|meta| (entry, meta))) else {
                content.incomplete = true;
                continue;
            };
            if seen > COUNTED_MAX {
                return UpperContent { incomplete: true, ..content };
            }
            content.bytes += meta.blocks() * 512;
            let kind = meta.file_type();
            if kind.is_dir() {
                content.directories += 1;
                to_list.push(entry.path());
            } else if (kind.is_char_device() && meta.rdev() == 0)
                || entry.file_name().as_encoded_bytes().starts_with(b".wh.")
            {
                content.whiteouts += 1;
            } else if kind.is_file() {
                content.files += 1;
                let space = meta.blocks() * 512;
                if space < meta.len() && is_partial(&entry.path()) {
                    content.partial += 1;
                    content.saved += meta.len() - space;
                }
            } else if kind.is_symlink() {
                content.symlinks += 1;
            } else {
                content.others += 1;
            }
        }
    }
    content
}

fn is_partial(path: &Path) -> bool {
    let nothing: &mut [u8] = &mut [];
    ["trusted.vellum.p", "user.vellum.p"].iter().any(|name| lgetxattr(path, *name, &mut *nothing).is_ok())
}

impl Findings {
    /// As JSON, with a line's end.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// As lines for a person.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<11} {value}");
        };
        let Self { node, instance, .. } = self;
        let layer_path = self.layers.get(node.layer).map_or("?", String::as_str);
        let upper = if node.in_upper { ", the upper" } else { "" };
        line("path", self.path.display().to_string());
        line("served by", format!("layer {}{upper}: {}", node.layer, join(layer_path, &node.path)));
        if node.merged_from.len() > 1 {
            line("merged from", format!("layers {}", list(&node.merged_from)));
        }
        for (name, value) in &node.details {
            line(name, value.clone());
        }
        let marks = [("read-only", instance.read_only), ("volatile", instance.volatile)];
        let marks: String = marks.iter().filter(|(_, is)| *is).map(|(name, _)| format!(", {name}")).collect();
        line(
            "mount",
            format!("{} (vellum {}, process {}{marks})", instance.mountpoint, instance.version, instance.pid),
        );
        line("profile", format!("{}, {} workers", instance.profile, instance.workers));
        line("kernel", instance.features.join(", "));
        if let Some(seconds) = self.request_timeout {
            line(
                "",
                format!(
                    "ends a mount whose service has not answered for {seconds} s, be it held or busy; no mount can say otherwise (sysctl \
                     fs.fuse.max_request_timeout=0, before the mount)"
                ),
            );
        }
        if !instance.processors.is_empty() {
            line("processors", instance.processors.clone());
        }
        for (number, (part, what)) in instance.sandbox.iter().enumerate() {
            line(if number == 0 { "sandbox" } else { "" }, format!("{part}: {what}"));
        }
        if let (Some(upper), Some(content)) = (&instance.upper, &self.upper_content) {
            line("upper", upper.clone());
            line("in upper", content.text());
        }
        if let Some(work) = &instance.work {
            line("work", work.clone());
        }
        for (number, path) in self.layers.iter().enumerate() {
            line(if number == 0 { "layers" } else { "" }, format!("{number} {path}"));
        }
        let counters: Vec<String> = instance
            .summary
            .iter()
            .map(|(name, value)| format!("{} {value}", name.replace('_', " ")))
            .collect();
        if !counters.is_empty() {
            line("counters", counters.join(", "));
        }
        text
    }
}

impl UpperContent {
    fn text(&self) -> String {
        let more = if self.incomplete { ", and what could not be counted" } else { "" };
        let partial = match self.partial {
            0 => String::new(),
            files => format!(" ({files} partial, {} saved)", size(self.saved)),
        };
        format!(
            "{} files{partial}, {} directories, {} symbolic links, {} whiteouts, {} others, {}{more}",
            self.files,
            self.directories,
            self.symlinks,
            self.whiteouts,
            self.others,
            size(self.bytes)
        )
    }
}

fn join(layer: &str, path: &str) -> String {
    if path.is_empty() { layer.to_owned() } else { format!("{layer}/{}", path.trim_start_matches('/')) }
}

fn list(numbers: &[usize]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A number of bytes as a person reads it.
#[must_use]
pub fn size(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let step = (0..units.len() - 1).take_while(|step| bytes >> (10 * (step + 1)) > 0).count();
    let unit = units.get(step).copied().unwrap_or_default();
    if step == 0 {
        format!("{bytes} {unit}")
    } else {
        format!("{:.1} {unit}", bytes as f64 / f64::from(1u32 << 10).powi(step as i32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        assert_eq!(size(0), "0 bytes");
        assert_eq!(size(1023), "1023 bytes");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(3 << 40), "3.0 TiB");
        assert_eq!(size(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn an_upper_layer_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::fs::write(dir.path().join("d/f"), "x").unwrap();
        std::fs::write(dir.path().join(".wh.gone"), "").unwrap();
        std::os::unix::fs::symlink("f", dir.path().join("s")).unwrap();
        let content = count(dir.path());
        assert_eq!((content.files, content.directories, content.symlinks, content.whiteouts), (1, 1, 1, 1));
        assert!(!content.incomplete && count(&dir.path().join("none")).incomplete);
    }

    #[test]
    fn inspection_outside_a_mount_finds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let failure = find(dir.path()).unwrap_err();
        assert_eq!(failure.exit_status(), 2);
        assert!(failure.to_string().contains("not in a vellum mount"), "{failure}");
    }
}
