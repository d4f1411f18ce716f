//! The lock order of the union names every lock: the text at the top of `crates/union/src/lib.rs` has the name `Type::field` of each field
//! whose type is, or contains, a `Mutex` or an `RwLock`, and no name of a lock that is gone. A field of a type without field names is known
//! by the type alone. Type aliases of the crate are followed; tests do not count.

use super::finding::Finding;
use super::modules::is_for_tests;
use super::sources::Tree;
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::Visit;
use syn::{Fields, ImplItemFn, Item, ItemStatic, ItemStruct, ItemType, Type};

const SOURCES: &str = "crates/union/src/";
const DOCUMENT: &str = "crates/union/src/lib.rs";
const RULE: &str = "lock-order";
/// The line that the order begins with.
const BEGIN: &str = "//! Locks, in the order";

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let Some(document) = tree.find(DOCUMENT) else { return };
    let files: Vec<(&str, syn::File)> = tree
        .sources
        .iter()
        .filter(|source| source.is_rust() && source.path.starts_with(SOURCES))
        .filter_map(|source| Some((source.path.as_str(), syn::parse_file(&source.text).ok()?)))
        .collect();
    let mut types: BTreeSet<String> = ["Mutex", "RwLock"].map(str::to_owned).into();
    for (_, file) in &files {
        let aliases: Vec<String> = Aliases::of(file, &types);
        types.extend(aliases);
    }
    let mut locks = Locks { types: &types, path: "", found: BTreeMap::new(), functions: BTreeSet::new() };
    for (path, file) in &files {
        locks.path = path;
        locks.visit_file(file);
    }
    let Some(order) = order(&document.text) else {
        findings.push(Finding::new(DOCUMENT, 0, RULE, format!("has no line that begins with `{BEGIN}`")));
        return;
    };
    let named: BTreeSet<&str> =
        order.iter().flat_map(|(_, line)| line.split('`').skip(1).step_by(2)).collect();
    for (name, (path, line)) in &locks.found {
        if !named.contains(name.as_str()) {
            let message = format!("the lock {name} is not in the order of {DOCUMENT}: say when it is taken");
            findings.push(Finding::new(path, *line, RULE, message));
        }
    }
    for (number, line) in &order {
        for name in line.split('`').skip(1).step_by(2) {
            let is_field = |(of, field): &(&str, &str)| {
                of.starts_with(char::is_uppercase) && field.starts_with(char::is_lowercase)
            };
            let is_gone = name.split_once("::").filter(is_field).is_some_and(|(_, field)| {
                !locks.found.contains_key(name) && !locks.functions.contains(field)
            });
            if is_gone {
                findings.push(Finding::new(DOCUMENT, *number, RULE, format!("there is no lock {name}")));
            }
        }
    }
}

/// The lines of the order, from 1.
fn order(text: &str) -> Option<Vec<(usize, &str)>> {
    let doc = text.lines().enumerate().take_while(|(_, line)| line.starts_with("//!"));
    let lines: Vec<(usize, &str)> =
        doc.skip_while(|(_, line)| !line.starts_with(BEGIN)).map(|(at, line)| (at + 1, line)).collect();
    (!lines.is_empty()).then_some(lines)
}

/// Whether a type is a lock, or has one inside.
struct LockSearch<'a> {
    types: &'a BTreeSet<String>,
    found: bool,
}

impl LockSearch<'_> {
    fn has(types: &BTreeSet<String>, of: &Type) -> bool {
        let mut within = LockSearch { types, found: false };
        within.visit_type(of);
        within.found
    }
}

impl<'ast> Visit<'ast> for LockSearch<'_> {
    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        self.found |= self.types.contains(&segment.ident.to_string());
        syn::visit::visit_path_segment(self, segment);
    }
}

/// Type aliases of locks.
struct Aliases<'a> {
    types: &'a BTreeSet<String>,
    found: Vec<String>,
}

impl Aliases<'_> {
    fn of(file: &syn::File, types: &BTreeSet<String>) -> Vec<String> {
        let mut aliases = Aliases { types, found: Vec::new() };
        aliases.visit_file(file);
        aliases.found
    }
}

