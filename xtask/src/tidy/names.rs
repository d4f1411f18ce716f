//! Names say what a thing is: files and types have nouns of the field, and a question changes nothing.
//!
//! `taken`, `behind` or `polite` name a state or a manner, so nobody can guess what the file or the type holds. Only the last word
//! counts: `PacedWriter` is a writer. A predicate that takes `&mut self` is a command whose name hides that.

use super::finding::Finding;
use super::sources::Source;
use std::path::Path;
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::{FnArg, Ident, ItemMod, Signature};

/// Words that end no name: participles without a common ending, adverbs, prepositions, pronouns, and adjectives of manner.
const REFUSED: &[&str] = &[
    "again",
    "ahead",
    "alone",
    "apart",
    "away",
    "bare",
    "begins",
    "behind",
    "below",
    "beside",
    "both",
    "by",
    "came",
    "deaf",
    "done",
    "elsewhere",
    "ends",
    "far",
    "found",
    "fresh",
    "from",
    "gone",
    "grown",
    "heard",
    "held",
    "here",
    "how",
    "instead",
    "kept",
    "known",
    "laid",
    "left",
    "lent",
    "lost",
    "made",
    "meanwhile",
    "of",
    "others",
    "over",
    "own",
    "plain",
    "polite",
    "rare",
    "said",
    "says",
    "seen",
    "sent",
    "shown",
    "slept",
    "such",
    "there",
    "through",
    "told",
    "warm",
    "what",
    "who",
    "within",
];

/// Words with the ending of a participle that are nouns of the field, or names that it has given to something.
const NOUNS: &[&str] = &[
    // -ed
    "bed",
    "emulated",
    "embed",
    "feed",
    "fuzzed",
    "need",
    "seed",
    "shared",
    "speed",
    "testbed",
    "thread",
    "zoned",
    // -en
    "children",
    "flatten",
    "listen",
    "open",
    "reopen",
    "screen",
    "token",
    // -ing
    "accounting",
    "backing",
    "binding",
    "encoding",
    "finding",
    "framing",
    "greeting",
    "heading",
    "listing",
    "logging",
    "mapping",
    "monitoring",
    "padding",
    "ping",
    "ring",
    "setting",
    "spring",
    "string",
    "timing",
    "tracing",
    "warning",
];

/// What a predicate begins with.
const QUESTIONS: &[&str] = &["is_", "has_", "tells_"];

pub(super) fn check(source: &Source, findings: &mut Vec<Finding>) {
    if let Some(word) = file_word(&source.path).filter(|word| is_refused(word)) {
        let message = format!("`{word}` does not say what the file holds; name it by a noun of the field");
        findings.push(Finding::new(&source.path, 0, "name", message));
    }
    // Another rule reports what is not Rust.
    let Ok(file) = syn::parse_file(&source.text) else { return };
    let is_test = source.path.split('/').any(|part| part == "examples")
        || is_below_tests(&source.path)
        || source.path.ends_with("_test.rs");
    Names { path: &source.path, is_test, findings }.visit_file(&file);
}

fn is_below_tests(path: &str) -> bool {
    let dirs = path.rsplit_once('/').map_or("", |(dirs, _)| dirs);
    // The crate `tests` is the integration runner, whose sources are checked as any other's.
    path.ends_with("/tests.rs") || dirs.split('/').skip(1).any(|part| part == "tests")
}

/// The last word of a file's name, or of its directory's for a `mod.rs`.
fn file_word(path: &str) -> Option<String> {
    let path = Path::new(path);
    let mut stem = path.file_stem()?.to_str()?;
    if stem == "mod" {
        stem = path.parent()?.file_name()?.to_str()?;
    }
    stem.rsplit(['_', '-']).next().map(str::to_owned)
}

/// The last word of a type's name.
fn type_word(name: &str) -> String {
    let start = name.rfind(char::is_uppercase).unwrap_or(0);
    name.get(start..).unwrap_or_default().to_lowercase()
}

fn is_refused(word: &str) -> bool {
    let has_ending =
        ["ed", "en", "ing"].iter().any(|ending| word.len() > ending.len() && word.ends_with(ending));
    REFUSED.contains(&word) || has_ending && !NOUNS.contains(&word)
}

