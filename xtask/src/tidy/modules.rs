//! The modules of a crate, one for each file, and which of them imports from which.
//!
//! An import is a path in a `use`, or anywhere in code, that begins with `crate`, `super` or `self`, or with a module of the
//! file's own. A name that a module only passes on (`use b::Name` in `a`) counts as one of the module that defines it. Items with
//! `#[cfg(test)]` do not count, nor do the files that such items bring in, nor what stands inside macros' brackets.

use super::sources::Source;
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::Visit;
use syn::{Attribute, File, Item, ItemMod, ItemUse, UseTree, Visibility};

/// Longest chain of names passed on that is followed.
const PASSED_ON_MAX: usize = 8;

/// Where a module stands below the crate's root, which is the empty path.
type Path = Vec<String>;

/// The modules of one crate.
pub(super) struct Modules<'a> {
    files: BTreeMap<Path, &'a Source>,
    imports: BTreeMap<Path, BTreeSet<Path>>,
}

impl<'a> Modules<'a> {
    /// Of the crate in `crates/NAME` or another directory, which has its sources in `src`.
    pub(super) fn read(crate_dir: &str, sources: &'a [Source]) -> Self {
        let prefix = format!("{crate_dir}/src/");
        let mut parsed: BTreeMap<Path, (&Source, File)> = BTreeMap::new();
        for source in sources.iter().filter(|source| source.is_rust()) {
            let Some(inside) = source.path.strip_prefix(&prefix) else { continue };
            // What is not Rust is found elsewhere.
            if let Ok(file) = syn::parse_file(&source.text) {
                parsed.insert(path_of(inside), (source, file));
            }
        }
        let tests: BTreeSet<Path> =
            parsed.iter().flat_map(|(path, (_, file))| test_modules(path, file)).collect();
        parsed.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));

        let names: BTreeSet<Path> = parsed.keys().cloned().collect();
        let mut passed_on: BTreeMap<Path, BTreeMap<String, Path>> = BTreeMap::new();
        let mut found: BTreeMap<Path, Vec<Path>> = BTreeMap::new();
        for (path, (_, file)) in &parsed {
            let mut imports =
                Imports { at: path.clone(), names: &names, uses: BTreeMap::new(), paths: Vec::new() };
            imports.visit_file(file);
            passed_on.insert(path.clone(), imports.uses);
            found.insert(path.clone(), imports.paths);
        }
        let imports = found
            .into_iter()
            .map(|(from, paths)| {
                let to = paths.iter().map(|path| definition(path, &names, &passed_on, PASSED_ON_MAX));
                let to = to.filter(|to| *to != from).collect();
                (from, to)
            })
            .collect();
        Self { files: parsed.into_iter().map(|(path, (source, _))| (path, source)).collect(), imports }
    }

    /// The sets of files of which each imports from each, directly or by others, by their paths.
    pub(super) fn cycles(&self) -> Vec<Vec<&'a str>> {
        let reach: BTreeMap<&Path, BTreeSet<&Path>> =
            self.files.keys().map(|path| (path, self.reached(path))).collect();
        let mut done: BTreeSet<&Path> = BTreeSet::new();
        let mut cycles = Vec::new();
        for path in self.files.keys() {
            if done.contains(path) {
                continue;
            }
            let is_back = |other: &&Path| reach.get(*other).is_some_and(|back| back.contains(path));
            let cycle: Vec<&Path> =
                reach.get(path).into_iter().flatten().copied().filter(|other| is_back(other)).collect();
            if cycle.len() > 1 {
                cycles.push(
                    cycle.iter().filter_map(|path| self.files.get(*path)).map(|s| s.path.as_str()).collect(),
                );
            }
            done.extend(cycle);
        }
        cycles
    }

    /// All modules that one imports from, directly or by others.
    fn reached(&self, from: &Path) -> BTreeSet<&Path> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&Path> = self.imports.get(from).into_iter().flatten().collect();
        while let Some(path) = next.pop() {
            if reached.insert(path) {
                next.extend(self.imports.get(path).into_iter().flatten());
            }
        }
        reached
    }
}

