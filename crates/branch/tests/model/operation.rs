//! Random operations: few names, few objects, so that they meet.

use proptest::prelude::*;
use std::ffi::CStr;

pub const NAMES: [&CStr; 4] = [c"a", c"b", c"c", c"d"];
/// Places for held directories (the first is always the root), files and handles.
pub const SLOTS: usize = 4;

pub const ATTRIBUTES: [&CStr; 9] = [
    c"user.one",
    c"user.two",
    c"trusted.overlay.x",
    c"security.other",
    c"security.capability",
    c"system.posix_acl_access",
    c"system.posix_acl_default",
    c"unknown.x",
    c"user.",
];

/// Which object an operation on any object is about.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    Dir(usize),
    File(usize),
    Handle(usize),
}

/// A name in a held directory.
#[derive(Clone, Copy, Debug)]
pub struct At {
    pub dir: usize,
    pub name: usize,
}

#[derive(Clone, Debug)]
pub enum Operation {
    Create(At, u32, usize),
    CreateUnnamed(usize, u32, usize),
    MakeDir(At, u32),
    MakeNode(At, u32, u64),
    MakeSymlink(At, usize),
    Remove(At),
    RemoveDir(At),
    Link(At, At),
    LinkObject(Target, At),
    Rename(At, At, u32),
    OpenDir(At, usize),
    OpenPath(usize, usize),
    OpenFile(At, u32, usize),
    Hold(At, usize),
    Reopen(Target, u32, usize),
    Close(Target),
    Write(usize, u64, usize, u8),
    Read(usize, u64, usize),
    Truncate(usize, u64),
    Allocate(usize, u32, u64, u64),
    Seek(usize, u64, bool),
    CopyRange { to: usize, to_offset: u64, from: usize, from_offset: u64, len: u64 },
    CloneFrom(usize, usize),
    Stat(Target),
    StatAt(At),
    SetMode(Target, u32),
    SetModeAt(At, u32),
    SetOwner(Target, Option<u32>, Option<u32>),
    SetOwnerAt(At, Option<u32>, Option<u32>),
    SetTimes(Target, Option<i64>, Option<i64>),
    SetTimesAt(At, Option<i64>, Option<i64>),
    SetXattr(Target, usize, Vec<u8>, u32),
    GetXattr(Target, usize, usize),
    GetXattrAt(At, usize, usize),
    ListXattr(Target),
    RemoveXattr(Target, usize),
    ReadLink(Target, usize),
    ReadLinkAt(At, usize),
    List(usize),
}

fn at() -> impl Strategy<Value = At> {
    (0..SLOTS, 0..NAMES.len()).prop_map(|(dir, name)| At { dir, name })
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        (0..SLOTS).prop_map(Target::Dir),
        (0..SLOTS).prop_map(Target::File),
        (0..SLOTS).prop_map(Target::Handle),
    ]
}

fn mode() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0o644), Just(0o755), Just(0o4755), Just(0o2775), Just(0o2745), 0..0o10000_u32]
}

fn open_mode() -> impl Strategy<Value = u32> {
    prop_oneof![4 => Just(3_u32), 4 => 0..8_u32]
}

/// Around block boundaries, and far away now and then.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..40_000_u64,
        4 => (0..10_u64).prop_map(|block| block * 4096),
        1 => Just(1 << 30),
        1 => Just(0xffff_ffff * 4096 - 10),
        1 => Just(1 << 62),
        1 => Just(u64::MAX),
    ]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..20_000_u64, 4 => (0..6_u64).prop_map(|block| block * 4096), 1 => Just(u64::MAX)]
}

fn owner() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![Just(None), Just(Some(0)), Just(Some(1000)), Just(Some(u32::MAX))]
}

fn time() -> impl Strategy<Value = Option<i64>> {
    prop_oneof![Just(None), (-100..1_000_000_000_i64).prop_map(Some), Just(Some(i64::MIN))]
}

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let empty = Just(Vec::new());
    let minimal = acl(&[(1, 6, 9), (4, 5, 9), (0x20, 4, 9)]);
    let named = acl(&[(1, 7, 0), (2, 5, 1000), (4, 6, 0), (8, 1, 7), (0x10, 3, 0), (0x20, 4, 0)]);
    let masked = acl(&[(1, 7, 0), (4, 6, 0), (0x10, 3, 0), (0x20, 4, 0)]);
    let unsorted = acl(&[(4, 6, 0), (1, 7, 0), (0x20, 4, 0)]);
    let mut capability = vec![0; 20];
    capability[3] = 2;
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..200),
        1 => empty,
        1 => Just(minimal),
        2 => Just(named),
        1 => Just(masked),
        1 => Just(unsorted),
        2 => Just(capability),
        1 => Just(vec![0; 65_537]),
    ]
}

fn node_mode() -> impl Strategy<Value = u32> {
    let kinds = [0o100_000, 0o010_000, 0o140_000, 0o020_000, 0o060_000, 0o040_000, 0o120_000];
    (prop::sample::select(kinds.to_vec()), mode()).prop_map(|(kind, mode)| kind | mode)
}

