//! The protocol of a store socket: one question and one answer after the other, each a head of fixed size and the bytes that it announces.
//!
//! A head is read whole and judged before any of its bytes are waited for. All numbers are little-endian.

use std::io::{self, Read, Write};

/// What a head begins with.
const MAGIC: [u8; 4] = *b"vlsd";
/// Of what is said here. Both ends are of one version, or nothing is done.
pub(super) const VERSION: u16 = 1;
/// Bytes of a question's head.
pub(super) const QUESTION_LEN: usize = 24;
/// Bytes of an answer's head.
const ANSWER_LEN: usize = 20;
/// Bytes of an image that are handed over at once, at the most.
pub const PART_MAX: usize = 1 << 20;
/// What names of checkpoints begin with among a store's objects: no others may be touched here.
pub const PREFIX: &str = "checkpoint/";
/// Longest name, in bytes.
const NAME_MAX: usize = vellum_zoned::store::NAME_MAX;
/// Longest text of an error, in bytes.
const SAID_MAX: usize = 4096;

/// What a question asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Let me in, to read; the offset says 1: and to change.
    Hello = 1,
    /// Which images are there whose names come after this one?
    List = 2,
    /// How large is this one?
    Entry = 3,
    /// Read from the offset on.
    Read = 4,
    Remove = 5,
    /// Make everything durable.
    Settle = 6,
    /// Have the medium take what was written.
    Flush = 7,
    /// Begin an image.
    Begin = 8,
    /// Write these bytes to it.
    Write = 9,
    /// Give it this name.
    Commit = 10,
    /// Leave it.
    GiveUp = 11,
    /// Show the directory of this name, to be read, by the FUSE connection that follows.
    Show = 12,
}

impl Op {
    const ALL: [Self; 12] = [
        Self::Hello,
        Self::List,
        Self::Entry,
        Self::Read,
        Self::Remove,
        Self::Settle,
        Self::Flush,
        Self::Begin,
        Self::Write,
        Self::Commit,
        Self::GiveUp,
        Self::Show,
    ];

    /// Whether a name follows. [`List`](Self::List) may have none, to begin at the beginning.
    const fn has_name(self) -> bool {
        matches!(self, Self::List | Self::Entry | Self::Read | Self::Remove | Self::Commit | Self::Show)
    }
}

/// A question's head, judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) op: Op,
    /// Bytes of the name that follows.
    pub(super) name: usize,
    /// Bytes that are wanted, or that follow to be written; [`PART_MAX`] at the most.
    pub(super) len: usize,
    /// Where in the object.
    pub(super) offset: u64,
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn two(bytes: &[u8], at: usize) -> u16 {
    let some = bytes.get(at..at + 2).and_then(|some| some.try_into().ok());
    u16::from_le_bytes(some.unwrap_or_default())
}

fn four(bytes: &[u8], at: usize) -> u32 {
    let some = bytes.get(at..at + 4).and_then(|some| some.try_into().ok());
    u32::from_le_bytes(some.unwrap_or_default())
}

fn eight(bytes: &[u8], at: usize) -> u64 {
    let some = bytes.get(at..at + 8).and_then(|some| some.try_into().ok());
    u64::from_le_bytes(some.unwrap_or_default())
}