/// The module that a file is, by its path below `src`.
fn path_of(inside: &str) -> Path {
    let mut parts: Path = inside.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| last == "mod")
        || (parts.len() == 1 && matches!(parts.first().map(String::as_str), Some("lib" | "main")))
    {
        parts.pop();
    }
    parts
}

/// The modules in files of their own that a file has for tests only.
fn test_modules(path: &Path, file: &File) -> Vec<Path> {
    let modules = file.items.iter().filter_map(|item| match item {
        Item::Mod(module) if module.content.is_none() && is_for_tests(&module.attrs) => Some(module),
        _ => None,
    });
    modules.map(|module| [path.as_slice(), &[module.ident.to_string()]].concat()).collect()
}

/// Whether an item is there in tests only.
pub(super) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_test = attribute.meta.require_list().is_ok_and(|list| {
            list.tokens.clone().into_iter().next().is_some_and(|first| {
                first.to_string() == "test"
                    || (first.to_string() == "all" && list.tokens.to_string().contains("test"))
            })
        });
        attribute.path().is_ident("cfg") && is_test
    })
}

/// The module that defines a name: the longest part of the path that is a module, or another from which that has the name.
fn definition(
    path: &Path,
    names: &BTreeSet<Path>,
    passed_on: &BTreeMap<Path, BTreeMap<String, Path>>,
    left: usize,
) -> Path {
    let mut module = path.clone();
    while !names.contains(&module) && module.pop().is_some() {}
    let from = path.get(module.len()).and_then(|name| passed_on.get(&module)?.get(name));
    match from {
        Some(from) if left > 0 => definition(from, names, passed_on, left - 1),
        _ => module,
    }
}

/// What one file imports.
struct Imports<'a> {
    /// The module that is being looked at: the file, or one within it.
    at: Path,
    names: &'a BTreeSet<Path>,
    /// The names that the file's `use` bring in, and their paths.
    uses: BTreeMap<String, Path>,
    /// Paths of modules and names.
    paths: Vec<Path>,
}

impl Imports<'_> {
    /// A path from the crate's root; None: it is of another crate, or of a name in scope.
    fn absolute(&self, parts: &[String]) -> Option<Path> {
        let (first, rest) = parts.split_first()?;
        let mut path = match first.as_str() {
            "crate" => Path::new(),
            "self" => self.at.clone(),
            "super" => self.at.split_last()?.1.to_vec(),
            _ => {
                let child = [self.at.as_slice(), std::slice::from_ref(first)].concat();
                if !self.names.contains(&child) {
                    return None;
                }
                child
            }
        };
        for part in rest {
            if part == "super" {
                path.pop();
            } else {
                path.push(part.clone());
            }
        }
        Some(path)
    }

    fn uses(&mut self, before: &mut Path, tree: &UseTree, passes_on: bool) {
        let name = |imports: &mut Self, ident: String, shown: String| {
            let mut parts = before.clone();
            // `a::{self}` is `a`.
            if ident != "self" || parts.is_empty() {
                parts.push(ident);
            }
            let Some(path) = imports.absolute(&parts) else { return };
            imports.uses.insert(shown, path.clone());
            if !passes_on {
                imports.paths.push(path);
            }
        };
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.uses(before, &path.tree, passes_on);
                before.pop();
            }
            UseTree::Name(found) => name(self, found.ident.to_string(), found.ident.to_string()),
            UseTree::Rename(found) => name(self, found.ident.to_string(), found.rename.to_string()),
            UseTree::Glob(_) => self.paths.extend(self.absolute(before)),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.uses(before, tree, passes_on);
                }
            }
        }
    }
}

