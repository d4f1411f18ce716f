//! What ioctl(2) asks of files: their flags (lsattr(1), chattr(1)).
//!
//! The kernel checks who may change them, and asks in a form of its own, without an address of the caller. What a caller's ioctl(2)
//! brings here as it is has not been checked at all, and changes nothing.

use crate::answer::dispatch::Answer;
use crate::wire::{Fsxattr, IoctlIn, IoctlOut};
use rustix::fs::IFlags;
use rustix::io::Errno;
use vellum_vfs::{Context, Error, Filesystem, NodeId};
use zerocopy::{FromBytes, IntoBytes};

const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_XFLAGS: u32 = 0x801c_581f;
const SET_XFLAGS: u32 = 0x401c_5820;

/// Flags that have a name in both forms: in `struct fsxattr`, and alone.
const BOTH: [(u32, IFlags); 5] = [
    (0x08, IFlags::IMMUTABLE),
    (0x10, IFlags::APPEND),
    (0x20, IFlags::SYNC),
    (0x40, IFlags::NOATIME),
    (0x80, IFlags::NODUMP),
];

/// Answers IOCTL.
pub(crate) fn answer<F: Filesystem + ?Sized>(
    fs: &F,
    cx: &Context<'_>,
    node: NodeId,
    (args, data): (&IoctlIn, &[u8]),
    body: &mut [u8],
) -> Result<Answer, Error> {
    let by_kernel = args.arg == 0;
    match args.cmd {
        GET_FLAGS | SET_FLAGS | GET_XFLAGS | SET_XFLAGS if !by_kernel => Err(Errno::OPNOTSUPP.into()),
        GET_FLAGS => ioctl_answer(args, body, fs.flags(cx, node)?.as_bytes()),
        SET_FLAGS => {
            let (flags, _) = u32::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
            fs.set_flags(cx, node, flags)?;
            ioctl_answer(args, body, &[])
        }
        // Project ids and sizes of extents are the layer's own.
        GET_XFLAGS => {
            let xflags = xflags_of(fs.flags(cx, node)?);
            ioctl_answer(args, body, Fsxattr { xflags, ..Fsxattr::default() }.as_bytes())
        }
        SET_XFLAGS => {
            let (wanted, _) = Fsxattr::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
            if wanted.extsize != 0 || wanted.projid != 0 || wanted.cowextsize != 0 {
                return Err(Errno::OPNOTSUPP.into());
            }
            let now = fs.flags(cx, node)?;
            fs.set_flags(cx, node, with_xflags(now, wanted.xflags)?)?;
            ioctl_answer(args, body, &[])
        }
        _ => Ok(Answer::Status(Errno::NOTTY)),
    }
}

/// An answer of the length that is expected.
fn ioctl_answer(args: &IoctlIn, body: &mut [u8], data: &[u8]) -> Result<Answer, Error> {
    let head = size_of::<IoctlOut>();
    let len = head + args.out_size as usize;
    let room = body.get_mut(..len).filter(|_| args.out_size as usize >= data.len()).ok_or(Errno::INVAL)?;
    room.fill(0);
    IoctlOut::default().write_to_prefix(room).map_err(|_| Errno::IO)?;
    room.iter_mut().skip(head).zip(data).for_each(|(to, from)| *to = *from);
    Ok(Answer::Body(len))
}

fn xflags_of(flags: u32) -> u32 {
    BOTH.iter().filter(|(_, flag)| flags & flag.bits() != 0).map(|(xflag, _)| xflag).sum()
}

/// The flags with those of the other form in their place. EOPNOTSUPP: one of them is not known here.
fn with_xflags(flags: u32, xflags: u32) -> Result<u32, Error> {
    let known: u32 = BOTH.iter().map(|(xflag, _)| xflag).sum();
    if xflags & !known != 0 {
        return Err(Errno::OPNOTSUPP.into());
    }
    let (both, wanted) = BOTH.iter().fold((0, 0), |(both, wanted), (xflag, flag)| {
        (both | flag.bits(), if xflags & xflag != 0 { wanted | flag.bits() } else { wanted })
    });
    Ok(flags & !both | wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_flag_encodings_agree() {
        let extent = 0x8_0000;
        assert_eq!(xflags_of(extent | 0x80 | 0x40), 0x40 | 0x80);
        assert_eq!(with_xflags(extent | 0x80, 0x80).unwrap(), extent | 0x40);
        assert!(with_xflags(0, 0x200).is_err());
    }

    #[test]
    fn an_answer_has_the_length_that_is_expected() {
        let mut body = [7; 64];
        let args = IoctlIn { out_size: 28, ..IoctlIn::default() };
        assert_eq!(ioctl_answer(&args, &mut body, &[1, 2]).unwrap(), Answer::Body(44));
        assert_eq!((&body[16..19], body[43], body[44]), (&[1, 2, 0][..], 0, 7));
        assert!(ioctl_answer(&IoctlIn { out_size: 1, ..args }, &mut body, &[1, 2]).is_err());
        assert!(ioctl_answer(&IoctlIn { out_size: u32::MAX, ..args }, &mut body, &[]).is_err());
    }
}
