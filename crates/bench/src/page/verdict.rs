//! Whether a bar is met, in words and in colour.

use super::html::Html;
use super::results::{Bar, Subject};
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
    pub(super) fn of(result: &Subject) -> Self {
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

    pub(super) fn write(self, html: &mut Html) {
        let (class, mark) = match self {
            Self::Met => ("good", "\u{2713} "),
            Self::NotMet => ("bad", "\u{2717} "),
            Self::NotJudged | Self::NoBar => ("muted", ""),
        };
        html.element("span", &[("class", class)], |html| {
            html.text(mark);
            html.text(self.word());
        });
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

/// Words that a reader must not overlook, in a frame.
pub(super) fn tag(html: &mut Html, class: &str, word: &str) {
    html.text(" ");
    html.words("span", &[("class", &format!("tag {class}"))], word);
}

/// What is to be known of a result beside its numbers.
pub(super) fn tags(html: &mut Html, result: &Subject) {
    if result.is_noisy() {
        tag(html, "warn", "noisy");
    }
    if result.failure.is_some() {
        tag(html, "bad", "failed");
    }
}
