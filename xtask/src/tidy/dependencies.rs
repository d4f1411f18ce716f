//! Which crate may use which: downwards only, as the table of crates in ARCHITECTURE.md says. A front knows the service, the
//! service knows instances, a union knows branches, a branch knows nothing above it.
//!
//! # The form of the table
//! Its header has the columns `crate` and `may use`. A row names a crate between backticks, and the crates of ours that it may
//! use: `-` for none, `all`, or names between backticks, where `vellum-` may be left out. A row names only crates of rows
//! above it, so the table has no cycle.
//!
//! Dev-dependencies are free, as tests may stand anywhere.

use super::finding::Finding;
use super::sources::{Source, Tree};
use toml::{Table, Value};

const DOCUMENT: &str = "ARCHITECTURE.md";
const RULE: &str = "dependencies";

/// A crate of ours, and those of ours that it may use.
struct Row {
    /// From 1.
    line: usize,
    name: String,
    may_use: MayUse,
}

enum MayUse {
    All,
    These(Vec<String>),
}

/// The table.
struct MayUses(Vec<Row>);

/// Checks the table, and every manifest by it.
pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let Some(document) = tree.find(DOCUMENT) else {
        findings.push(Finding::new(DOCUMENT, 0, RULE, "is missing"));
        return;
    };
    let table = MayUses::read(&document.text);
    if table.0.is_empty() {
        findings.push(Finding::new(DOCUMENT, 0, RULE, "has no table with the columns `crate` and `may use`"));
        return;
    }
    table.check_order(findings);
    let manifests: Vec<(&Source, Table, String)> = tree
        .sources
        .iter()
        .filter(|source| source.path.ends_with("Cargo.toml"))
        .filter_map(|source| {
            // What is not TOML is found elsewhere.
            let manifest = source.text.parse::<Table>().ok()?;
            let name = manifest.get("package")?.get("name")?.as_str()?.to_owned();
            Some((source, manifest, name))
        })
        .collect();
    for row in &table.0 {
        if !manifests.iter().any(|(_, _, name)| *name == row.name) {
            let message = format!("the table has {}, which is no crate of this tree", row.name);
            findings.push(Finding::new(DOCUMENT, row.line, RULE, message));
        }
    }
    for (source, manifest, name) in &manifests {
        let mut own = Vec::new();
        table.check_manifest(&source.path, manifest, name, &mut own);
        findings.extend(own.into_iter().filter(|finding| !finding.is_allowed(source)));
    }
}

impl MayUses {
    fn read(text: &str) -> Self {
        let mut rows = Vec::new();
        let mut columns = None;
        for (number, line) in text.lines().enumerate() {
            let Some(cells) = cells(line) else {
                columns = None;
                continue;
            };
            let Some((of_name, of_uses)) = columns else {
                let column = |title: &str| cells.iter().position(|cell| *cell == title);
                columns = column("crate").zip(column("may use"));
                continue;
            };
            let Some(name) = cells.get(of_name).and_then(|cell| ticked(cell).into_iter().next()) else {
                continue;
            };
            let uses = cells.get(of_uses).copied().unwrap_or_default();
            let may_use = match uses {
                "all" => MayUse::All,
                _ => MayUse::These(ticked(uses).into_iter().map(full).collect()),
            };
            rows.push(Row { line: number + 1, name: name.to_owned(), may_use });
        }
        Self(rows)
    }

    /// A row names only crates of rows above it.
    fn check_order(&self, findings: &mut Vec<Finding>) {
        for (at, row) in self.0.iter().enumerate() {
            let MayUse::These(uses) = &row.may_use else { continue };
            for used in uses {
                if !self.0.iter().take(at).any(|above| above.name == *used) {
                    let message = format!("{} names {used}, which has no row above it", row.name);
                    findings.push(Finding::new(DOCUMENT, row.line, RULE, message));
                }
            }
        }
    }

    fn check_manifest(&self, path: &str, manifest: &Table, name: &str, findings: &mut Vec<Finding>) {
        let mut fail = |message: String| findings.push(Finding::new(path, 0, RULE, message));
        let Some(row) = self.0.iter().find(|row| row.name == name) else {
            return fail(format!("{name} is not in the table of {DOCUMENT}; say there what it may use"));
        };
        let targets = manifest.get("target").and_then(Value::as_table);
        let tables =
            targets.into_iter().flat_map(Table::values).filter_map(Value::as_table).chain([manifest]);
        for table in tables {
            for kind in ["dependencies", "build-dependencies"] {
                let used = table.get(kind).and_then(Value::as_table).into_iter().flatten();
                for (key, value) in used {
                    let package = value.get("package").and_then(Value::as_str).unwrap_or(key);
                    let known = self.0.iter().any(|row| row.name == package);
                    if !known && package.starts_with("vellum") {
                        fail(format!("{name} uses {package}, which is not in the table of {DOCUMENT}"));
                    } else if known && !row.may_use.allows(package) {
                        fail(format!(
                            "{name} may not use {package}: dependencies go downwards only, as {DOCUMENT} says"
                        ));
                    }
                }
            }
        }
    }
}

