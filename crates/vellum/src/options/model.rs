//! A mount that options ask for.

use super::bad_input::BadInput;
use super::cluster::{self, WriteTiming};
use super::table::{self, Set};
use super::tokenizer::{self, RawOption};
use super::values::path;
use std::ffi::{OsStr, OsString};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;
use vellum_service::LayerSource;
use vellum_service::config::{AccessTimes, Cache, Config, LAYERS_MAX, LayerWriters, Profile};
use vellum_service::layers::ceph::Cluster;

/// Where log lines go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTarget {
    /// To stderr in the foreground, to the system log otherwise.
    #[default]
    Auto,
    /// To stderr; nowhere once the process has detached.
    Stderr,
    /// To syslog's socket.
    Syslog,
    /// To the kernel's log.
    Kmsg,
    /// To the end of a file.
    File(PathBuf),
}

/// Everything that was asked for in options, before it is known where to mount.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    pub(super) config: Config,
    pub(super) squash_to_root: bool,
    pub(super) remount: bool,
    pub(super) debug: bool,
    pub(super) pool: Option<OsString>,
    pub(super) log: Option<String>,
    pub(super) log_to: LogTarget,
    pub(super) cache: Option<LayerWriters>,
    pub(super) cache_size: Option<u64>,
    pub(super) cluster: Cluster,
    pub(super) written: WriteTiming,
    /// Somebody has asked for blocks to be filled when the mount has ended.
    pub(super) fills: bool,
    /// The shorter one of libfuse's two.
    pub(super) timeout_of_libfuse: Option<Duration>,
    pub(super) access_times: Option<AccessTimes>,
    /// Reading directories is to leave no times; of files nothing was said.
    pub(super) nodiratime: bool,
}

impl LogTarget {
    /// As an option, or the environment, names it.
    pub(crate) fn named(name: Vec<u8>) -> Self {
        match name.as_slice() {
            b"stderr" => Self::Stderr,
            b"syslog" => Self::Syslog,
            b"kmsg" => Self::Kmsg,
            _ => Self::File(path(name)),
        }
    }
}

/// A mount that was asked for, complete.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// The instance.
    pub config: Config,
    /// Only change the flags of a mount that exists.
    pub remount: bool,
    /// Stay attached to the terminal.
    pub foreground: bool,
    /// Say everything.
    pub debug: bool,
    /// The pool that is to serve it, by name.
    pub pool: Option<OsString>,
    /// Which events are logged, in the syntax of tracing's filters.
    pub log: Option<String>,
    /// Where they are logged.
    pub log_to: LogTarget,
}

impl Options {
    /// Takes the text of one `-o`. `sloppy`: unknown options are left out, as mount(8) -s asks.
    pub fn take(&mut self, text: &OsStr, sloppy: bool) -> Result<(), BadInput> {
        for raw in tokenizer::options(text) {
            let known = self.apply(raw)?;
            if !known && !sloppy {
                return Err(table::unknown(raw));
            }
        }
        Ok(())
    }

    /// Adds a lower layer below those that are there.
    pub fn add_lower(&mut self, name: OsString) {
        self.config.lowers.push(LayerSource::named(name));
    }

    /// Sets the upper layer.
    pub fn set_upper(&mut self, name: OsString) {
        self.config.upper = Some(LayerSource::named(name));
    }

    /// Sets the work directory.
    pub fn set_work(&mut self, name: OsString) {
        self.config.work = Some(LayerSource::named(name));
    }

    pub fn set_profile(&mut self, profile: Profile) {
        self.config.profile = profile;
    }

    /// Answers requests one at a time.
    pub fn set_single_threaded(&mut self) {
        self.config.workers = Some(NonZeroUsize::MIN);
    }

    /// Logs everything.
    pub fn set_debug(&mut self) {
        self.debug = true;
    }

    /// Names the pool that is to serve it.
    pub fn set_pool(&mut self, pool: OsString) {
        self.pool = Some(pool);
    }

    /// Makes the mount read-only, or not.
    pub fn set_read_only(&mut self, read_only: bool) {
        self.config.flags.read_only = read_only;
    }