impl Question {
    /// A head as it goes over the socket: magic, version, operation, length of the name, nothing, length, offset.
    fn bytes(&self) -> [u8; QUESTION_LEN] {
        let mut bytes = [0; QUESTION_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&(self.op as u16).to_le_bytes());
        bytes[8..10].copy_from_slice(&(self.name as u16).to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.len as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// A head that somebody has sent. An error: it is none, or asks for what nobody may ask for.
    pub(super) fn parse(bytes: &[u8; QUESTION_LEN]) -> io::Result<Self> {
        if bytes[..4] != MAGIC {
            return Err(bad("no question to a store"));
        }
        if two(bytes, 4) != VERSION {
            return Err(bad("another version of vellum"));
        }
        let number = two(bytes, 6);
        let op =
            Op::ALL.into_iter().find(|op| *op as u16 == number).ok_or_else(|| bad("no such question"))?;
        let question =
            Self { op, name: two(bytes, 8).into(), len: four(bytes, 12) as usize, offset: eight(bytes, 16) };
        let has_name = question.name > 0;
        if two(bytes, 10) != 0
            || has_name && !op.has_name()
            || !has_name && op.has_name() && op != Op::List
            || question.name > NAME_MAX
        {
            return Err(bad("a name where none belongs, or none where one does"));
        }
        let takes_len = matches!(op, Op::Read | Op::Write);
        let takes_offset = matches!(op, Op::Read | Op::Hello);
        if question.len > PART_MAX || question.len > 0 && !takes_len || question.offset > 0 && !takes_offset {
            return Err(bad("a number where none belongs, or one that is too large"));
        }
        Ok(question)
    }

    /// Bytes that follow the head: the name and what is to be written.
    pub(super) const fn follows(&self) -> usize {
        self.name + if matches!(self.op, Op::Write) { self.len } else { 0 }
    }
}

/// The name of an image that may be asked about.
pub(super) fn check_name(name: &[u8]) -> io::Result<&[u8]> {
    match name.strip_prefix(PREFIX.as_bytes()) {
        Some(rest) if !rest.is_empty() && name.len() <= NAME_MAX => Ok(name),
        _ => Err(bad("a name of something else than a checkpoint")),
    }
}

/// Sends a question.
pub(super) fn ask(to: &mut impl Write, op: Op, name: &[u8], len: usize, offset: u64) -> io::Result<()> {
    to.write_all(&Question { op, name: name.len(), len, offset }.bytes())?;
    to.write_all(name)
}

/// How something has gone, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done = 0,
    NotFound = 1,
    NoSpace = 2,
    /// Somebody else is at it.
    Busy = 3,
    /// Why is said.
    Failed = 4,
}

/// Sends an answer: how it has gone, a number, and bytes.
pub(super) fn answer(to: &mut impl Write, outcome: Outcome, value: u64, body: &[u8]) -> io::Result<()> {
    let mut head = [0; ANSWER_LEN];
    head[..4].copy_from_slice(&MAGIC);
    head[4..6].copy_from_slice(&VERSION.to_le_bytes());
    head[6..8].copy_from_slice(&(outcome as u16).to_le_bytes());
    head[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[12..].copy_from_slice(&value.to_le_bytes());
    to.write_all(&head)?;
    to.write_all(body)
}

/// Receives an answer into `into`, of which it says how many bytes it has filled, and a number. An error is what went wrong there, or on the way.
pub(super) fn receive_answer(from: &mut impl Read, into: &mut [u8]) -> io::Result<(u64, usize)> {
    let mut head = [0; ANSWER_LEN];
    from.read_exact(&mut head)?;
    if head[..4] != MAGIC || two(&head, 4) != VERSION {
        return Err(bad(
            "the service that has the store open is of another version; unmount and mount again",
        ));
    }
    let (outcome, len, value) = (two(&head, 6), four(&head, 8) as usize, eight(&head, 12));
    if outcome == Outcome::Done as u16 {
        let into = into.get_mut(..len).ok_or_else(|| bad("more than was asked for"))?;
        from.read_exact(into)?;
        return Ok((value, len));
    }
    if len > SAID_MAX {
        return Err(bad("a reason that is too long"));
    }
    let mut said = vec![0; len];
    from.read_exact(&mut said)?;
    let said = String::from_utf8_lossy(&said).into_owned();
    Err(match outcome {
        1 => io::ErrorKind::NotFound.into(),
        2 => rustix::io::Errno::NOSPC.into(),
        3 => io::Error::new(io::ErrorKind::ResourceBusy, said),
        _ => io::Error::other(said),
    })
}

/// Text of an error, as much of it as may be sent.
pub(super) fn encode_refusal(why: &str) -> &[u8] {
    why.as_bytes().get(..SAID_MAX).unwrap_or(why.as_bytes())
}

/// An image in a list: its size, the length of its name, and that.
pub(super) fn list_one(to: &mut Vec<u8>, name: &[u8], size: u64) {
    to.extend_from_slice(&size.to_le_bytes());
    to.extend_from_slice(&(name.len() as u16).to_le_bytes());
    to.extend_from_slice(name);
}

/// The images of a list.
pub(super) fn listed(mut bytes: &[u8]) -> io::Result<Vec<(Vec<u8>, u64)>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let cut = || bad("a list that is cut off");
        let (head, rest) = bytes.split_at_checked(10).ok_or_else(cut)?;
        let (name, rest) = rest.split_at_checked(two(head, 8).into()).ok_or_else(cut)?;
        all.push((check_name(name)?.to_owned(), eight(head, 0)));
        bytes = rest;
    }
    Ok(all)
}

