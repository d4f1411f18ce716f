//! The 64 bytes that a call begins with, and the 64 bytes that answer it.

use crate::layout::HEAD_WORDS;

/// The core of somebody who did not say on which one he runs.
pub const CORE_UNKNOWN: u32 = u32::MAX;

/// The head of a request. The service sees a private copy, of which only `len` has been checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// What is asked.
    pub opcode: u16,
    /// Of the opcode.
    pub flags: u16,
    /// Bytes of data that go with it.
    pub len: u32,
    /// What the response repeats.
    pub tag: u64,
    /// Of the opcode.
    pub args: [u64; 5],
    /// The core on which the client runs, or [`CORE_UNKNOWN`].
    pub core: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// 0, or an errno.
    pub status: i32,
    /// Bytes of data that go with it.
    pub len: u32,
    /// Of the opcode.
    pub values: [u64; 6],
}

impl Request {
    pub(crate) const fn to_words(self) -> [u64; HEAD_WORDS] {
        let first = self.opcode as u64 | (self.flags as u64) << 16 | (self.len as u64) << 32;
        let [a, b, c, d, e] = self.args;
        [first, self.tag, a, b, c, d, e, self.core as u64]
    }

    pub(crate) const fn from_words(words: [u64; HEAD_WORDS]) -> Self {
        let [first, tag, a, b, c, d, e, core] = words;
        Self {
            opcode: first as u16,
            flags: (first >> 16) as u16,
            len: (first >> 32) as u32,
            tag,
            args: [a, b, c, d, e],
            core: core as u32,
        }
    }
}

impl Response {
    /// A response without data or values.
    #[must_use]
    pub const fn status(status: i32) -> Self {
        Self { status, len: 0, values: [0; 6] }
    }

    pub(crate) const fn to_words(self, tag: u64) -> [u64; HEAD_WORDS] {
        let first = self.status as u32 as u64 | (self.len as u64) << 32;
        let [a, b, c, d, e, f] = self.values;
        [first, tag, a, b, c, d, e, f]
    }

    /// The response and its tag.
    pub(crate) const fn from_words(words: [u64; HEAD_WORDS]) -> (Self, u64) {
        let [first, tag, a, b, c, d, e, f] = words;
        (Self { status: first as i32, len: (first >> 32) as u32, values: [a, b, c, d, e, f] }, tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_go_through_words_unchanged() {
        let request = Request {
            opcode: 0xfedc,
            flags: 3,
            len: u32::MAX,
            tag: 5,
            args: [6, 7, 8, 9, u64::MAX],
            core: 11,
        };
        assert_eq!(Request::from_words(request.to_words()), request);
        let response = Response { status: -110, len: 4096, values: [1, 2, 3, 4, 5, u64::MAX] };
        assert_eq!(Response::from_words(response.to_words(77)), (response, 77));
    }
}
