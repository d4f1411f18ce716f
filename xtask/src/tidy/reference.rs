//! The reference for users is complete.
//!
//! The page of options and the manual name every option of a mount. The page of commands names every subcommand and
//! its options. The table of contents has every page of the book. Each message that the page of remedies quotes is one
//! of the program's.

use super::finding::Finding;
use super::sources::Tree;
use proc_macro2::TokenTree;
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::Visit;
use syn::{Attribute, Field, Item, ItemEnum, LitStr, Type};

const NAMES: &str = "crates/vellum/src/options/names.rs";
const MEANINGS: &str = "crates/vellum/src/options/model.rs";
const PROGRAM: &str = "crates/vellum/src/";
const CRATES: &str = "crates/";
const BOOK: &str = "docs/src/";
const CONTENTS: &str = "docs/src/SUMMARY.md";
const OPTIONS: &str = "docs/src/reference/options.md";
const COMMANDS: &str = "docs/src/reference/commands.md";
const REMEDIES: &str = "docs/src/guide/troubleshooting.md";
const MANUAL: &str = "docs/man/vellum.8";
const RULE: &str = "reference";
/// A shorter part of a message is in every source.
const PART_MIN: usize = 12;

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let mut fail = |path: &str, message: String| findings.push(Finding::new(path, 0, RULE, message));
    if tree.find(OPTIONS).is_none() && tree.find(NAMES).is_none() {
        return;
    }
    let text = |path: &str| tree.find(path).map(|source| source.text.as_str());
    let (Some(names), Some(meanings)) = (text(NAMES), text(MEANINGS)) else {
        return fail(
            NAMES,
            "options are not there any more; say where they are in xtask/src/tidy/reference.rs".into(),
        );
    };
    let options: BTreeSet<String> = listed(names).into_iter().chain(matched(meanings)).collect();
    for page in [OPTIONS, MANUAL] {
        let shown = page_names(text(page).unwrap_or_default());
        for option in options.iter().filter(|option| !shown.contains(option.as_str())) {
            fail(page, format!("option {option} is missing"));
        }
    }
    let program = tree.sources.iter().filter(|source| source.path.starts_with(PROGRAM) && source.is_rust());
    let mut line = CommandLine::default();
    for file in program.filter_map(|source| syn::parse_file(&source.text).ok()) {
        line.visit_file(&file);
    }
    let page = text(COMMANDS).unwrap_or_default();
    let words = page_names(page);
    let is_shown =
        |command: &String| page.contains(&format!("`{command}`")) || page.contains(&format!("`{command} "));
    for command in line.commands().iter().filter(|command| !is_shown(command)) {
        fail(COMMANDS, format!("{command} is missing"));
    }
    for option in line.options.iter().filter(|option| !words.contains(option.as_str())) {
        fail(COMMANDS, format!("option {option} is missing"));
    }
    let contents = text(CONTENTS).unwrap_or_default();
    for page in tree.sources.iter().filter_map(|source| source.path.strip_prefix(BOOK)) {
        if page.ends_with(".md")
            && format!("{BOOK}{page}") != CONTENTS
            && !contents.contains(&format!("]({page})"))
        {
            fail(CONTENTS, format!("{page} is missing"));
        }
    }
    for part in quoted(text(REMEDIES).unwrap_or_default()) {
        let is_said = |text: &str| text.contains(part);
        if !tree.sources.iter().any(|source| source.path.starts_with(CRATES) && is_said(&source.text)) {
            fail(REMEDIES, format!("the program does not say `{part}`"));
        }
    }
}

/// The words of a page that may be names of options: letters, digits and what may stand between them.
fn page_names(text: &str) -> BTreeSet<String> {
    let plain = text.replace("\\-", "-").replace("\\fR", " ").replace("\\fB", " ").replace("\\fI", " ");
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    plain.split(|c: char| !is_part(c)).map(|word| word.trim_end_matches('.').to_owned()).collect()
}

