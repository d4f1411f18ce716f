//! What calibration has found.

use crate::store::Placement;

/// What can be said of a device's zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Zones have groups.
    Groups,
    /// No groups: every two zones disturb each other.
    AllDisturb,
    /// No groups: no two zones disturb each other more than others do.
    NoneDisturb,
    /// No groups: some disturb each other, without a rule.
    Irregular,
    /// No groups: a file or a disk without zones of its own.
    WithoutZones,
    /// Nothing is known: too few zones are empty.
    TooFewEmpty,
    /// Nothing is known: the time was over.
    OutOfTime,
}

impl Verdict {
    /// In words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Groups => "zones have groups",
            Self::AllDisturb => "no groups: every two zones disturb each other",
            Self::NoneDisturb => "no groups: no two zones disturb each other more than others do",
            Self::Irregular => "no groups: some zones disturb each other, but by no rule that was found",
            Self::WithoutZones => "no groups: a file or a disk without zones of its own",
            Self::TooFewEmpty => "nothing found: too few zones are empty",
            Self::OutOfTime => "nothing found: the time was over",
        }
    }

    /// In one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Groups => "groups",
            Self::AllDisturb => "all-disturb",
            Self::NoneDisturb => "none-disturb",
            Self::Irregular => "irregular",
            Self::WithoutZones => "without-zones",
            Self::TooFewEmpty => "too-few-empty",
            Self::OutOfTime => "out-of-time",
        }
    }
}

/// How a zone is used beside another one that is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NeighbourUse {
    /// Where the other one is.
    pub place: &'static str,
    /// What two readers have, as a part of what one has alone.
    pub readers: f64,
    /// What two writers have, likewise.
    pub writers: f64,
    /// How many times as long small reads take beside a writer.
    pub reads_wait: f64,
    /// How many times as long small writes take beside a writer: much more than once where the write buffer is shared.
    pub writes_wait: f64,
}

/// What calibration has found.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// What can be said.
    pub verdict: Verdict,
    /// Groups of zones, by the rest of a zone's number divided by this; 1: none.
    pub groups: u32,
    /// Zones so far from each other are on one die.
    pub dies: Option<u32>,
    /// What one zone alone is read with, in bytes per second; 0: not measured.
    pub read_rate: u64,
    /// What one zone alone is written with, likewise.
    pub write_rate: u64,
    /// How zones are used side by side.
    pub beside: Vec<NeighbourUse>,
    /// Pairs of zones that were tried.
    pub pairs: u64,
}

impl Findings {
    pub(super) fn unknown(verdict: Verdict) -> Self {
        Self { verdict, groups: 1, dies: None, read_rate: 0, write_rate: 0, beside: Vec::new(), pairs: 0 }
    }

    pub(super) fn without_zones() -> Self {
        Self::unknown(Verdict::WithoutZones)
    }

    /// Which zones images should have: a quarter of the groups, and side by side as many zones as these have dies.
    #[must_use]
    pub fn placement(&self) -> Placement {
        if self.groups < 2 {
            return Placement::NONE;
        }
        let checkpoint_groups = (self.groups / 4).max(1);
        let dies_per_group = self.dies.map_or(1, |dies| dies / self.groups);
        let stripe = (checkpoint_groups * dies_per_group).clamp(1, 64);
        Placement { groups: self.groups, checkpoint_groups, stripe }
    }

    /// Whether the write buffer is everybody's: then images have to be paced, wherever they are.
    #[must_use]
    pub fn is_buffer_shared(&self) -> bool {
        self.beside.last().is_some_and(|beside| beside.writes_wait > 2.0)
    }
}
