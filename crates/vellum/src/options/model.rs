//! What each option means.

use super::bad_input::BadInput;
use super::cluster::{self, WriteTiming};
use super::names;
use super::tokenizer::{self, RawOption};
use super::values::{
    at_most, block_copy, bytes, choice, id_map, layer, listed, needed, number, os, path, plain, seconds, text,
};
use std::ffi::{OsStr, OsString};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;
use vellum_service::LayerSource;
use vellum_service::config::{
    AccessTimes, BlockMap, Cache, Config, FillAtEnd, LAYERS_MAX, LayerWriters, OverrideStat, Profile,
    Propagation, WEIGHTS, WORKERS_MAX,
};
use vellum_service::layers::ceph::Cluster;
use vellum_service::process::cpu_idle::KeepAwake;

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
    config: Config,
    squash_to_root: bool,
    remount: bool,
    debug: bool,
    pool: Option<OsString>,
    log: Option<String>,
    log_to: LogTarget,
    cache: Option<LayerWriters>,
    cache_size: Option<u64>,
    cluster: Cluster,
    written: WriteTiming,
    /// Somebody has asked for blocks to be filled when the mount has ended.
    fills: bool,
    /// The shorter one of libfuse's two.
    timeout_of_libfuse: Option<Duration>,
    access_times: Option<AccessTimes>,
    /// Reading directories is to leave no times; of files nothing was said.
    nodiratime: bool,
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
                return Err(names::unknown(raw));
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
        if names::is_silent(key) {
            return Ok(true);
        }
        if self.apply_flag(key) {
            return match raw.value {
                None => Ok(true),
                Some(value) => {
                    Err(BadInput::value(key, value, "it takes no value", &format!("write {key} alone")))
                }
            };
        }
        self.apply_value(key, raw)
    }

    fn apply_flag(&mut self, key: &str) -> bool {
        let Self { config, .. } = self;
        match key {
            "ro" => config.flags.read_only = true,
            "rw" => config.flags.read_only = false,
            "dev" => config.flags.dev = Some(true),
            "nodev" => config.flags.dev = Some(false),
            "suid" => config.flags.suid = Some(true),
            "nosuid" => config.flags.suid = Some(false),
            "exec" => config.flags.exec = Some(true),
            "noexec" => config.flags.exec = Some(false),
            "atime" | "relatime" => self.access_times = Some(AccessTimes::Relative),
            "strictatime" => self.access_times = Some(AccessTimes::Always),
            "noatime" => self.access_times = Some(AccessTimes::Never),
            "nodiratime" => self.nodiratime = true,
            "sync" => config.flags.sync = true,
            "async" => config.flags.sync = false,
            "dirsync" => config.flags.dirsync = true,
            "remount" => self.remount = true,
            "debug" => self.debug = true,
            "allow_other" => (config.allow_other, config.allow_root) = (Some(true), false),
            "allow_root" => config.allow_root = true,
            "private" | "rprivate" => config.propagation = Some(Propagation::Private),
            "shared" | "rshared" => config.propagation = Some(Propagation::Shared),
            "slave" | "rslave" => config.propagation = Some(Propagation::Slave),
            "unbindable" | "runbindable" => config.propagation = Some(Propagation::Unbindable),
            "auto_unmount" => config.auto_unmount = true,
            "squash_to_root" => self.squash_to_root = true,
            "static_nlink" => config.static_nlink = true,
            "volatile" => config.volatile = true,
            "no_writeback_cache" => config.write_through = true,
            "idmap" => config.idmap = true,
            "noacl" => config.no_acl = true,
            _ => return false,
        }
        true
    }

    fn apply_value(&mut self, key: &str, raw: RawOption<'_>) -> Result<bool, BadInput> {
        let config = &mut self.config;
        match key {
            "lowerdir" => {
                let text = needed(key, raw, "give it as lowerdir=DIR[:DIR...]")?;
                config.lowers = tokenizer::layers(text).into_iter().map(listed).collect();
            }
            "lowerdir+" => config.lowers.push(layer(plain(key, raw, "give it as lowerdir+=DIR")?)),
            "upperdir" => config.upper = Some(layer(plain(key, raw, "give it as upperdir=DIR")?)),
            "workdir" => config.work = Some(layer(plain(key, raw, "give it as workdir=DIR")?)),
            "uidmapping" => config.uid_map = id_map(key, raw)?,
            "gidmapping" => config.gid_map = id_map(key, raw)?,
            "squash_to_uid" => config.squash_uid = Some(number(key, raw, 0, u32::MAX - 1)?),
            "squash_to_gid" => config.squash_gid = Some(number(key, raw, 0, u32::MAX - 1)?),
            "timeout" => config.timeout = Some(seconds(key, raw)?),
            "attr_timeout" | "entry_timeout" => {
                let time = seconds(key, raw)?;
                let shorter = self.timeout_of_libfuse.map_or(time, |other| other.min(time));
                self.timeout_of_libfuse = Some(shorter);
            }
            "threaded" => {
                if number(key, raw, -1, i32::MAX)? == 0 {
                    self.set_single_threaded();
                }
            }
            "max_threads" => config.workers = at_most(number(key, raw, -1, i32::MAX)?),
            "workers" => config.workers = at_most(number(key, raw, 1, WORKERS_MAX as i32)?),
            "fsync" => config.volatile = number(key, raw, -1, i32::MAX)? == 0,
            "writeback" => {
                config.write_through = raw.value.is_some() && number(key, raw, 0, 1)? == 0;
            }
            "noxattrs" => config.no_xattrs = number(key, raw, -1, i32::MAX)? > 0,
            "xattr_permissions" => {
                config.override_owners = choice(
                    key,
                    raw,
                    &[("0", None), ("1", Some(OverrideStat::Privileged)), ("2", Some(OverrideStat::User))],
                )?;
            }
            "verity" => choice(key, raw, &[("off", ())])?,
            "plugins" => {
                if let Some(value) = raw.value.filter(|value| !value.is_empty()) {
                    let why = "layers by plugins are not supported";
                    return Err(BadInput::value(
                        key,
                        value,
                        why,
                        "leave the option out, give layers as directories",
                    ));
                }
            }
            "profile" => {
                config.profile = choice(key, raw, &Profile::NAMES)?;
            }
            "keep_awake" => {
                let named = [("auto", KeepAwake::Auto), ("on", KeepAwake::On), ("off", KeepAwake::Off)];
                let alone = raw.value.is_none();
                config.keep_awake = if alone { KeepAwake::On } else { choice(key, raw, &named)? };
            }
            "ceph.conf" => self.cluster.conf = Some(path(plain(key, raw, "write ceph.conf=FILE")?)),
            "ceph.id" => self.cluster.id = Some(text(key, raw, "write ceph.id=NAME, without client.")?),
            "ceph.fs" => self.cluster.filesystem = Some(text(key, raw, "write ceph.fs=NAME")?),
            "ceph.write" => self.written.writeback = choice(key, raw, &[("sync", false), ("back", true)])?,
            "ceph.dirty" => {
                self.written.bytes = Some(bytes(key, raw, "write a number of bytes, e.g. 64M")?);
            }
            "ceph.age" => self.written.age = Some(seconds(key, raw)?),
            "cache" => {
                let named = [
                    ("off", None),
                    ("shared", Some(LayerWriters::Shared)),
                    ("immutable", Some(LayerWriters::Immutable)),
                ];
                self.cache = choice(key, raw, &named)?;
            }
            "cache_size" => self.cache_size = Some(bytes(key, raw, "write a number of bytes, e.g. 256M")?),
            "weight" => config.weight = Some(number(key, raw, *WEIGHTS.start(), *WEIGHTS.end())?),
            "block_copy" => config.block_copy = block_copy(key, raw)?,
            "block_map" => {
                let named = [("holes", BlockMap::Holes), ("sidecar", BlockMap::Sidecar)];
                config.block_map = choice(key, raw, &named)?;
            }
            "background_fill" => {
                config.background_fill = Some(bytes(key, raw, "write bytes per second, e.g. 64M")?);
            }
            "fill_at_end" => {
                let most = if raw.value == Some(b"off") {
                    0
                } else {
                    bytes(key, raw, "write off, or the most bytes that may be copied, e.g. 1G")?
                };
                (config.fill_at_end, self.fills) = (FillAtEnd(most), most > 0);
            }
            "log" => self.log = Some(text(key, raw, "write e.g. log=info")?),
            "log_to" => {
                let value = plain(key, raw, "write log_to=stderr, syslog, kmsg or a file's path")?;
                self.log_to = LogTarget::named(value);
            }
            "pool" => self.pool = Some(os(plain(key, raw, "write pool=NAME")?)),
            "fsname" => config.source = Some(os(plain(key, raw, "write fsname=NAME")?)),
            "subtype" => config.subtype = Some(os(plain(key, raw, "write subtype=NAME")?)),
            "max_read" => config.max_read = Some(number(key, raw, 0, u32::MAX)?),
            "context" | "fscontext" | "defcontext" | "rootcontext" => {
                let label = os(plain(key, raw, "write it with a label, or leave it out")?);
                config.labels.retain(|(other, _)| other != key);
                config.labels.push((key.into(), label));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}
