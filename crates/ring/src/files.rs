//! What a program asks of the service over a ring, and before that over the socket: the numbers that both ends must agree on.
//!
//! A program names a file by a directory that it has entered and a name in it. It enters a directory by proving that it may write to it:
//! it sets the extended attribute [`TOKEN`] of it to a number by chance, by way of the kernel, which checks the path, the mount and
//! the directory; then it shows the service the same number with [`ENTER`]. Nothing is stored with the directory. A directory that it makes
//! with [`MAKE_DIR`] it has entered. Later calls are
//! preceded by a look at the path, which the kernel walks and checks anew; what the program may do in the directory and with the file is
//! checked by the service.
//!
//! Before the first directory it shows once that no Landlock domain that knows of files holds it, with [`PROVE`]: what the service opens
//! for it such a domain does not see.
//!
//! In place of a name there may be a path, of directories that the program has entered and that the kernel does not know: nothing can be
//! mounted over them, they are where they were made, and the service checks what the kernel would. So a new tree can be made without
//! the kernel hearing of its directories.

/// Extended attribute of a directory, or of a regular file, that can be set, to [`TOKEN_BYTES`], and not read.
pub const TOKEN: &core::ffi::CStr = c"vellum.token";
pub const TOKEN_BYTES: usize = 16;

/// What the socket says first: numbers of 64 bits.
pub const GREETING: u64 = u64::from_le_bytes(*b"ssesllev");
/// Version of the greeting and of everything here. Until version 6 there were calls 3 (attributes), 4 (removing), 9 (directories to look at)
/// and 11 (renaming).
pub const GREETING_VERSION: u64 = 7;
/// Numbers before those of mounts: [`GREETING`], version, how many mounts, and the inode number of the service's user namespace (0: unknown),
/// whose ids answers have.
pub const GREETING_HEAD: usize = 4;
/// Places for mounts whose files may be handed out.
pub const MOUNTS_MAX: usize = 64;
/// Numbers of one: the mount's `st_dev`, the `st_dev` of the upper layer's filesystem, the id of the mount by which descriptors are
/// opened (`stx_mnt_id`, asked for with [`MOUNT_IDS`]), which tells them from all others, and flags ([`VOLATILE`]).
pub const MOUNT_NUMBERS: usize = 4;
/// Flag of a mount: a sync of a file does nothing.
pub const VOLATILE: u64 = 1;
/// What is asked of statx(2) for the id of a mount: `STATX_MNT_ID_UNIQUE`, and `STATX_MNT_ID` where the kernel does not know that.
pub const MOUNT_IDS: u32 = 0x4000 | 0x1000;
pub const GREETING_NUMBERS: usize = GREETING_HEAD + MOUNT_NUMBERS * MOUNTS_MAX;

/// What a program sends to get a ring. The answer is the same number, with the descriptor of the region; then the connection stays, for
/// descriptors to come by, each with a tag of 64 bits. Nothing more is read from it. Each descriptor is to be taken before the next is asked
/// for. A program that sends another number asks for the memory of generations with this id: the answer is the same number, with the
/// descriptor, and the connection ends.
pub const RING_WANTED: u64 = u64::from_le_bytes(*b"gnirllev");

/// Enters a directory. Data: the token. Value 0: a number for the directory; value 1: its inode number.
pub const ENTER: u16 = 1;
/// Opens, or creates, a regular file. Arguments: directory, flags as of open(2), mode with the umask applied. Data: the name.
/// Value 0: the tag that the descriptor comes with.
pub const OPEN: u16 = 2;
/// Opens the file of a descriptor once more, to write, for a program that has set its [`TOKEN`]. What it makes shorter it makes shorter by
/// its own descriptor. Arguments: 0, flags as of open(2). Data: the token. Value 0: the tag that the descriptor comes with.
pub const REOPEN: u16 = 5;

/// Makes a directory and enters it. Arguments: directory, 0, mode with the umask applied. Data: the name. Values as
/// of [`ENTER`]; 0 and 0: it has been made, and is to be entered by a token.
pub const MAKE_DIR: u16 = 6;

/// Changes attributes of what the kernel does not know. Arguments: directory; [`SET_MODE`] and so on, with the mode from bit 32 on; owner, with
/// the group from bit 32 on; times of access and modification in nanoseconds since 1970. Data: the name.
pub const SET_ATTRIBUTES: u16 = 7;
pub const SET_MODE: u64 = 1;
pub const SET_OWNER: u64 = 2;
pub const SET_GROUP: u64 = 4;
/// The time of the last access; with [`ACCESSED_NOW`], to what it is now.
pub const SET_ACCESSED: u64 = 8;
/// The time of the last modification; with [`MODIFIED_NOW`], to what it is now.
pub const SET_MODIFIED: u64 = 16;
/// See [`SET_ACCESSED`].
pub const ACCESSED_NOW: u64 = 32;
/// See [`SET_MODIFIED`].
pub const MODIFIED_NOW: u64 = 64;
/// If the name is a symbolic link's, it is what that leads to that is meant.
pub const FOLLOW: u64 = 128;

/// Makes a symbolic link. Arguments: directory, bytes of the name. Data: the name, and what the link leads to.
pub const MAKE_LINK: u16 = 8;

/// Asks for a directory in which the program shows that no Landlock domain that knows of files holds it: it moves [`PROOF_FROM`] to
/// [`PROOF_TO`], by renameat(2). In such a domain a file goes to another directory only where a rule allows it, and on a directory that
/// nobody has seen before there is none. Value 0: the tag that a descriptor of the directory comes with. Without this nothing is
/// entered or opened ([`ASK_KERNEL`]).
pub const PROVE: u16 = 10;
/// A file in the directory of a [`PROVE`].
pub const PROOF_FROM: &core::ffi::CStr = c"file";
pub const PROOF_TO: &core::ffi::CStr = c"into/file";

/// Flag of a request: nothing is mounted over the name, for the program has looked.
pub const CHECKED: u16 = 1;

/// Status of a response: the service does not do this; the kernel will, or says why not.
pub const ASK_KERNEL: u32 = 4097;
/// Status: the kernel knows this name, or a directory of the path, so that something may be mounted over it. Look, and ask again with
/// [`CHECKED`], or in the directory itself.
pub const LOOK: u32 = 4098;
/// Status: the directory must be entered again.
pub const STALE: u32 = 4099;

/// Longest name in bytes.
pub const NAME_MAX: usize = 255;
/// Directories in a path at most.
pub const DEPTH_MAX: usize = 32;
/// Slots of a program's ring.
pub const SLOTS: u32 = 4;
/// Bytes of data of a slot.
pub const SLOT_BYTES: u32 = 512;