/// For fuzzing: what comes over a socket, whichever end sends it. True: something of it was a question, an answer or a list.
#[must_use]
pub fn parse_hostile(data: &[u8]) -> bool {
    let mut left = data;
    let mut accepted = false;
    while let Some((head, rest)) = left.split_first_chunk::<QUESTION_LEN>() {
        let Ok(question) = Question::parse(head) else { break };
        assert!(question.len <= PART_MAX && question.follows() <= PART_MAX + NAME_MAX, "bounds");
        let Some((name, rest)) = rest.split_at_checked(question.name) else { break };
        assert_eq!(Question::parse(&question.bytes()).ok(), Some(question), "said again");
        accepted |= name.is_empty() || check_name(name).is_ok();
        left = rest.get(question.follows() - question.name..).unwrap_or_default();
    }
    let mut into = [0; 64];
    let mut from = data;
    while receive_answer(&mut from, &mut into).is_ok() {
        accepted = true;
    }
    accepted | listed(data).is_ok_and(|list| !list.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(op: Op, name: usize, len: usize, offset: u64) -> [u8; QUESTION_LEN] {
        Question { op, name, len, offset }.bytes()
    }

    #[test]
    fn questions_decode_as_encoded() {
        for op in Op::ALL {
            let name = if op.has_name() { 13 } else { 0 };
            let len = if matches!(op, Op::Read | Op::Write) { PART_MAX } else { 0 };
            let offset = u64::from(op == Op::Read) * 7;
            let question = Question::parse(&head(op, name, len, offset)).unwrap();
            assert_eq!(question, Question { op, name, len, offset });
        }
    }

    #[test]
    fn malformed_questions_are_refused() {
        for bytes in [
            head(Op::Read, 13, PART_MAX + 1, 0),
            head(Op::Read, 0, 1, 0),
            head(Op::Remove, 256, 0, 0),
            head(Op::Settle, 1, 0, 0),
            head(Op::Settle, 0, 1, 0),
            head(Op::Write, 0, 1, 1),
        ] {
            assert!(Question::parse(&bytes).is_err(), "{bytes:?}");
        }
        for at in [0, 4, 6, 10] {
            let mut bytes = head(Op::Settle, 0, 0, 0);
            bytes[at] ^= 0x80;
            assert!(Question::parse(&bytes).is_err(), "byte {at}");
        }
        for name in [&b""[..], b"checkpoint/", b"checkpoint", b"file", &[b'x'; 300]] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn answers_and_lists_decode_as_encoded() {
        let mut sent = Vec::new();
        answer(&mut sent, Outcome::Done, 9, b"abc").unwrap();
        let mut into = [0; 3];
        assert_eq!(receive_answer(&mut &sent[..], &mut into).unwrap(), (9, 3));
        assert_eq!(&into, b"abc");
        assert!(receive_answer(&mut &sent[..], &mut into[..2]).is_err());
        let mut sent = Vec::new();
        answer(&mut sent, Outcome::Busy, 0, encode_refusal("why")).unwrap();
        let error = receive_answer(&mut &sent[..], &mut []).unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::ResourceBusy, "why".to_owned()));
        let mut list = Vec::new();
        list_one(&mut list, b"checkpoint/a", 5);
        assert_eq!(listed(&list).unwrap(), [(b"checkpoint/a".to_vec(), 5)]);
        assert!(listed(&list[..list.len() - 1]).is_err());
    }
}