struct Names<'a> {
    path: &'a str,
    is_test: bool,
    findings: &'a mut Vec<Finding>,
}

impl Names<'_> {
    fn type_name(&mut self, name: &Ident) {
        if self.is_test || !is_refused(&type_word(&name.to_string())) {
            return;
        }
        let message = format!("`{name}` does not say what the type is; name it by a noun of the field");
        self.findings.push(Finding::new(self.path, name.span().start().line, "name", message));
    }
}

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.ident != "tests" {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.type_name(&item.ident);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.type_name(&item.ident);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.type_name(&item.ident);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.type_name(&item.ident);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.type_name(&item.ident);
        syn::visit::visit_item_trait(self, item);
    }

    fn visit_signature(&mut self, signature: &'ast Signature) {
        let name = signature.ident.to_string();
        let changes = |input: &FnArg| matches!(input, FnArg::Receiver(own) if own.reference.is_some() && own.mutability.is_some());
        if QUESTIONS.iter().any(|question| name.starts_with(question))
            && signature.inputs.first().is_some_and(changes)
        {
            let message =
                format!("`{name}` takes &mut self: a question changes nothing; name it by what it does");
            self.findings.push(Finding::new(self.path, signature.span().start().line, "predicate", message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        let mut findings = Vec::new();
        check(&Source::new(path, text), &mut findings);
        findings.into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn files_have_nouns() {
        for path in [
            "crates/x/src/kept.rs",
            "crates/x/src/behind/mod.rs",
            "crates/x/src/pacing.rs",
            "tests/src/cases/stopped.rs",
        ] {
            assert_eq!(rules(path, "//! Doc.\n"), ["name"], "{path}");
        }
        for path in [
            "crates/x/src/orphans.rs",
            "crates/x/src/kept_files.rs",
            "crates/zoned/src/ring.rs",
            "crates/x/src/mapping.rs",
        ] {
            assert_eq!(rules(path, "//! Doc.\n"), [""; 0], "{path}");
        }
    }

    #[test]
    fn types_have_nouns() {
        for item in [
            "struct Held;",
            "enum CallMissed {}",
            "trait Making {}",
            "type Of = u8;",
            "mod inner { struct Told; }",
        ] {
            assert_eq!(rules("crates/x/src/a.rs", item), ["name"], "{item}");
        }
        for item in [
            "struct Handle;",
            "struct PacedWriter;",
            "struct String;",
            "mod tests { struct Held; }",
            "trait A { type To; }",
        ] {
            assert_eq!(rules("crates/x/src/a.rs", item), [""; 0], "{item}");
        }
    }

    #[test]
    fn tests_may_have_any_type() {
        for path in [
            "crates/x/tests/a.rs",
            "crates/x/tests/a/b.rs",
            "crates/x/src/tests.rs",
            "crates/x/src/a/tests/b.rs",
            "crates/x/src/a_test.rs",
        ] {
            assert_eq!(rules(path, "struct Held;"), [""; 0], "{path}");
        }
        assert_eq!(rules("tests/src/cases/pool.rs", "struct Held;"), ["name"]);
    }

    #[test]
    fn questions_change_nothing() {
        for item in [
            "fn is_a(&mut self) {}",
            "fn has_b(&mut self, c: u8) -> bool { true }",
            "fn tells_it(&mut self) {}",
        ] {
            assert_eq!(rules("crates/x/src/a.rs", &format!("impl X {{ {item} }}")), ["predicate"], "{item}");
        }
        assert_eq!(rules("crates/x/src/a.rs", "trait X { fn is_a(&mut self) -> bool; }"), ["predicate"]);
        for item in [
            "fn is_a(&self) {}",
            "fn has_b(self) {}",
            "fn has_c(mut self) {}",
            "fn is_d(a: &mut u8) {}",
            "fn issue(&mut self) {}",
        ] {
            assert_eq!(rules("crates/x/src/a.rs", &format!("impl X {{ {item} }}")), [""; 0], "{item}");
        }
    }
}
