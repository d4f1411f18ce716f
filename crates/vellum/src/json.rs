//! What is printed for programs.
// tidy-allow(crumb): six commands share it, and none of them is below another.

use serde::Serialize;
use vellum_service::Failure;

/// A value as JSON that a person can read too.
pub(crate) fn pretty<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|e| Failure::system("cannot print JSON").because(e))
}
