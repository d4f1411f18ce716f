//! The text of `-o`: options between commas, layers between colons, and what escapes both.
//!
//! A backslash makes the next byte ordinary, as in kernel overlayfs: `\,` in any value, `\:` between layers. A value
//! in double quotes holds commas without escapes, as mount(8) and SELinux labels have them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// One option as written: a key and, after `=`, a value with its escapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawOption<'a> {
    /// What is left of the first `=`.
    pub key: &'a [u8],
    /// What is right of it.
    pub value: Option<&'a [u8]>,
}

impl<'a> RawOption<'a> {
    /// The value without its quotes or escapes.
    #[must_use]
    pub fn plain_value(&self) -> Option<Vec<u8>> {
        self.value.map(|value| unquote(value).map_or_else(|| unescape(value), <[u8]>::to_vec))
    }
}

/// The options in `text`. Empty ones (engines write `,,`) are left out.
pub fn options(text: &OsStr) -> impl Iterator<Item = RawOption<'_>> {
    let mut rest = Some(text.as_bytes());
    std::iter::from_fn(move || {
        loop {
            let text = rest?;
            let end = option_end(text);
            let (option, after) = text.split_at_checked(end).unwrap_or((text, &[]));
            rest = after.split_first().map(|(_, after)| after);
            if !option.is_empty() {
                let mut halves = option.splitn(2, |byte| *byte == b'=');
                return Some(RawOption { key: halves.next().unwrap_or(option), value: halves.next() });
            }
        }
    })
}

/// The pieces of `text` between separators that no backslash precedes, escapes kept; empty ones are there, too.
fn pieces(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut escaped = false;
    text.split(move |byte| {
        let splits = *byte == separator && !escaped;
        escaped = *byte == b'\\' && !escaped;
        splits
    })
}

/// A layer in a list of them, without escapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerToken {
    /// Of this host, whatever it is called.
    Local(Vec<u8>),
    /// A path on CephFS.
    Ceph(Vec<u8>),
    /// A path to a device and on in the store there.
    Zoned(Vec<u8>),
}

/// The words before a colon that make what follows a path on CephFS, or in a store on a zoned device.
const CEPH: &[u8] = b"ceph";
const ZONED: &[u8] = b"zoned";

/// The layers in a list between colons; empty ones are left out. The words `ceph` and `zoned` and a colon are no layer, but belong to the next
/// one: a directory of that name is written `./ceph`, or is the last.
pub fn layers(text: &[u8]) -> Vec<LayerToken> {
    let (mut all, mut pieces) = (Vec::new(), pieces(text, b':'));
    while let Some(piece) = pieces.next() {
        let path = if matches!(piece, CEPH | ZONED) { pieces.next() } else { None };
        match path {
            Some(path) if piece == ZONED => all.push(LayerToken::Zoned(unescape(path))),
            Some(path) => all.push(LayerToken::Ceph(unescape(path))),
            None if piece.is_empty() => {}
            None => all.push(LayerToken::Local(unescape(piece))),
        }
    }
    all
}

/// `text` without its backslashes; each makes the byte after it ordinary. One at the very end stays.
#[must_use]
pub fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'\\' => *bytes.next().unwrap_or(byte),
            _ => *byte,
        });
    }
    plain
}

/// `path` so that it is one layer of `lowerdir=`, or one value of any option.
#[must_use]
pub fn escape(path: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(path.len());
    if matches!(path, CEPH | ZONED) {
        text.push(b'\\');
    }
    for (at, byte) in path.iter().enumerate() {
        if matches!(byte, b'\\' | b':' | b',') || (at == 0 && *byte == b'"') {
            text.push(b'\\');
        }
        text.push(*byte);
    }
    text
}

/// Where the first option of `text` ends.
fn option_end(text: &[u8]) -> usize {
    let mut escaped = false;
    let mut skip_to = None;
    for (at, byte) in text.iter().enumerate() {
        if skip_to.is_some_and(|to| at < to) {
            continue;
        }
        match byte {
            b',' if !escaped => return at,
            b'=' if skip_to.is_none() => {
                // Only the first `=` can begin a quoted value.
                let value = text.get(at + 1..).unwrap_or_default();
                skip_to = Some(at + 1 + quoted_len(value));
            }
            _ => {}
        }
        escaped = *byte == b'\\' && !escaped;
    }
    text.len()
}

