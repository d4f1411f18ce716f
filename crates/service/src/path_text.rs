//! Paths and words of the system as plain data: text where they are UTF-8, and otherwise a list of bytes.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// A word of the system to be written.
struct TextWriter<'a>(&'a OsStr);

impl Serialize for TextWriter<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => to.serialize_str(text),
            None => to.collect_seq(self.0.as_bytes()),
        }
    }
}

/// A word of the system that has been read.
struct TextReader(OsString);

impl<'de> Deserialize<'de> for TextReader {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Ear;
        impl<'de> Visitor<'de> for Ear {
            type Value = TextReader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of bytes, without NUL")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<TextReader, E> {
                heard(text.as_bytes().to_vec())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<TextReader, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = list.next_element::<u8>()? {
                    bytes.push(byte);
                }
                heard(bytes)
            }
        }
        from.deserialize_any(Ear)
    }
}

fn heard<E: Error>(bytes: Vec<u8>) -> Result<TextReader, E> {
    if bytes.contains(&0) {
        Err(E::custom("a NUL in a word"))
    } else {
        Ok(TextReader(OsString::from_vec(bytes)))
    }
}

pub(crate) fn serialize<T: AsRef<OsStr>, S: Serializer>(word: &T, to: S) -> Result<S::Ok, S::Error> {
    TextWriter(word.as_ref()).serialize(to)
}

pub(crate) fn deserialize<'de, T: From<OsString>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    TextReader::deserialize(from).map(|TextReader(word)| word.into())
}

/// A value that may be null, and has to be there all the same: serde takes a missing one for null.
pub(crate) fn required<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}

/// A word that may be null, and has to be there all the same.
pub(crate) mod option {
    use super::{Deserialize, Deserializer, OsStr, OsString, Serialize, Serializer, TextReader, TextWriter};

    pub(crate) fn serialize<T: AsRef<OsStr>, S: Serializer>(
        word: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        word.as_ref().map(|word| TextWriter(word.as_ref())).serialize(to)
    }

    pub(crate) fn deserialize<'de, T: From<OsString>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<T>, D::Error> {
        Ok(Option::<TextReader>::deserialize(from)?.map(|TextReader(word)| word.into()))
    }
}
