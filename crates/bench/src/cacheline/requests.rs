//! Whose request a thread of a service has just read.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The length of the header of a FUSE request in bytes, ...
const HEADER: usize = 40;
/// ... and where in it the client's thread is (`fuse_in_header`: len, opcode, unique, nodeid, uid, gid, pid).
const PID: usize = 32;

/// The client of the request that lies in `memory` where something was just read to: (address, bytes). None: it is no request.
/// Some(None): nobody waits for its answer.
pub(super) fn client_of(memory: &File, (at, read): (u64, u64)) -> Option<Option<u32>> {
    if read < HEADER as u64 {
        return None;
    }
    let mut header = [0; HEADER];
    memory.read_exact_at(&mut header, at).ok()?;
    let number = |at: usize| Some(u32::from_ne_bytes(header.get(at..at + 4)?.try_into().ok()?));
    // A request says how long it is; what is read from a file hardly does.
    if u64::from(number(0)?) != read {
        return None;
    }
    Some(number(PID).filter(|pid| *pid != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_request_names_its_client() {
        let mut file = tempfile::tempfile().unwrap();
        let header = |len: u32, pid: u32| {
            let mut bytes = [0xff; HEADER];
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            bytes[PID..PID + 4].copy_from_slice(&pid.to_ne_bytes());
            bytes
        };
        for bytes in [header(48, 7), header(40, 0), header(1, 9)] {
            file.write_all(&bytes).unwrap();
        }
        let at = |number: u64, read| client_of(&file, (number * HEADER as u64, read));
        assert_eq!((at(0, 48), at(1, 40)), (Some(Some(7)), Some(None)));
        assert_eq!((at(0, 47), at(2, 48), at(0, 8), at(9, 48)), (None, None, None, None));
    }
}