/// Length of the quoted text with which `value` begins, both quotes included; 0 when it begins with none, or when
/// something other than a comma follows.
fn quoted_len(value: &[u8]) -> usize {
    let Some((b'"', inner)) = value.split_first() else { return 0 };
    let Some(len) = inner.iter().position(|byte| *byte == b'"') else { return 0 };
    match inner.get(len + 1) {
        None | Some(b',') => len + 2,
        Some(_) => 0,
    }
}

fn unquote(value: &[u8]) -> Option<&[u8]> {
    let end = value.len().checked_sub(1)?;
    (quoted_len(value) == value.len()).then(|| value.get(1..end)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<(String, Option<String>)> {
        let text_of = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        options(OsStr::new(text))
            .map(|raw| (text_of(raw.key), raw.plain_value().map(|v| text_of(&v))))
            .collect()
    }

    fn pair(key: &str, value: &str) -> (String, Option<String>) {
        (key.into(), Some(value.into()))
    }

    #[test]
    fn options_are_split_at_commas() {
        assert_eq!(list(""), []);
        assert_eq!(list(",,"), []);
        assert_eq!(list("a=b,,c,"), [pair("a", "b"), ("c".into(), None)]);
        assert_eq!(list("a=b=c"), [pair("a", "b=c")]);
        assert_eq!(list("=x,a="), [pair("", "x"), pair("a", "")]);
    }

    #[test]
    fn escapes_and_quotes_hold_commas() {
        assert_eq!(list(r"u=/a\,b,w=/c\\,d"), [pair("u", "/a,b"), pair("w", r"/c\"), ("d".into(), None)]);
        assert_eq!(list(r#"context="s:c1,c2",ro"#), [pair("context", "s:c1,c2"), ("ro".into(), None)]);
        assert_eq!(list(r#"context="s:c1,c2""#), [pair("context", "s:c1,c2")]);
        assert_eq!(list(r#"u="a,b"c,d"#), [pair("u", "\"a"), ("b\"c".into(), None), ("d".into(), None)]);
        assert_eq!(list(r#"u=""#), [pair("u", "\"")]);
        assert_eq!(list(r#"u="""#), [pair("u", "")]);
        assert_eq!(list(r"u=a\"), [pair("u", r"a\")]);
        assert_eq!(list(r#"a=b="c,d""#), [pair("a", "b=\"c"), ("d\"".into(), None)]);
    }

    #[test]
    fn layers_are_split_at_colons() {
        let local = |paths: &[&str]| -> Vec<LayerToken> {
            paths.iter().map(|path| LayerToken::Local(path.as_bytes().to_vec())).collect()
        };
        assert_eq!(layers(b"/a:/b::/c:"), local(&["/a", "/b", "/c"]));
        assert_eq!(layers(br"/a\:b:/c\\:/d"), local(&["/a:b", r"/c\", "/d"]));
        assert_eq!(layers(b""), []);
    }

    #[test]
    fn a_prefix_selects_the_storage_of_a_layer() {
        let shown = |text: &str| -> Vec<String> {
            let text_of = |path: Vec<u8>| String::from_utf8(path).unwrap();
            let shown = |layer| match layer {
                LayerToken::Local(path) => text_of(path),
                LayerToken::Ceph(path) => format!("<{}>", text_of(path)),
                LayerToken::Zoned(path) => format!("[{}]", text_of(path)),
            };
            layers(text.as_bytes()).into_iter().map(shown).collect()
        };
        assert_eq!(shown("ceph:/a:/b:ceph:c"), ["</a>", "/b", "<c>"]);
        assert_eq!(shown(r"ceph:/a\:b\,:ceph:"), ["</a:b,>", "<>"]);
        assert_eq!(shown("ceph:ceph:ceph"), ["<ceph>", "ceph"]);
        assert_eq!(shown("zoned:/dev/x/a:/b:ceph:zoned:zoned:/c"), ["[/dev/x/a]", "/b", "<zoned>", "[/c]"]);
        assert_eq!(shown(r"\zoned:/a:./zoned"), ["zoned", "/a", "./zoned"]);
        // Not this word, or nothing behind it.
        for list in ["./ceph:/a", "/ceph:/a", "xceph:/a", "/a:ceph"] {
            assert_eq!(shown(list), list.split(':').collect::<Vec<_>>());
        }
        assert_eq!(shown(r"ceph\:/a"), ["ceph:/a"]);
        assert_eq!(shown(r"\ceph:/a"), ["ceph", "/a"]);
    }
}