fn names() -> BoxedStrategy<Operation> {
    use Operation::*;
    prop_oneof![
        6 => (at(), mode(), 0..SLOTS).prop_map(|(a, m, s)| Create(a, m, s)),
        1 => (0..SLOTS, mode(), 0..SLOTS).prop_map(|(d, m, s)| CreateUnnamed(d, m, s)),
        5 => (at(), mode()).prop_map(|(a, m)| MakeDir(a, m)),
        2 => (at(), node_mode(), prop_oneof![Just(0), Just(0x103), Just(0x1_2345_6789)])
            .prop_map(|(a, m, d)| MakeNode(a, m, d & 0xf_ffff)),
        2 => (at(), 0..5_usize).prop_map(|(a, t)| MakeSymlink(a, t)),
        3 => at().prop_map(Remove),
        2 => at().prop_map(RemoveDir),
        3 => (at(), at()).prop_map(|(a, b)| Link(a, b)),
        2 => (target(), at()).prop_map(|(t, a)| LinkObject(t, a)),
        6 => (at(), at(), prop_oneof![6 => Just(0), 4 => 0..10_u32]).prop_map(|(a, b, f)| Rename(a, b, f)),
        6 => (at(), 1..SLOTS).prop_map(|(a, s)| OpenDir(a, s)),
        1 => (0..8_usize, 1..SLOTS).prop_map(|(p, s)| OpenPath(p, s)),
        5 => (at(), open_mode(), 0..SLOTS).prop_map(|(a, m, s)| OpenFile(a, m, s)),
        3 => (at(), 0..SLOTS).prop_map(|(a, s)| Hold(a, s)),
        2 => (target(), open_mode(), 0..SLOTS).prop_map(|(t, m, s)| Reopen(t, m, s)),
        1 => target().prop_map(Close),
        2 => (0..SLOTS).prop_map(List),
    ]
    .boxed()
}

fn contents() -> BoxedStrategy<Operation> {
    use Operation::*;
    let allocate_mode =
        prop_oneof![Just(0), Just(1), Just(3), Just(8), Just(16), Just(17), Just(32), 0..256_u32];
    prop_oneof![
        4 => (0..SLOTS, offset(), 0..20_000_usize, any::<u8>()).prop_map(|(f, o, l, b)| Write(f, o, l, b)),
        3 => (0..SLOTS, offset(), 0..20_000_usize).prop_map(|(f, o, l)| Read(f, o, l)),
        2 => (0..SLOTS, offset()).prop_map(|(f, s)| Truncate(f, s)),
        2 => (0..SLOTS, allocate_mode, offset(), length()).prop_map(|(f, m, o, l)| Allocate(f, m, o, l)),
        2 => (0..SLOTS, offset(), any::<bool>()).prop_map(|(f, o, d)| Seek(f, o, d)),
        2 => (0..SLOTS, offset(), 0..SLOTS, offset(), length())
            .prop_map(|(to, to_offset, from, from_offset, len)| CopyRange { to, to_offset, from, from_offset, len }),
        1 => (0..SLOTS, 0..SLOTS).prop_map(|(a, b)| CloneFrom(a, b)),
    ]
    .boxed()
}

fn attributes() -> BoxedStrategy<Operation> {
    use Operation::*;
    let attribute = 0..ATTRIBUTES.len();
    prop_oneof![
        2 => target().prop_map(Stat),
        2 => at().prop_map(StatAt),
        1 => (target(), mode()).prop_map(|(t, m)| SetMode(t, m)),
        1 => (at(), mode()).prop_map(|(t, m)| SetModeAt(t, m)),
        1 => (target(), owner(), owner()).prop_map(|(t, u, g)| SetOwner(t, u, g)),
        1 => (at(), owner(), owner()).prop_map(|(t, u, g)| SetOwnerAt(t, u, g)),
        1 => (target(), time(), time()).prop_map(|(t, a, m)| SetTimes(t, a, m)),
        1 => (at(), time(), time()).prop_map(|(t, a, m)| SetTimesAt(t, a, m)),
        4 => (target(), attribute.clone(), value(), prop_oneof![4 => Just(0), 1 => 0..5_u32])
            .prop_map(|(t, a, v, f)| SetXattr(t, a, v, f)),
        2 => (target(), attribute.clone(), 0..300_usize).prop_map(|(t, a, l)| GetXattr(t, a, l)),
        2 => (at(), attribute.clone(), 0..300_usize).prop_map(|(t, a, l)| GetXattrAt(t, a, l)),
        1 => target().prop_map(ListXattr),
        2 => (target(), attribute).prop_map(|(t, a)| RemoveXattr(t, a)),
        1 => (target(), 0..20_usize).prop_map(|(t, l)| ReadLink(t, l)),
        1 => (at(), 0..20_usize).prop_map(|(t, l)| ReadLinkAt(t, l)),
    ]
    .boxed()
}

/// A sequence: of everything, or mostly about one thing, so that it gets further there.
pub fn sequence() -> impl Strategy<Value = Vec<Operation>> {
    let mixed = prop_oneof![3 => names(), 2 => contents(), 2 => attributes()];
    let tree = prop_oneof![12 => names(), 1 => attributes()];
    let file = prop_oneof![1 => names(), 8 => contents(), 1 => attributes()];
    let object = prop_oneof![1 => names(), 1 => contents(), 8 => attributes()];
    let many = 1..150;
    prop_oneof![
        1 => prop::collection::vec(mixed, many.clone()),
        2 => prop::collection::vec(tree, many.clone()),
        1 => prop::collection::vec(file, many.clone()),
        1 => prop::collection::vec(object, many),
    ]
}