/// The texts in lists of names.
fn listed(source: &str) -> Vec<String> {
    let mut texts = Texts::default();
    for item in syn::parse_file(source).into_iter().flat_map(|file| file.items) {
        if let Item::Const(item) = item {
            texts.visit_expr(&item.expr);
        }
    }
    texts.0
}

/// The texts that a file compares a value with.
fn matched(source: &str) -> Vec<String> {
    #[derive(Default)]
    struct Arms(Texts);
    impl<'ast> Visit<'ast> for Arms {
        fn visit_arm(&mut self, arm: &'ast syn::Arm) {
            self.0.visit_pat(&arm.pat);
            syn::visit::visit_arm(self, arm);
        }
    }
    let mut arms = Arms::default();
    if let Ok(file) = syn::parse_file(source) {
        arms.visit_file(&file);
    }
    arms.0.0
}

#[derive(Default)]
struct Texts(Vec<String>);

impl<'ast> Visit<'ast> for Texts {
    fn visit_lit_str(&mut self, text: &'ast LitStr) {
        self.0.push(text.value());
    }
}

/// What the program's command line is made of: names of subcommands by the enumeration that has them, and options.
#[derive(Default)]
struct CommandLine {
    subcommands: Vec<(String, String)>,
    /// Enumerations that are a part of another one.
    parts: BTreeMap<String, String>,
    options: BTreeSet<String>,
}

impl CommandLine {
    /// The commands in full.
    fn commands(&self) -> Vec<String> {
        let full = |(of, name): &(String, String)| {
            let of = self.parts.get(of).unwrap_or(of);
            match of.strip_suffix("Command") {
                Some("") | None => format!("vellum {name}"),
                Some(group) => format!("vellum {} {name}", kebab(group)),
            }
        };
        // Those that have subcommands are shown by these.
        let all: Vec<String> = self.subcommands.iter().map(full).collect();
        let is_group = |one: &str| all.iter().any(|other| other.starts_with(&format!("{one} ")));
        all.iter().filter(|one| !is_group(one)).cloned().collect()
    }
}

impl<'ast> Visit<'ast> for CommandLine {
    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        if words(&item.attrs, "derive").iter().any(|(word, _)| word == "Subcommand") {
            let of = item.ident.to_string();
            for variant in &item.variants {
                let stated = words(&variant.attrs, "command");
                let is = |what: &str| stated.iter().any(|(word, _)| word == what);
                if is("flatten") {
                    if let Some(Type::Path(part)) = variant.fields.iter().next().map(|field| &field.ty)
                        && let Some(part) = part.path.segments.last()
                    {
                        self.parts.insert(part.ident.to_string(), of.clone());
                    }
                } else if !is("hide") {
                    self.subcommands.push((of.clone(), kebab(&variant.ident.to_string())));
                    syn::visit::visit_variant(self, variant);
                }
            }
        }
    }

    fn visit_field(&mut self, field: &'ast Field) {
        let stated = words(&field.attrs, "arg");
        let is_hidden = stated.iter().any(|(word, _)| word == "hide");
        let long = stated.iter().find(|(word, _)| word == "long").filter(|_| !is_hidden);
        if let (Some((_, name)), Some(ident)) = (long, &field.ident) {
            let name = name.clone().unwrap_or_else(|| ident.to_string().replace('_', "-"));
            self.options.insert(format!("--{name}"));
        }
    }
}

/// The words of an attribute, each with the text that it is set to.
fn words(attributes: &[Attribute], name: &str) -> Vec<(String, Option<String>)> {
    let mut found: Vec<(String, Option<String>)> = Vec::new();
    for list in attributes
        .iter()
        .filter(|one| one.path().is_ident(name))
        .filter_map(|one| one.meta.require_list().ok())
    {
        for token in list.tokens.clone() {
            match token {
                TokenTree::Ident(word) => found.push((word.to_string(), None)),
                TokenTree::Literal(text) => {
                    if let Some((_, value)) = found.last_mut() {
                        *value = Some(text.to_string().trim_matches('"').to_owned());
                    }
                }
                TokenTree::Group(_) | TokenTree::Punct(_) => {}
            }
        }
    }
    found
}

