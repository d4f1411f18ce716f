//! Rules about a crate's Cargo.toml.

use super::finding::Finding;
use super::sources::Source;
use toml::Table;

pub(super) fn check(source: &Source, findings: &mut Vec<Finding>) {
    let mut fail = |message: &str| findings.push(Finding::new(&source.path, 0, "manifest", message));
    let Ok(manifest) = source.text.parse::<Table>() else {
        return fail("not TOML");
    };
    let Some(package) = manifest.get("package").and_then(|package| package.as_table()) else { return };
    let description = package.get("description").and_then(|value| value.as_str());
    if description.is_none_or(|text| text.trim().is_empty()) {
        fail("no description");
    }
    if package.get("name").and_then(|value| value.as_str()).is_none() {
        fail("no name");
    }
    // A package with a workspace of its own (for fuzzing) has none to take them from.
    let lints =
        manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(|value| value.as_bool());
    if lints != Some(true) && !manifest.contains_key("workspace") {
        fail("does not take the workspace's lints ([lints] workspace = true)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check(&Source::new("crates/x/Cargo.toml", text), &mut findings);
        findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn good() {
        let text = "[package]\nname = \"x\"\ndescription = \"What it is\"\n[lints]\nworkspace = true\n";
        assert!(messages(text).is_empty());
        assert!(messages("[workspace]\nmembers = []\n").is_empty());
        assert!(messages("[workspace]\n[package]\nname = \"x\"\ndescription = \"y\"\n").is_empty());
    }

    #[test]
    fn bad() {
        assert_eq!(messages("[package]\nname = \"x\"\n[lints]\nworkspace = true\n"), ["no description"]);
        let empty = "[package]\nname = \"x\"\ndescription = \" \"\n[lints]\nworkspace = true\n";
        assert_eq!(messages(empty), ["no description"]);
        assert_eq!(messages("[package]\nname = \"x\"\ndescription = \"y\"\n").len(), 1);
        assert_eq!(messages("package"), ["not TOML"]);
    }
}
