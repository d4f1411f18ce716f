//! What all tables have in common.

use super::html::Html;

/// A table in a box that it scrolls in, for fingers, for keys, and for readers of screens, which hear its name.
pub(super) fn scrolled(html: &mut Html, class: &str, name: &str, inside: impl FnOnce(&mut Html)) {
    let region = [("class", "scroll"), ("tabindex", "0"), ("role", "region"), ("aria-label", name)];
    html.element("div", &region, |html| html.element("table", &[("class", class)], inside));
}

/// The head of a table: a row of [`head`]s.
pub(super) fn heads(html: &mut Html, inside: impl FnOnce(&mut Html)) {
    html.element("thead", &[], |html| html.element("tr", &[], inside));
}

/// The head of a column.
pub(super) fn head(html: &mut Html, class: &str, name: &str, unit: &str) {
    html.element("th", &[("scope", "col"), ("class", class)], |html| {
        html.text(name);
        if !unit.is_empty() {
            html.words("small", &[], unit);
        }
    });
}
