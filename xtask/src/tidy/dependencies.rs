//! Which crate may use which: downwards only. A front knows the service, the service knows instances, a union knows
//! branches, a branch knows nothing above it.
//!
//! Dev-dependencies are free, as tests may stand anywhere.

use super::{Finding, Source};
use toml::{Table, Value};

/// A crate of ours, and those of ours that it may use.
type Row = (&'static str, &'static [&'static str]);

const BELOW_SERVICE: &[&str] = &[
    "vellum-vfs",
    "vellum-sys",
    "vellum-union",
    "vellum-branch",
    "vellum-cache",
    "vellum-fuse",
    "vellum-ring",
];

const ALL: &[&str] = &[
    "vellum-vfs",
    "vellum-sys",
    "vellum-union",
    "vellum-branch",
    "vellum-cache",
    "vellum-fuse",
    "vellum-ring",
    "vellum-preload",
    "vellum-service",
    "vellum-zoned",
    "vellum-engine",
    "vellum-bench",
    "vellum",
];

/// The table of ARCHITECTURE.md.
const MAY_USE: &[Row] = &[
    ("vellum-vfs", &[]),
    ("vellum-sys", &["vellum-ring"]),
    ("vellum-union", &["vellum-vfs", "vellum-sys"]),
    ("vellum-branch", &["vellum-vfs", "vellum-sys"]),
    ("vellum-cache", &["vellum-vfs"]),
    ("vellum-fuse", &["vellum-vfs", "vellum-sys"]),
    ("vellum-ring", &[]),
    ("vellum-preload", &["vellum-ring"]),
    ("vellum-service", BELOW_SERVICE),
    ("vellum-zoned", &["vellum-vfs"]),
    ("vellum-engine", &["vellum-service"]),
    ("vellum-bench", &["vellum-sys"]),
    ("vellum", ALL),
    ("vellum-tests", ALL),
    ("xtask", &[]),
];

pub(super) fn check(source: &Source, findings: &mut Vec<Finding>) {
    // What is not TOML is found elsewhere.
    let Ok(manifest) = source.text.parse::<Table>() else { return };
    let Some(name) = manifest.get("package").and_then(|package| package.get("name")).and_then(Value::as_str)
    else {
        return;
    };
    let mut fail = |message: String| findings.push(Finding::new(&source.path, 0, "dependencies", message));
    let row = MAY_USE.iter().find(|(known, _)| *known == name).map(|(_, may_use)| *may_use);
    // Fuzz targets feed everything.
    let Some(may_use) = row.or_else(|| name.ends_with("-fuzz").then_some(ALL)) else {
        return fail(format!("{name} is not in the table of crates; say there what it may use"));
    };
    let targets = manifest.get("target").and_then(Value::as_table);
    let tables = targets.into_iter().flat_map(Table::values).filter_map(Value::as_table).chain([&manifest]);
    for table in tables {
        for kind in ["dependencies", "build-dependencies"] {
            let used = table.get(kind).and_then(Value::as_table).into_iter().flatten();
            for (key, value) in used {
                let package = value.get("package").and_then(Value::as_str).unwrap_or(key);
                let ours =
                    MAY_USE.iter().any(|(known, _)| *known == package) || package.starts_with("vellum");
                if ours && !may_use.contains(&package) {
                    fail(format!("{name} may not use {package}: dependencies go downwards only"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(name: &str, rest: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        let text = format!("[package]\nname = \"{name}\"\n{rest}");
        check(&Source::new("crates/x/Cargo.toml", &text), &mut findings);
        findings
    }

    #[test]
    fn downwards_is_fine() {
        let rest = "[dependencies]\nvellum-vfs.workspace = true\nlibc = \"1\"\n[dev-dependencies]\nvellum-branch.workspace = true\n";
        assert_eq!(findings("vellum-union", rest), []);
        assert_eq!(findings("vellum-vfs", ""), []);
        assert_eq!(findings("vellum-fuzz", "[dependencies]\nvellum-fuse.workspace = true\n"), []);
    }

    #[test]
    fn upwards_and_sideways_fail() {
        for rest in [
            "[dependencies]\nvellum-union.workspace = true\n",
            "[dependencies]\nvellum-union = { path = \"../union\" }\n",
            "[dependencies]\nother = { package = \"vellum-union\", path = \"../union\" }\n",
            "[build-dependencies]\nvellum-union.workspace = true\n",
            "[target.'cfg(unix)'.dependencies]\nvellum-union.workspace = true\n",
        ] {
            assert_eq!(findings("vellum-branch", rest).len(), 1, "{rest}");
        }
    }

    #[test]
    fn a_new_crate_has_to_be_entered() {
        assert_eq!(findings("vellum-new", "").len(), 1);
        assert_eq!(findings("vellum", "[dependencies]\nvellum-new.workspace = true\n").len(), 1);
    }

    #[test]
    fn the_table_names_only_itself_and_has_no_cycle() {
        for (name, may_use) in MAY_USE {
            for used in *may_use {
                assert!(MAY_USE.iter().any(|(known, _)| known == used), "{used}");
                let back = MAY_USE.iter().find(|(known, _)| known == used).unwrap().1;
                assert!(name == used || !back.contains(name), "{name} and {used} use each other");
            }
        }
    }
}