    /// Names the source that mount(8) shows, unless an option has.
    pub fn set_source(&mut self, source: OsString) {
        self.config.source.get_or_insert(source);
    }

    /// The whole request, checked for what is missing.
    pub fn finish(mut self, mountpoint: PathBuf, foreground: bool) -> Result<Request, BadInput> {
        if self.squash_to_root {
            self.config.squash_uid.get_or_insert(0);
            self.config.squash_gid.get_or_insert(0);
        }
        // Reading directories never sets any.
        let unsaid = if self.nodiratime { AccessTimes::Relative } else { AccessTimes::Never };
        self.config.flags.access_times = self.access_times.unwrap_or(unsaid);
        self.config.timeout = self.config.timeout.or(self.timeout_of_libfuse);
        self.config.mountpoint = mountpoint;
        if !self.remount {
            cluster::place(&mut self.config, &self.cluster)?;
        }
        self.config.cache = self.cache()?;
        if !self.remount {
            self.config.write_behind = self.written.policy(&self.config)?;
            self.check_layers()?;
        }
        Ok(Request {
            config: self.config,
            remount: self.remount,
            foreground: foreground || self.debug,
            debug: self.debug,
            pool: self.pool,
            log: self.log,
            log_to: self.log_to,
        })
    }

    fn cache(&self) -> Result<Option<Cache>, BadInput> {
        let bytes = self.cache_size.unwrap_or(Cache::USUAL);
        match self.cache {
            None if self.cache_size.is_some() => Err(BadInput::new(
                "option cache_size: there is no cache; add cache=shared or cache=immutable",
            )),
            // Files on CephFS have nothing that could be handed to the kernel.
            Some(_)
                if self.config.profile == Profile::Passthrough
                    && self.config.ceph_layers().next().is_none() =>
            {
                Err(BadInput::new(
                    "option cache: with profile=passthrough the kernel reads layers itself; leave one of both out",
                ))
            }
            Some(_) if bytes < Cache::MIN => {
                Err(BadInput::new(format!("option cache_size: {bytes} is too small; write 1M or more")))
            }
            sharing => Ok(sharing.map(|sharing| Cache { sharing, bytes })),
        }
    }

    fn check_layers(&self) -> Result<(), BadInput> {
        let config = &self.config;
        if self.fills && config.upper.as_ref().is_some_and(|upper| upper.ceph().is_some()) {
            return Err(BadInput::new(
                "option fill_at_end: nothing is filled in an upper layer on CephFS; leave it out",
            ));
        }
        // A directory in a store is mounted by itself, too.
        let is_alone = config.upper.as_ref().is_some_and(|upper| upper.zoned().is_some());
        if config.lowers.is_empty() && !is_alone {
            return Err(BadInput::new("no lowerdir given; add -o lowerdir=DIR[:DIR...]"));
        }
        if config.writable() && config.work.is_none() {
            return Err(BadInput::new(
                "upperdir without workdir; add workdir=DIR, an empty directory on the filesystem of upperdir",
            ));
        }
        let layers = config.lowers.len();
        if layers > LAYERS_MAX {
            return Err(BadInput::new(format!(
                "option lowerdir: {layers} lower layers, more than {LAYERS_MAX}; merge some of them first"
            )));
        }
        Ok(())
    }

    /// Takes one option; false when its name is not known.
    fn apply(&mut self, raw: RawOption<'_>) -> Result<bool, BadInput> {
        let Ok(key) = std::str::from_utf8(raw.key) else { return Ok(false) };
        if table::is_silent(key) {
            return Ok(true);
        }
        match (table::find(key), raw.value) {
            (None | Some(Set::Switch), _) => return Ok(false),
            (Some(Set::Flag(set)), None) => set(self, key),
            (Some(Set::Flag(_)), Some(value)) => {
                return Err(BadInput::value(key, value, "it takes no value", &format!("write {key} alone")));
            }
            (Some(Set::Value(set)), _) => set(self, key, raw)?,
        }
        Ok(true)
    }
}
