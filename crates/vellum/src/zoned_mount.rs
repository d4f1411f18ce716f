//! `vellum zoned mount`: the files in a store on a zoned device as a filesystem.
//!
//! It is a mount of one upper layer without lower ones, with its work directory beside it in the store.

use crate::options::{BadInput, Options, Request};
use clap::Args;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use vellum_service::layers::zoned::{WORK, work_of};

/// The directory in the store that is shown where none is named.
const FILES: &str = "files";

/// Arguments of `vellum zoned mount`.
#[derive(Args, Debug)]
pub struct ZonedMountArgs {
    /// The directory in the store to show; it is made if it is not there.
    #[arg(long, value_name = "DIR", default_value = FILES)]
    pub dir: PathBuf,
    /// Options as of vellum mount, e.g. allow_other; may be repeated.
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<OsString>,
    /// Mount read-only.
    #[arg(short = 'r', long)]
    pub read_only: bool,
    /// Stay in the foreground.
    #[arg(short, long)]
    pub foreground: bool,
    /// A zoned block device, or a file or disk that is used like one, with a store.
    pub device: PathBuf,
    /// Where to mount it.
    pub mountpoint: PathBuf,
}

impl ZonedMountArgs {
    /// The mount that they ask for.
    pub fn request(self) -> Result<Request, BadInput> {
        let shown = self.dir.display();
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if self.dir.as_os_str().is_empty() || !self.dir.components().all(is_plain) {
            return Err(BadInput::new(format!(
                "--dir {shown}: not a directory below the store's root; write DIR/DIR"
            )));
        }
        if self.dir.starts_with(WORK) {
            return Err(BadInput::new(format!(
                "--dir {shown}: {WORK} is for mounts themselves; choose another name"
            )));
        }
        let mut options = Options::default();
        for text in &self.options {
            options.take(text, false)?;
        }
        options.set_upper(layer(&self.device, &self.dir));
        if self.read_only {
            options.set_read_only(true);
        } else {
            options.set_work(layer(&self.device, &work_of(&self.dir)));
        }
        options.finish(self.mountpoint, self.foreground)
    }
}

fn layer(device: &Path, dir: &Path) -> OsString {
    let mut text = OsString::from("zoned:");
    text.push(device.join(dir));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(dir: &str) -> ZonedMountArgs {
        ZonedMountArgs {
            dir: dir.into(),
            options: Vec::new(),
            read_only: false,
            foreground: false,
            device: "/dev/x:y".into(),
            mountpoint: "/m".into(),
        }
    }

    #[test]
    fn a_zoned_mount_is_an_upper_layer_alone() {
        let config = args("a/b").request().unwrap().config;
        let shown = |layer: Option<vellum_service::LayerSource>| layer.unwrap().to_string();
        assert!(config.lowers.is_empty());
        assert_eq!(shown(config.upper), "zoned:/dev/x:y/a/b");
        assert_eq!(shown(config.work), "zoned:/dev/x:y/.work/a-b");
        for dir in ["", "/a", "a/../b", ".", ".work/a"] {
            assert!(args(dir).request().unwrap_err().to_string().contains("--dir"), "{dir}");
        }
        let config = ZonedMountArgs { read_only: true, ..args(FILES) }.request().unwrap().config;
        assert!(config.work.is_none() && !config.writable());
    }
}