impl<'ast> Visit<'ast> for Aliases<'_> {
    fn visit_item_type(&mut self, item: &'ast ItemType) {
        // One with parameters of its own is another name of the lock's type, or of one around it.
        if LockSearch::has(self.types, &item.ty) {
            self.found.push(item.ident.to_string());
        }
    }
}

/// The locks of the crate.
struct Locks<'a> {
    types: &'a BTreeSet<String>,
    path: &'a str,
    /// Where they are.
    found: BTreeMap<String, (String, usize)>,
    /// Functions, which the text may name too.
    functions: BTreeSet<String>,
}

impl<'ast> Visit<'ast> for Locks<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let for_tests = match item {
            Item::Mod(item) => is_for_tests(&item.attrs),
            Item::Struct(item) => is_for_tests(&item.attrs),
            _ => false,
        };
        if !for_tests {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        // The lock itself, around that of another crate.
        if self.types.contains(&item.ident.to_string()) {
            return;
        }
        for field in item.fields.iter().filter(|field| LockSearch::has(self.types, &field.ty)) {
            let name = match (&field.ident, &item.fields) {
                (Some(ident), Fields::Named(_)) => format!("{}::{ident}", item.ident),
                _ => item.ident.to_string(),
            };
            let line = item.ident.span().start().line;
            self.found.insert(name, (self.path.to_owned(), line));
        }
    }

    fn visit_item_static(&mut self, item: &'ast ItemStatic) {
        if LockSearch::has(self.types, &item.ty) {
            let line = item.ident.span().start().line;
            self.found.insert(item.ident.to_string(), (self.path.to_owned(), line));
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.functions.insert(item.sig.ident.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sources::Source;

    fn messages(order: &str, code: &str) -> Vec<String> {
        let lib = format!(
            "//! The union.\n//!\n//! Locks, in the order in which they are taken:\n{order}\nmod a;\n"
        );
        let tree =
            Tree { sources: vec![Source::new(DOCUMENT, &lib), Source::new("crates/union/src/a.rs", code)] };
        let mut findings = Vec::new();
        check(&tree, &mut findings);
        findings.into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn every_lock_is_named() {
        let code = "type Shard = Mutex<u8>;\nstruct A { x: Mutex<u8>, y: Box<[crate::sync::RwLock<u8>]>, z: u8 }\n\
            struct B { shards: Vec<Shard> }\nstruct C(Mutex<u8>);\nstatic D: Mutex<u8> = Mutex::new(0);\n\
            pub struct Mutex<T>(parking_lot::Mutex<T>);\nstruct Guard<'a> { held: MutexGuard<'a, u8> }\n#[cfg(test)] mod tests { struct T { x: Mutex<u8> } }\n";
        let order = "//! 1. `A::x`\n//! 2. `A::y` and `B::shards`, then `C`, `D`.";
        assert!(messages(order, code).is_empty(), "{:?}", messages(order, code));
        for gone in ["`A::x`", "`A::y`", "`B::shards`", "`C`", "`D`"] {
            assert_eq!(messages(&order.replace(gone, "it"), code).len(), 1, "{gone}");
        }
        assert_eq!(
            messages(&order.replace("`A::x`", "A::x"), code),
            [
                "crates/union/src/a.rs:2: lock-order: the lock A::x is not in the order of crates/union/src/lib.rs: say when it is taken"
            ]
        );
    }

    #[test]
    fn names_of_no_lock() {
        let code = "struct A { x: Mutex<u8>, y: u8 }\nimpl A { fn lock_names(&self) {} }";
        assert!(messages("//! `A::x`, by `A::lock_names` and `crate::sync`, in `b::c::D`", code).is_empty());
        assert_eq!(messages("//! `A::x` and `A::y`", code).len(), 1);
    }

    #[test]
    fn a_missing_lock_order_is_a_finding() {
        let tree = Tree { sources: vec![Source::new(DOCUMENT, "//! The union.\n")] };
        let mut findings = Vec::new();
        check(&tree, &mut findings);
        assert_eq!(findings.len(), 1);
    }
}
