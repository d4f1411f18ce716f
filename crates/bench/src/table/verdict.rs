//! Whether a bar is met.

use super::merged_reports::{Bar, Subject};
use crate::targets::Unit;

/// What became of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Met,
    NotMet,
    /// There is a bar, and nothing to hold against it.
    NotJudged,
    NoBar,
}

impl Verdict {
    pub(super) fn judge(result: &Subject) -> Self {
        match (&result.bar, result.bar_met) {
            (None, _) => Self::NoBar,
            (Some(_), Some(true)) => Self::Met,
            (Some(_), Some(false)) => Self::NotMet,
            (Some(_), None) => Self::NotJudged,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::NotMet => "not met",
            Self::NotJudged => "not judged",
            Self::NoBar => "no bar",
        }
    }
}

/// What the value must not exceed.
pub(super) fn limit(bar: &Bar) -> String {
    let at_most = bar.at_most;
    match bar.unit {
        Unit::TimesOverlayfs => format!("{at_most}\u{a0}×"),
        Unit::TimesHost => format!("{at_most}\u{a0}×\u{a0}host"),
        Unit::TimesAlone => format!("{at_most}\u{a0}×\u{a0}alone"),
        Unit::TimesEqual => format!("{at_most}\u{a0}×\u{a0}equal weights"),
        Unit::PercentOffShare => format!("{at_most}\u{a0}%\u{a0}off"),
        Unit::TimesFuseOverlayfs2 => format!("{at_most}\u{a0}×\u{a0}fuse-overlayfs-2"),
        Unit::Milliseconds => format!("{at_most}\u{a0}ms"),
        Unit::ResidentMib => format!("{at_most}\u{a0}MiB"),
    }
}
