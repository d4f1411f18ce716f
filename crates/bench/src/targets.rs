//! What Vellum has to reach, as data.

use crate::contender::Kind;
use serde::{Deserialize, Serialize};

/// In what a bar is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Time as a multiple of kernel overlayfs's in the same round.
    TimesOverlayfs,
    /// Time as a multiple of the host's, a directory without a union, in the same round.
    TimesHost,
    /// Time as a multiple of fuse-overlayfs 2's in the same round.
    #[serde(rename = "times_fuse_overlayfs_2")]
    TimesFuseOverlayfs2,
    /// Time as a multiple of the same subject's in [`ALONE`], in the same round.
    TimesAlone,
    /// Time as a multiple of the same subject's in [`EQUAL`], in the same round.
    TimesEqual,
    /// How far parts of a cache are off their ideal ones, in percent of these.
    PercentOffShare,
    Milliseconds,
    /// MiB of resident memory of the service.
    ResidentMib,
}

impl Unit {
    /// The subject that times are divided by, where they are.
    #[must_use]
    pub fn base(self) -> Option<Kind> {
        match self {
            Self::TimesOverlayfs => Some(Kind::Overlay),
            Self::TimesHost => Some(Kind::Host),
            Self::TimesFuseOverlayfs2 => Some(Kind::FuseOverlayfs2),
            Self::TimesAlone
            | Self::TimesEqual
            | Self::PercentOffShare
            | Self::Milliseconds
            | Self::ResidentMib => None,
        }
    }

    /// The task whose times of the same subject times are divided by, where they are. It comes before those that are judged by it.
    #[must_use]
    pub fn other_task(self) -> Option<&'static str> {
        match self {
            Self::TimesAlone => Some(ALONE),
            Self::TimesEqual => Some(EQUAL),
            _ => None,
        }
    }
}

impl Unit {
    /// What a value must not exceed, for people.
    #[must_use]
    pub fn limit(self, at_most: f64) -> String {
        let what = match self {
            Self::TimesOverlayfs => "\u{d7}",
            Self::TimesHost => "\u{d7} host",
            Self::TimesAlone => "\u{d7} alone",
            Self::TimesEqual => "\u{d7} equal weights",
            Self::PercentOffShare => "% off",
            Self::TimesFuseOverlayfs2 => "\u{d7} fuse-overlayfs-2",
            Self::Milliseconds => "ms",
            Self::ResidentMib => "MiB",
        };
        format!("{at_most} {what}")
    }
}

/// The task that says what a tenant reaches without neighbours.
pub const ALONE: &str = "s2-isolation-alone";
/// The task that says what mounts of equal weights reach together.
pub const EQUAL: &str = "s3-throughput-equal";

/// One bar.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Target {
    pub task: &'static str,
    /// The only one of Vellum's subjects it is for; None: those that have none of their own in this task.
    #[serde(skip)]
    pub subject: Option<Kind>,
    /// The value must not exceed this.
    pub at_most: f64,
    pub unit: Unit,
    /// What fuse-overlayfs 1.10 and 2.0 took on a quiet machine when the bar was set, in the same unit.
    pub peers: Option<(f64, f64)>,
}

const fn bar(task: &'static str, at_most: f64, peers: (f64, f64)) -> Target {
    Target { task, subject: None, at_most, unit: Unit::TimesOverlayfs, peers: Some(peers) }
}

const fn only(subject: Kind, bar: Target) -> Target {
    Target { subject: Some(subject), ..bar }
}

/// A bar for which no peer was measured.
const fn absolute(task: &'static str, at_most: f64) -> Target {
    Target { task, subject: None, at_most, unit: Unit::TimesOverlayfs, peers: None }
}

/// A bar in milliseconds: it holds at any size, so there is nothing to divide by.
const fn milliseconds(task: &'static str, at_most: f64) -> Target {
    Target { unit: Unit::Milliseconds, ..absolute(task, at_most) }
}

/// What every part of Enhanced OverlayFS (Han, 2023) is judged by: 0.8 of the host's speed.
const fn host_speed(task: &'static str) -> Target {
    Target { unit: Unit::TimesHost, ..absolute(task, 1.25) }
}

/// The library against the host itself: what it answers from memory takes no longer than a system call.
const fn library_host(task: &'static str) -> Target {
    only(Kind::VellumLibrary, Target { unit: Unit::TimesHost, ..absolute(task, 1.0) })
}

/// The library against the fastest other union at user level: five times as fast.
const fn library_peer(task: &'static str) -> Target {
    only(Kind::VellumLibrary, Target { unit: Unit::TimesFuseOverlayfs2, ..absolute(task, 0.2) })
}

/// Small reads by the library take half as long as the system call.
const fn library_small(task: &'static str) -> Target {
    only(Kind::VellumLibrary, Target { unit: Unit::TimesHost, ..absolute(task, 0.5) })
}

/// No slower than the fastest other union at user level.
const fn peer_speed(task: &'static str) -> Target {
    Target { unit: Unit::TimesFuseOverlayfs2, ..absolute(task, 1.0) }
}

/// A neighbour costs a tenant at most a twentieth of its speed.
const fn isolated(task: &'static str) -> Target {
    Target { unit: Unit::TimesAlone, ..absolute(task, 1.05) }
}

/// Parts of a cache are within a hundredth of what they should be.
const fn share(task: &'static str) -> Target {
    Target { unit: Unit::PercentOffShare, ..absolute(task, 1.0) }
}

