//! Every method of a public trait has a doc comment, and every Rust file is Rust.

use super::finding::Finding;
use super::sources::Source;
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::{ItemTrait, TraitItem, Visibility};

const RULE: &str = "trait-doc";

pub(super) fn check(source: &Source, findings: &mut Vec<Finding>) {
    match syn::parse_file(&source.text) {
        Ok(file) => Traits { path: &source.path, findings }.visit_file(&file),
        Err(error) => {
            let line = error.span().start().line;
            findings.push(Finding::new(&source.path, line, RULE, format!("not Rust: {error}")));
        }
    }
}

struct Traits<'a> {
    path: &'a str,
    findings: &'a mut Vec<Finding>,
}

impl<'ast> Visit<'ast> for Traits<'_> {
    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        if matches!(item.vis, Visibility::Public(_)) {
            for method in &item.items {
                if let TraitItem::Fn(method) = method
                    && !method.attrs.iter().any(|attribute| attribute.path().is_ident("doc"))
                {
                    let (line, name) = (method.sig.span().start().line, &method.sig.ident);
                    let message = format!("{}::{name} has no doc comment", item.ident);
                    self.findings.push(Finding::new(self.path, line, RULE, message));
                }
            }
        }
        syn::visit::visit_item_trait(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        check(&Source::new("a.rs", text), &mut findings);
        findings
    }

    #[test]
    fn methods_of_public_traits_have_docs() {
        assert_eq!(findings("pub trait A { /** Doc. */ fn a(); }"), []);
        assert_eq!(findings("trait A { fn a(); }"), []);
        let bare = findings("pub trait A {\n /// Doc.\n fn a();\n fn b() {}\n}");
        assert_eq!((bare.len(), bare[0].line, bare[0].rule), (1, 4, "trait-doc"));
    }

    #[test]
    fn invalid_rust_is_reported() {
        assert_eq!(findings("fn x( {").len(), 1);
    }
}
