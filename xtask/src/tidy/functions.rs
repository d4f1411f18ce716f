//! Rules about functions: none too long, and no method of a public trait without a doc comment.

use super::finding::Finding;
use super::sources::Source;
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::{Attribute, ImplItemFn, ItemFn, ItemTrait, Signature, TraitItem, TraitItemFn, Visibility};

/// A function above this many lines fails; doc comments and attributes do not count. An attribute
/// `#[allow(clippy::too_many_lines, reason = "...")]` lifts the rule.
const FUNCTION_LINES_MAX: usize = 120;

pub(super) fn check(source: &Source, findings: &mut Vec<Finding>) {
    match syn::parse_file(&source.text) {
        Ok(file) => Functions { path: &source.path, findings }.visit_file(&file),
        Err(error) => {
            let line = error.span().start().line;
            findings.push(Finding::new(&source.path, line, "function-length", format!("not Rust: {error}")));
        }
    }
}

struct Functions<'a> {
    path: &'a str,
    findings: &'a mut Vec<Finding>,
}

impl Functions<'_> {
    fn length(&mut self, attributes: &[Attribute], signature: &Signature, end: Span) {
        if attributes.iter().any(allows_length) {
            return;
        }
        let start = signature.span().start().line;
        let lines = end.end().line + 1 - start;
        if lines > FUNCTION_LINES_MAX {
            let name = &signature.ident;
            let message =
                format!("{name} has {lines} lines, more than {FUNCTION_LINES_MAX}; split it by step");
            self.findings.push(Finding::new(self.path, start, "function-length", message));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.length(&item.attrs, &item.sig, item.block.span());
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.length(&item.attrs, &item.sig, item.block.span());
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(block) = &item.default {
            self.length(&item.attrs, &item.sig, block.span());
        }
        syn::visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        if matches!(item.vis, Visibility::Public(_)) {
            for method in &item.items {
                if let TraitItem::Fn(method) = method
                    && !has_doc(&method.attrs)
                {
                    let (line, name) = (method.sig.span().start().line, &method.sig.ident);
                    let message = format!("{}::{name} has no doc comment", item.ident);
                    self.findings.push(Finding::new(self.path, line, "trait-doc", message));
                }
            }
        }
        syn::visit::visit_item_trait(self, item);
    }
}

fn has_doc(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("doc"))
}

/// Whether an attribute allows a long function and says why.
fn allows_length(attribute: &Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let words: Vec<String> = list.tokens.clone().into_iter().map(|token| token.to_string()).collect();
    let has = |word: &str| words.iter().any(|known| known == word);
    (list.path.is_ident("allow") || list.path.is_ident("expect")) && has("too_many_lines") && has("reason")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        check(&Source::new("a.rs", text), &mut findings);
        findings
    }

    fn function(lines: usize) -> String {
        format!("fn f() {{\n{}}}\n", "x();\n".repeat(lines - 2))
    }

    #[test]
    fn functions_up_to_the_limit() {
        assert_eq!(findings(&function(120)), []);
        let long = findings(&format!("/// Doc.\n#[inline]\n{}", function(121)));
        assert_eq!((long[0].line, long[0].rule), (3, "function-length"));
        assert!(long[0].message.contains("121 lines"));
    }

    #[test]
    fn a_reason_lifts_the_rule() {
        let with = |attribute: &str| findings(&format!("{attribute}\n{}", function(121))).len();
        assert_eq!(with("#[allow(clippy::too_many_lines, reason = \"one arm each\")]"), 0);
        assert_eq!(with("#[allow(clippy::too_many_lines)]"), 1);
        assert_eq!(with("#[allow(clippy::other, reason = \"x\")]"), 1);
    }

    #[test]
    fn methods_and_inner_functions_count_too() {
        assert_eq!(findings(&format!("impl X {{ {} }}", function(121))).len(), 1);
        assert_eq!(findings(&format!("mod m {{ trait X {{ {} }} }}", function(121))).len(), 1);
        // The outer one is as long as the inner one.
        assert_eq!(findings(&format!("fn outer() {{ {} }}", function(121))).len(), 2);
    }

    #[test]
    fn methods_of_public_traits_have_docs() {
        assert_eq!(findings("pub trait A { /** Doc. */ fn a(); }"), []);
        assert_eq!(findings("trait A { fn a(); }"), []);
        let bare = findings("pub trait A {\n /// Doc.\n fn a();\n fn b() {}\n}");
        assert_eq!((bare.len(), bare[0].line, bare[0].rule), (1, 4, "trait-doc"));
    }

    #[test]
    fn what_is_not_rust_is_said() {
        assert_eq!(findings("fn x( {").len(), 1);
    }
}