/// All bars.
pub const TARGETS: &[Target] = &[
    bar("open-read", 1.0, (2.9, 4.1)),
    bar("grep", 1.0, (3.7, 3.2)),
    bar("lstat", 0.75, (0.94, 0.89)),
    bar("find-cold", 1.3, (2.4, 2.6)),
    bar("untar", 1.1, (1.6, 1.8)),
    bar("rm-upper", 2.0, (6.1, 4.6)),
    bar("rm-lower", 2.0, (9.7, 24.0)),
    bar("mv-lower", 0.02, (3.7, 3.4)),
    bar("chmod-lower", 0.6, (0.77, 0.69)),
    only(Kind::VellumPassthrough, bar("read-cold", 1.0, (1.24, 1.13))),
    bar("random-read", 0.95, (1.18, 0.95)),
    only(Kind::VellumPassthrough, bar("write-fsync", 1.0, (2.1, 1.05))),
    bar("rewrite-byte", 1.0, (9.6, 13.0)),
    only(Kind::VellumCached, bar("append", 1.0, (4.2, 5.7))),
    bar("append-fsync", 1.1, (1.6, 1.6)),
    absolute("mmap-read", 1.0),
    Target { unit: Unit::ResidentMib, ..absolute("forget-million", 50.0) },
    milliseconds("block-first-1m", 1.0),
    milliseconds("block-first-16m", 1.0),
    milliseconds("block-first-256m", 1.0),
    milliseconds("block-first-1g", 1.0),
    milliseconds("block-first-10g", 1.0),
    absolute("block-same", 1.0),
    absolute("block-others", 1.1),
    absolute("block-stride", 0.6),
    absolute("block-read-lower", 1.0),
    absolute("block-read-half", 1.01),
    absolute("block-random-410", 1.0),
    absolute("block-random-4k", 1.0),
    absolute("block-random-41k", 1.0),
    absolute("block-random-410k", 1.0),
    host_speed("s1-drbl-1"),
    host_speed("s1-drbl-2"),
    host_speed("s1-drbl-4"),
    host_speed("s1-drbl-8"),
    host_speed("s1-drbl-16"),
    host_speed("s1-dwol-1"),
    host_speed("s1-dwol-2"),
    host_speed("s1-dwol-4"),
    host_speed("s1-dwol-8"),
    host_speed("s1-dwol-16"),
    absolute("s2-append", 0.1),
    absolute("s2-shared-read", 1.0),
    absolute("s2-start-up-1", 1.1),
    absolute("s2-start-up-16", 1.1),
    absolute("s2-start-up-64", 1.1),
    absolute("s2-start-up-256", 1.1),
    only(Kind::VellumLibrary, absolute("untar", 1.3)),
    library_host("s1-drbl-1"),
    library_host("s1-drbl-2"),
    library_host("s1-drbl-4"),
    library_host("s1-drbl-8"),
    library_host("s1-drbl-16"),
    library_host("s1-dwol-1"),
    library_host("s1-dwol-2"),
    library_host("s1-dwol-4"),
    library_host("s1-dwol-8"),
    library_host("s1-dwol-16"),
    library_host("s1-oltp"),
    library_peer("s1-create-1"),
    library_peer("s1-create-2"),
    library_peer("s1-create-4"),
    library_small("s1-small-read-1"),
    library_small("s1-small-read-2"),
    isolated("s2-isolation-random"),
    isolated("s2-isolation-web"),
    isolated("s2-isolation-cpu"),
    peer_speed("s2-rocksdb-put-1"),
    peer_speed("s2-rocksdb-put-2"),
    peer_speed("s2-rocksdb-put-4"),
    peer_speed("s2-rocksdb-get-1"),
    peer_speed("s2-rocksdb-get-2"),
    peer_speed("s2-rocksdb-get-4"),
    share("s3-shares-four"),
    share("s3-shares-equal"),
    share("s3-shares-one-file"),
    milliseconds("s3-idle", 10_000.0),
    Target { unit: Unit::TimesEqual, ..absolute("s3-throughput-four", 1.02) },
];

/// The bar that `kind` has to reach in `task`: its own, or else that of all.
#[must_use]
pub fn target_for(task: &str, kind: Kind) -> Option<&'static Target> {
    let of = |subject| TARGETS.iter().find(|bar| bar.task == task && bar.subject == subject);
    of(Some(kind)).or_else(|| of(None).filter(|_| kind.is_vellum()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::TASKS;

    #[test]
    fn every_bar_is_of_a_task() {
        for bar in TARGETS {
            assert!(TASKS.iter().any(|task| task.name == bar.task), "{}", bar.task);
        }
        assert_eq!(TARGETS.len(), 78);
    }

    #[test]
    fn bars_are_for_vellum_and_for_the_right_subject() {
        assert!(target_for("grep", Kind::VellumCached).is_some());
        assert!(target_for("grep", Kind::FuseOverlayfs).is_none());
        assert!(target_for("append", Kind::VellumCached).is_some());
        assert!(target_for("append", Kind::VellumPassthrough).is_none());
        assert!(target_for("untar-warm", Kind::VellumCached).is_none());
        let of = |task, kind| target_for(task, kind).map(|bar| (bar.at_most, bar.unit));
        assert_eq!(of("untar", Kind::VellumLibrary), Some((1.3, Unit::TimesOverlayfs)));
        assert_eq!(of("untar", Kind::VellumPassthrough), Some((1.1, Unit::TimesOverlayfs)));
        assert_eq!(of("s1-dwol-2", Kind::VellumLibrary), Some((1.0, Unit::TimesHost)));
        assert_eq!(of("s1-dwol-2", Kind::VellumCached), Some((1.25, Unit::TimesHost)));
        assert_eq!(of("s1-create-4", Kind::VellumLibrary), Some((0.2, Unit::TimesFuseOverlayfs2)));
        assert!(of("s1-stat-4", Kind::VellumLibrary).is_none());
        assert!(of("s1-create-4", Kind::VellumPassthrough).is_none() && of("untar", Kind::Host).is_none());
    }
}
