//! What was found about one subject.

use serde::Serialize;

/// How a subject stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// Nothing to do.
    Ok,
    /// Something works only in part, or is not installed.
    Note,
    /// Something does not work until its remedy has been applied.
    Problem,
}

/// One subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub(super) subject: String,
    pub(super) grade: Grade,
    pub(super) finding: String,
    pub(super) remedy: Option<String>,
}

impl Check {
    pub(super) fn ok(subject: impl Into<String>, finding: impl Into<String>) -> Self {
        Self { subject: subject.into(), grade: Grade::Ok, finding: finding.into(), remedy: None }
    }

    pub(super) fn note(subject: impl Into<String>, finding: impl Into<String>) -> Self {
        Self { grade: Grade::Note, ..Self::ok(subject, finding) }
    }

    pub(super) fn problem(
        subject: impl Into<String>,
        finding: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { grade: Grade::Problem, ..Self::ok(subject, finding) }.remedy(remedy)
    }

    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}