impl MayUse {
    fn allows(&self, package: &str) -> bool {
        match self {
            Self::All => true,
            Self::These(these) => these.iter().any(|known| known == package),
        }
    }
}

/// The cells of a row of a Markdown table; None: the line is no row.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inside = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inside.split('|').map(str::trim).collect())
}

/// The texts between backticks.
fn ticked(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// A crate's name, with `vellum-` where it was left out.
fn full(name: &str) -> String {
    if name.starts_with("vellum") || name == "xtask" { name.to_owned() } else { format!("vellum-{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# A\n\n| crate | may use | lives |\n| --- | --- | --- |\n| `vellum-vfs` | - | words |\n\
        | `vellum-branch` | `vfs` | x |\n| `vellum-union` | `vfs`, `vellum-branch` | x |\n| `vellum-tests` | all | x |\n\n\
        | crate | for |\n| --- | --- |\n| libc | `calls` |\n";
    const NAMES: [&str; 4] = ["vellum-vfs", "vellum-branch", "vellum-union", "vellum-tests"];

    /// What is found where `changed` has `rest` in its manifest, and the others have none.
    fn messages(table: &str, changed: &str, rest: &str) -> Vec<String> {
        let manifest = |name: &str| {
            let rest = if name == changed { rest } else { "" };
            Source::new(
                &format!("crates/{name}/Cargo.toml"),
                &format!("[package]\nname = \"{name}\"\n{rest}"),
            )
        };
        let mut sources: Vec<Source> = NAMES.iter().map(|name| manifest(name)).collect();
        if !NAMES.contains(&changed) && !changed.is_empty() {
            sources.push(manifest(changed));
        }
        sources.push(Source::new(DOCUMENT, table));
        let mut findings = Vec::new();
        check(&Tree { sources }, &mut findings);
        findings.into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn downward_dependencies_pass() {
        let rest = "[dependencies]\nvellum-vfs.workspace = true\nlibc = \"1\"\n[dev-dependencies]\nvellum-tests.workspace = true\n";
        assert!(
            messages(TABLE, "vellum-union", rest).is_empty(),
            "{:?}",
            messages(TABLE, "vellum-union", rest)
        );
        assert!(
            messages(TABLE, "vellum-tests", "[dependencies]\nvellum-union.workspace = true\n").is_empty()
        );
    }

    #[test]
    fn upward_and_sideways_dependencies_fail() {
        for rest in [
            "[dependencies]\nvellum-union.workspace = true\n",
            "[dependencies]\nvellum-union = { path = \"../union\" }\n",
            "[dependencies]\nother = { package = \"vellum-union\", path = \"../union\" }\n",
            "[build-dependencies]\nvellum-union.workspace = true\n",
            "[target.'cfg(unix)'.dependencies]\nvellum-union.workspace = true\n",
        ] {
            assert_eq!(messages(TABLE, "vellum-branch", rest).len(), 1, "{rest}");
        }
    }

    #[test]
    fn a_new_crate_has_to_be_entered() {
        assert_eq!(messages(TABLE, "vellum-new", "").len(), 1);
        assert_eq!(
            messages(TABLE, "vellum-tests", "[dependencies]\nvellum-new.workspace = true\n"),
            [
                "crates/vellum-tests/Cargo.toml: dependencies: vellum-tests uses vellum-new, which is not in the table \
                 of ARCHITECTURE.md"
            ]
        );
        assert_eq!(messages(&TABLE.replace("| `vfs` |", "| - |"), "", "").len(), 0);
    }

    #[test]
    fn the_table_in_the_document_decides() {
        let without = TABLE.replace("| `vfs` |", "| - |");
        let rest = "[dependencies]\nvellum-vfs.workspace = true\n";
        assert!(messages(TABLE, "vellum-branch", rest).is_empty());
        assert_eq!(messages(&without, "vellum-branch", rest).len(), 1);
    }

    #[test]
    fn a_row_names_only_rows_above_and_crates_that_exist() {
        let up = TABLE.replace("| `vfs` |", "| `union` |");
        assert_eq!(
            messages(&up, "", ""),
            ["ARCHITECTURE.md:6: dependencies: vellum-branch names vellum-union, which has no row above it"]
        );
        let gone = TABLE.replace("| `vellum-tests`", "| `vellum-gone` | - | x |\n| `vellum-tests`");
        assert_eq!(messages(&gone, "", "").len(), 1);
        assert_eq!(messages("no table", "", "").len(), 1);
    }
}