impl<'ast> Visit<'ast> for Imports<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes: &[Attribute] = match item {
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.at.push(item.ident.to_string());
        syn::visit::visit_item_mod(self, item);
        self.at.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let passes_on = !matches!(item.vis, Visibility::Inherited);
        self.uses(&mut Path::new(), &item.tree, passes_on);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Path = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if parts.len() > 1 {
            self.paths.extend(self.absolute(&parts));
        }
        syn::visit::visit_path(self, path);
    }

    // The path of `pub(in path)` imports nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(&format!("crates/x/src/{path}"), text)).collect();
        let cycles = Modules::read("crates/x", &sources).cycles();
        cycles
            .iter()
            .map(|cycle| cycle.iter().map(|path| path.replace("crates/x/src/", "")).collect())
            .collect()
    }

    #[test]
    fn cycles_are_found() {
        let three = |last: &str| {
            cycles(&[("a.rs", "use crate::b::B;"), ("b.rs", "use super::c::{C, D};"), ("c.rs", last)])
        };
        assert_eq!(three("use crate::a::A;"), [["a.rs", "b.rs", "c.rs"]]);
        assert_eq!(three("fn f() { crate::a::f() }"), [["a.rs", "b.rs", "c.rs"]]);
        assert_eq!(three("impl super::a::T for X {}"), [["a.rs", "b.rs", "c.rs"]]);
        assert_eq!(three("use crate::{x::X, a as other};"), [["a.rs", "b.rs", "c.rs"]]);
        assert_eq!(three("use crate::a::*;"), [["a.rs", "b.rs", "c.rs"]]);
        assert_eq!(three("use other::a::A; use crate::b::B;"), [["b.rs", "c.rs"]]);
        assert!(three("use crate::x::X;").is_empty());
    }

    #[test]
    fn tests_do_not_count() {
        let with = |c: &str| cycles(&[("a.rs", "use crate::b::B;"), ("b.rs", c)]);
        assert_eq!(with("mod inner { use crate::a::A; }"), [["a.rs", "b.rs"]]);
        assert!(with("#[cfg(test)] mod tests { use crate::a::A; }").is_empty());
        assert!(with("#[cfg(test)] use crate::a::A;").is_empty());
        assert!(with("#[cfg(all(test, not(shuttle)))] mod tests { use crate::a::A; }").is_empty());
        assert_eq!(with("#[cfg(shuttle)] use crate::a::A;"), [["a.rs", "b.rs"]]);
        let files = [
            ("a.rs", "use crate::b::B;\n#[cfg(test)] mod tests;"),
            ("a/tests.rs", ""),
            ("b.rs", "use crate::a::tests::X;"),
        ];
        // The file with tests is gone, so the path ends at the module above it.
        assert_eq!(cycles(&files), [["a.rs", "b.rs"]]);
        let files = [
            ("a.rs", "#[cfg(test)] mod tests;"),
            ("a/tests.rs", "use crate::b::B;"),
            ("b.rs", "use crate::a::A;"),
        ];
        assert!(cycles(&files).is_empty());
    }

    #[test]
    fn names_count_where_they_are_defined() {
        // `b` takes from the folder `a`, which passes a name of `a/one` on; `a` itself does not import from `b`.
        let files = |one: &str| {
            cycles(&[
                ("a/mod.rs", "mod one; mod two; pub(crate) use one::One; use two::f;"),
                ("a/one.rs", one),
                ("a/two.rs", "use crate::b::B;"),
                ("b.rs", "use crate::a::One;"),
            ])
        };
        assert!(files("").is_empty());
        assert_eq!(files("use super::two;"), [["a/one.rs", "a/two.rs", "b.rs"]]);
        let root = [
            ("lib.rs", "pub use a::A; mod a; mod b;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::A;"),
        ];
        assert_eq!(cycles(&root), [["a.rs", "b.rs"]]);
    }

    #[test]
    fn a_module_of_the_files_own_is_an_import() {
        let files = [("a.rs", "mod b; fn f() { b::f() }"), ("a/b.rs", "use super::A;")];
        assert_eq!(cycles(&files), [["a.rs", "a/b.rs"]]);
    }
}
