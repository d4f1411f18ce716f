//! The parser of requests: what it makes of good ones, and that no bytes make it panic.
#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use vellum_fuse::request::{Operation, Request, Target, parse};
use vellum_fuse::wire::{self, InHeader, Opcode};
use vellum_vfs::Errno;
use zerocopy::{FromBytes, IntoBytes};

/// A request with this body and these extensions.
fn message(opcode: u32, body: &[u8], extensions: &[u8]) -> Vec<u8> {
    assert_eq!(extensions.len() % 8, 0);
    let header = InHeader {
        len: (size_of::<InHeader>() + body.len() + extensions.len()) as u32,
        opcode,
        unique: 42,
        nodeid: 7,
        uid: 1,
        gid: 2,
        pid: 3,
        total_extlen: (extensions.len() / 8) as u16,
        padding: 0,
    };
    [header.as_bytes(), body, extensions].concat()
}

fn request(opcode: Opcode, body: &[u8]) -> Vec<u8> {
    message(opcode as u32, body, &[])
}

fn refused(bytes: &[u8]) -> Errno {
    parse(bytes, true).map(|request| format!("{request:?}")).unwrap_err().errno
}

/// A well-formed body for every opcode.
fn good_body(opcode: Opcode) -> Vec<u8> {
    let names = b"from\0to\0".as_slice();
    match opcode {
        Opcode::Lookup | Opcode::Unlink | Opcode::Rmdir | Opcode::Removexattr => b"name\0".to_vec(),
        Opcode::Symlink => names.to_vec(),
        Opcode::Mknod => [wire::MknodIn::default().as_bytes(), names].concat(),
        Opcode::Mkdir => [wire::MkdirIn::default().as_bytes(), names].concat(),
        Opcode::Rename => [wire::RenameIn::default().as_bytes(), names].concat(),
        Opcode::Rename2 => [wire::Rename2In::default().as_bytes(), names].concat(),
        Opcode::Link => [wire::LinkIn::default().as_bytes(), names].concat(),
        Opcode::Create | Opcode::Tmpfile => [wire::CreateIn::default().as_bytes(), names].concat(),
        Opcode::Getxattr => [wire::GetxattrIn::default().as_bytes(), names].concat(),
        Opcode::Setxattr => {
            let head = wire::SetxattrIn { size: 3, flags: 0 };
            let ext = wire::SetxattrExtIn { setxattr_flags: 1, padding: 0 };
            [head.as_bytes(), ext.as_bytes(), b"user.a\0xyz"].concat()
        }
        Opcode::Write => {
            let head = wire::WriteIn { size: 4, ..Default::default() };
            [head.as_bytes(), b"data"].concat()
        }
        Opcode::BatchForget => {
            let head = wire::BatchForgetIn { count: 2, dummy: 0 };
            let one = wire::ForgetOne { nodeid: 5, nlookup: 6 };
            [head.as_bytes(), one.as_bytes(), one.as_bytes()].concat()
        }
        // Longer than any structure; what is too much is left.
        _ => vec![0; 128],
    }
}

#[test]
fn every_opcode_is_parsed() {
    for &opcode in Opcode::ALL {
        let bytes = request(opcode, &good_body(opcode));
        let Request { header, opcode: parsed, .. } = parse(&bytes, true).unwrap();
        assert_eq!((header.unique, parsed), (42, opcode));
    }
}

#[test]
fn arguments_arrive() {
    let bytes = request(Opcode::Setxattr, &good_body(Opcode::Setxattr));
    let Operation::Setxattr { name, value, acl_kill_sgid, .. } = parse(&bytes, true).unwrap().operation
    else {
        panic!("another operation");
    };
    assert_eq!((name, value, acl_kill_sgid), (c"user.a", b"xyz".as_slice(), true));
    let bytes = request(Opcode::BatchForget, &good_body(Opcode::BatchForget));
    let Operation::BatchForget { nodes } = parse(&bytes, true).unwrap().operation else {
        panic!("another operation");
    };
    assert_eq!(nodes.map(|one| one.nlookup).collect::<Vec<_>>(), [6, 6]);
    for (name, is_name) in [(b".\0".as_slice(), false), (b"..\0", false), (b"...\0", true)] {
        let bytes = request(Opcode::Lookup, name);
        let Operation::Lookup { target } = parse(&bytes, true).unwrap().operation else {
            panic!("another operation");
        };
        assert_eq!(matches!(target, Target::Name(_)), is_name);
    }
}

