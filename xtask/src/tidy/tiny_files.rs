//! A file of production code holds an idea, not one expression: such an expression is read beside its only caller.

use super::finding::Finding;
use super::sources::Source;
use syn::{Block, Item};

/// A file with fewer lines of code than this, all of one expression, belongs to its neighbour.
const LINES_MIN: usize = 12;

pub(super) fn check(source: &Source, findings: &mut Vec<Finding>) {
    if !is_production(&source.path) {
        return;
    }
    let lines = source.text.lines().filter(|line| is_code(line)).count();
    if lines >= LINES_MIN {
        return;
    }
    let Ok(file) = syn::parse_file(&source.text) else { return };
    let mut items = file.items.iter().filter(|item| !matches!(item, Item::Use(_)));
    if let (Some(only), None) = (items.next(), items.next())
        && is_one_expression(only)
    {
        let message = format!("holds one expression in {lines} lines; move it to the file that uses it");
        findings.push(Finding::new(&source.path, 0, "crumb", message));
    }
}

/// Whether a file goes into a program that users run.
fn is_production(path: &str) -> bool {
    let mut parts = path.split('/');
    let is_src = parts.next() == Some("crates") && parts.nth(1) == Some("src");
    is_src && !path.ends_with("/lib.rs") && !path.ends_with("/main.rs")
}

/// Whether a line has more on it than a comment, an attribute or an import.
fn is_code(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !["//", "#[", "#![", "use "].iter().any(|start| line.starts_with(start))
}

fn is_one_expression(item: &Item) -> bool {
    match item {
        Item::Fn(function) => is_expression(&function.block),
        Item::Const(_) | Item::Static(_) => true,
        _ => false,
    }
}

fn is_expression(block: &Block) -> bool {
    block.stmts.len() <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        let mut findings = Vec::new();
        check(&Source::new(path, text), &mut findings);
        findings.len()
    }

    #[test]
    fn one_expression_is_no_file() {
        for text in [
            "//! Doc.\nuse a::b;\n\n/// It.\n#[must_use]\npub fn f(x: u8) -> u8 {\n    b(x)\n}\n",
            "const A: u8 = 1;\n",
        ] {
            assert_eq!(count("crates/x/src/a.rs", text), 1, "{text:?}");
        }
    }

    #[test]
    fn files_with_more_than_one_expression_pass() {
        let long = format!("fn f() {{\n    g(\n{}    )\n}}\n", "        1,\n".repeat(8));
        for text in [
            "fn f() {\n    let a = g();\n    h(a)\n}\n",
            "fn f() {}\nfn g() {}\n",
            "pub mod a;\n",
            "struct A;\n",
            // Several files share it.
            "macro_rules! m { () => {} }\n",
            &long,
        ] {
            assert_eq!(count("crates/x/src/a.rs", text), 0, "{text:?}");
        }
    }

    #[test]
    fn the_rule_applies_to_production_code() {
        for path in [
            "crates/x/src/lib.rs",
            "crates/x/src/main.rs",
            "crates/x/tests/a.rs",
            "fuzz/src/a.rs",
            "tests/src/a.rs",
        ] {
            assert_eq!(count(path, "fn f() {}\n"), 0, "{path}");
        }
    }
}
