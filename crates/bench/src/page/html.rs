//! HTML as it is being written. Elements are closed by construction, and no text comes in without being escaped.

/// Elements that have no end tag; those of SVG are closed in their start tag.
const VOID: &[&str] = &["br", "link", "meta"];
const EMPTY: &[&str] = &["line", "rect"];

/// What an element says of itself.
pub(super) type Attributes<'a> = &'a [(&'a str, &'a str)];

/// A document, or a part of one.
#[derive(Debug, Default)]
pub(super) struct Html(String);

impl Html {
    /// An element with what `inside` writes.
    pub(super) fn element(&mut self, tag: &str, attributes: Attributes<'_>, inside: impl FnOnce(&mut Self)) {
        self.start(tag, attributes);
        self.0.push('>');
        inside(self);
        self.0.push_str("</");
        self.0.push_str(tag);
        self.0.push('>');
        // Only where white space means nothing: a file of one line is hard to look at.
        if ["section", "tr", "table", "svg", "p", "div", "dl", "head", "header", "main"].contains(&tag) {
            self.0.push('\n');
        }
    }

    /// An element that can have nothing in it.
    pub(super) fn empty(&mut self, tag: &str, attributes: Attributes<'_>) {
        debug_assert!(VOID.contains(&tag) || EMPTY.contains(&tag), "{tag}");
        self.start(tag, attributes);
        self.0.push_str(if VOID.contains(&tag) { ">" } else { "/>" });
    }

    /// An element with nothing but words in it.
    pub(super) fn words(&mut self, tag: &str, attributes: Attributes<'_>, words: &str) {
        self.element(tag, attributes, |html| html.text(words));
    }

    /// Words, as they are.
    pub(super) fn text(&mut self, words: &str) {
        self.0.push_str(&escaped(words));
    }

    /// The document's type, which is no element.
    pub(super) fn doctype(&mut self) {
        self.0.push_str("<!doctype html>\n");
    }

    /// A style sheet of ours: it is not escaped, as browsers do not undo that inside `style`.
    pub(super) fn style(&mut self, sheet: &'static str) {
        self.element("style", &[], |html| html.0.push_str(sheet));
    }

    /// The text of it.
    pub(super) fn finish(self) -> String {
        self.0
    }

    fn start(&mut self, tag: &str, attributes: Attributes<'_>) {
        self.0.push('<');
        self.0.push_str(tag);
        for (name, value) in attributes.iter().filter(|(_, value)| !value.is_empty()) {
            self.0.push_str(&format!(" {name}=\"{}\"", escaped(value)));
        }
    }
}

/// Words that mean themselves, in text and in a quoted attribute.
pub(crate) fn escaped(words: &str) -> String {
    let mut text = String::with_capacity(words.len());
    for character in words.chars() {
        match character {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '"' => text.push_str("&quot;"),
            '\'' => text.push_str("&#39;"),
            // HTML has no way to write these.
            c if c.is_control() && c != '\n' => text.push('\u{fffd}'),
            c => text.push(c),
        }
    }
    text
}

/// Whether every start tag has its end tag, in the right order; the first that has not.
#[cfg(test)]
pub(super) fn unbalanced(text: &str) -> Option<String> {
    let mut open: Vec<&str> = Vec::new();
    for piece in text.split('<').skip(1) {
        let (tag, _) = piece.split_once('>')?;
        let name = tag.split([' ', '/']).find(|word| !word.is_empty()).unwrap_or_default();
        if tag.starts_with('!') || tag.ends_with('/') || VOID.contains(&name) {
            continue;
        }
        match tag.strip_prefix('/') {
            None => open.push(name),
            Some(end) if open.last() == Some(&end) => drop(open.pop()),
            Some(end) => return Some(format!("</{end}> in {open:?}")),
        }
    }
    open.pop().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_words_stay_words() {
        let mut html = Html::default();
        html.words("p", &[("title", "\" onload='x'")], "</p><script>alert(\"1\") & 'x'\0</script>");
        assert_eq!(
            html.finish(),
            "<p title=\"&quot; onload=&#39;x&#39;\">&lt;/p&gt;&lt;script&gt;alert(&quot;1&quot;) &amp; \
             &#39;x&#39;\u{fffd}&lt;/script&gt;</p>\n"
        );
    }

    #[test]
    fn elements_are_closed() {
        let mut html = Html::default();
        html.element("div", &[("class", "")], |html| {
            html.empty("br", &[]);
            html.empty("rect", &[("x", "1")]);
            html.words("b", &[], "x");
        });
        let text = html.finish();
        assert_eq!(text, "<div><br><rect x=\"1\"/><b>x</b></div>\n");
        assert_eq!(unbalanced(&text), None);
        assert!(unbalanced("<div><p></div></p>").is_some());
        assert!(unbalanced("<div><p></p>").is_some());
    }
}