fn kebab(name: &str) -> String {
    let parts = name.char_indices().map(|(at, c)| match c {
        c if c.is_uppercase() && at > 0 => format!("-{}", c.to_ascii_lowercase()),
        c => c.to_ascii_lowercase().to_string(),
    });
    parts.collect()
}

/// The parts of messages in the first column of tables that are the same whatever the message is about.
fn quoted(page: &str) -> Vec<&str> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let parts = cells.flat_map(|(message, _)| message.split('\u{2026}'));
    parts.map(|part| part.trim_matches([' ', ':', ';', ','])).filter(|part| part.len() >= PART_MIN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sources::Source;

    const OPTION_LIST: &str = "const A: &[&str] = &[\"quiet\"];";
    const OPTION_MATCH: &str = "fn f(k: &str) { match k { \"ro\" | \"rw\" => g(\"no\"), _ => {} } }";
    const CLI: &str = "#[derive(Subcommand)] enum Command { Show(X), Pool(Y), #[command(name = Z, hide = true)] Inner { #[arg(long)] no: u8 } }
        #[derive(Debug, Subcommand)] enum PoolCommand { MakeOne { #[arg(short, long)] dry_run: bool }, #[command(flatten)] Tool(ToolCommand) }
        #[derive(Subcommand)] enum ToolCommand { Put }
        struct X { #[arg(long = \"as\", value_name = \"N\")] name: u8, #[arg(long, hide = true)] secret: u8, #[arg(short)] n: u8 }
        fn f() { refuse(\"it is in use; end it\") }";

    fn messages(options: &str, manual: &str, commands: &str, remedies: &str) -> Vec<String> {
        let sources = vec![
            Source::new(NAMES, OPTION_LIST),
            Source::new(MEANINGS, OPTION_MATCH),
            Source::new("crates/vellum/src/cli.rs", CLI),
            Source::new(OPTIONS, options),
            Source::new(MANUAL, manual),
            Source::new(COMMANDS, commands),
            Source::new(REMEDIES, remedies),
            Source::new(
                CONTENTS,
                "[a](reference/options.md) [b](reference/commands.md) [c](guide/troubleshooting.md)",
            ),
        ];
        let mut findings = Vec::new();
        check(&Tree { sources }, &mut findings);
        findings.into_iter().map(|finding| finding.to_string()).collect()
    }

    const PAGE: &str = "`ro`, `rw=N` and quiet.";
    const SHOWN: &str = "`vellum show [--as N]`, `vellum pool make-one` (`--dry-run`), `vellum pool put`";
    const SAID: &str = "| `\u{2026}: it is in use; end it` | Wait. |\n| ENOSPC | `whatever it is` |";

    #[test]
    fn all_is_there() {
        assert_eq!(messages(PAGE, ".BR ro , rw \\- quiet", SHOWN, SAID), Vec::<String>::new());
    }

    #[test]
    fn a_page_without_a_place_is_found() {
        let sources = vec![Source::new(OPTIONS, ""), Source::new(NAMES, ""), Source::new(MEANINGS, "")];
        let mut findings = Vec::new();
        check(&Tree { sources }, &mut findings);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings.iter().any(|finding| finding.path == CONTENTS), "{findings:?}");
    }

    #[test]
    fn what_is_missing_is_named() {
        let found = messages("`ro`", PAGE, "`vellum show`", "| `it is not in use` | x |");
        let missing = [
            "quiet",
            "rw",
            "vellum pool make-one",
            "vellum pool put",
            "--as",
            "--dry-run",
            "it is not in use",
        ];
        assert_eq!(found.len(), missing.len(), "{found:?}");
        for what in missing {
            assert!(found.iter().any(|line| line.contains(what)), "{what}: {found:?}");
        }
    }
}
