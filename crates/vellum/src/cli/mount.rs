//! Arguments of `vellum mount`, and the mount that they ask for.

use crate::options::{BadInput, Options, Request};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::ffi::OsString;
use std::path::PathBuf;
use vellum_service::config::Profile;

/// Arguments of `vellum mount`.
#[derive(Args, Debug)]
pub struct MountArgs {
    /// Options as in fstab, e.g. lowerdir=A:B,upperdir=D,workdir=W; may be repeated.
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<OsString>,
    /// A lower layer; the first one is on top. May be repeated.
    #[arg(long, value_name = "DIR")]
    pub lower: Vec<PathBuf>,
    /// The writable layer. Without it the mount is read-only.
    #[arg(long, value_name = "DIR", requires = "work")]
    pub upper: Option<PathBuf>,
    /// The work directory, on the filesystem of the upper layer.
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// The path of file data.
    #[arg(long, value_parser = profile())]
    pub profile: Option<Profile>,
    /// The pool of the mount.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<OsString>,
    /// Mount read-only.
    #[arg(short = 'r', long)]
    pub read_only: bool,
    /// Stay in the foreground.
    #[arg(short, long)]
    pub foreground: bool,
    /// Log everything to stderr; stay in the foreground.
    #[arg(short, long)]
    pub debug: bool,
    /// Answer requests one at a time.
    #[arg(short, long)]
    pub single: bool,
    /// The source that mount(8) shows.
    #[arg(value_name = "SOURCE")]
    pub first: OsString,
    /// The mount point.
    #[arg(value_name = "MOUNTPOINT")]
    pub second: Option<OsString>,
}

/// Reads a profile's name.
fn profile() -> impl TypedValueParser<Value = Profile> {
    PossibleValuesParser::new(Profile::NAMES.map(|(name, _)| name)).try_map(|name| name.parse::<Profile>())
}

impl MountArgs {
    /// The mount that they ask for.
    pub fn request(self) -> Result<Request, BadInput> {
        let mut options = Options::default();
        for text in &self.options {
            options.take(text, false)?;
        }
        for lower in self.lower {
            options.add_lower(lower.into());
        }
        if let Some(upper) = self.upper {
            options.set_upper(upper.into());
        }
        if let Some(work) = self.work {
            options.set_work(work.into());
        }
        if let Some(profile) = self.profile {
            options.set_profile(profile);
        }
        if let Some(pool) = self.pool {
            options.set_pool(pool);
        }
        if self.read_only {
            options.set_read_only(true);
        }
        if self.debug {
            options.set_debug();
        }
        if self.single {
            options.set_single_threaded();
        }
        let mountpoint = match self.second {
            Some(target) => {
                options.set_source(self.first);
                target
            }
            None => self.first,
        };
        options.finish(mountpoint.into(), self.foreground)
    }
}