#[test]
fn bad_names_get_their_errno() {
    let long = [vec![b'n'; 256], vec![0]].concat();
    assert_eq!(refused(&request(Opcode::Lookup, &long)), Errno::NAMETOOLONG);
    assert_eq!(refused(&request(Opcode::Unlink, b"\0")), Errno::INVAL);
    assert_eq!(refused(&request(Opcode::Unlink, b"..\0")), Errno::INVAL);
    assert_eq!(refused(&request(Opcode::Unlink, b"a/b\0")), Errno::INVAL);
    assert_eq!(refused(&request(Opcode::Unlink, b"no end")), Errno::IO);
    assert_eq!(refused(&request(Opcode::Removexattr, b"\0")), Errno::INVAL);
    let target = [b"n\0".to_vec(), vec![b't'; 4096], vec![0]].concat();
    assert_eq!(refused(&request(Opcode::Symlink, &target)), Errno::NAMETOOLONG);
}

#[test]
fn bad_lengths_are_refused() {
    assert_eq!(parse(&[0; 39], true).unwrap_err().unique, None);
    assert_eq!(refused(&message(9999, &[], &[])), Errno::NOSYS);
    let mut bytes = request(Opcode::Statfs, &[]);
    for wrong in [0_u32, 39, 41, u32::MAX] {
        bytes[..4].copy_from_slice(&wrong.to_ne_bytes());
        assert_eq!(refused(&bytes), Errno::IO);
    }
    let head = wire::WriteIn { size: 5, ..Default::default() };
    assert_eq!(refused(&request(Opcode::Write, &[head.as_bytes(), b"four"].concat())), Errno::IO);
    let head = wire::BatchForgetIn { count: u32::MAX, dummy: 0 };
    assert_eq!(refused(&request(Opcode::BatchForget, head.as_bytes())), Errno::IO);
    assert_eq!(refused(&request(Opcode::Read, &[0; 39])), Errno::IO);
}

#[test]
fn groups_come_in_an_extension() {
    let ext = |size: u32, kind: u32, rest: &[u32]| {
        let mut bytes = [size.to_ne_bytes(), kind.to_ne_bytes()].concat();
        rest.iter().for_each(|word| bytes.extend_from_slice(&word.to_ne_bytes()));
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    };
    let groups = |extensions: &[u8]| {
        parse(&message(Opcode::Unlink as u32, b"n\0", extensions), true)
            .map(|request| request.groups.as_slice().to_vec())
            .map_err(|bad| bad.errno)
    };
    let security_context = ext(16, 1, &[1, 2]);
    let good = ext(20, wire::EXT_GROUPS, &[2, 100, 200]);
    assert_eq!(groups(&good), Ok(vec![100, 200]));
    assert_eq!(groups(&[security_context, good].concat()), Ok(vec![100, 200]));
    assert_eq!(groups(&ext(4, wire::EXT_GROUPS, &[])), Err(Errno::IO));
    assert_eq!(groups(&ext(16, wire::EXT_GROUPS, &[9, 1])), Err(Errno::IO));
    assert_eq!(groups(&ext(999, wire::EXT_GROUPS, &[0])), Err(Errno::IO));
    let many: Vec<u32> = std::iter::once(100).chain(0..100).collect();
    assert_eq!(groups(&ext(412, wire::EXT_GROUPS, &many)).unwrap().len(), 32);
}

/// Looks at everything, so that nothing borrowed can lie outside.
fn look(bytes: &[u8]) {
    for setxattr_ext in [false, true] {
        if let Ok(request) = parse(bytes, setxattr_ext) {
            assert!(format!("{request:?}").len() > 10);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        look(&bytes);
    }

    #[test]
    fn any_body_is_survived(
        opcode in 0..60_u32,
        body in prop::collection::vec(any::<u8>(), 0..200),
        words in prop::collection::vec(any::<u64>(), 0..6),
    ) {
        look(&message(opcode, &body, words.as_bytes()));
    }

    #[test]
    fn damaged_requests_are_survived(
        which in 0..Opcode::ALL.len(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let opcode = Opcode::ALL[which];
        let mut bytes = message(opcode as u32, &good_body(opcode), &[20, 0, 0, 0, 32, 0, 0, 0, 1, 0, 0, 0, 9, 9, 0, 0]);
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= value;
        }
        look(&bytes);
        // A request cut short, with a header that states the short length.
        let mut short = bytes[..40 + cut.index(bytes.len() - 39)].to_vec();
        let len = short.len() as u32;
        short[..4].copy_from_slice(&len.to_ne_bytes());
        look(&short);
        prop_assert!(InHeader::read_from_prefix(&short).is_ok());
    }
}
