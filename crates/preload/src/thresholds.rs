//! When the library begins something, how much of it there may be, and when it gives up: one table. `gain` and `cost` are what was
//! measured on two virtual processors (docs/design has the conditions); "not measured" says that the value is a bound, or a guess.

/// A room of the table: `name: type = value; what; gain; cost`.
macro_rules! thresholds {
    ($($(#[doc = $about:literal])* mod $room:ident { $($name:ident: $type:ty = $value:expr; $what:literal; $gain:literal; $cost:literal;)* })*) => {
        $($(#[doc = $about])*
        pub(crate) mod $room {
            $(#[doc = concat!($what, ". Gain: ", $gain, ". Cost: ", $cost, ".")]
            pub(crate) const $name: $type = $value;)*
        })*
    };
}

thresholds! {
    /// Reads from mappings, by descriptor.
    mod reads {
        FEW: u32 = 4; "So many reads of a descriptor, and the next one asks for a mapping";
            "a read without a system call"; "a request and a mmap, for files that are read once and closed";
        LOOK: u32 = 64; "So many reads beyond the end between looks whether the file has grown";
            "appended data are mapped"; "a request in 64 reads";
        AGAIN: u32 = 32; "So many reads after a file was cut, and the next one asks again";
            "the mapping comes back"; "a request in 32 reads";
        SPACE_MAX: usize = 64 << 30; "Bytes of address space for all mappings of a process";
            "not measured: a bound"; "files beyond are the kernel's";
    }
    /// Writes by companions.
    mod companion {
        FIRST: u32 = 4096; "Writes of the process, to whatever descriptors, before a session is begun for the sake of companions";
            "0.06 to 0.2 us a write"; "0.4 ms for the session, so a program that goes on pays little more than it gains, whenever it ends";
        FEW: u32 = 512; "Writes to a descriptor before it has one, where there is a session, or is to be one";
            "0.06 to 0.2 us a write"; "a call over the ring, 60 us";
        AT_ONCE: u32 = 32; "The same where the program is said to run long";
            "0.06 to 0.2 us a write"; "a call over the ring, 60 us";
        SYNC: u32 = 160; "A sync, which is a request, counts as so many writes";
            "one FUSE request a sync, 15 to 28 us"; "none";
        MOST: usize = 16; "Companions of a process";
            "not measured: a bound"; "a descriptor each";
    }
    /// When sessions begin and end, and what they pay.
    mod session {
        FEW: u32 = 4; "So many calls that could have used a session, and it begins";
            "a FUSE request a call and more"; "0.4 ms, most of it waking processors";
        MANY: u32 = 32; "So many calls that found the ones before in use, and a further one begins";
            "threads do not wait for each other"; "0.4 ms, and a thread of the service";
        MOST: usize = 8; "Sessions of a process";
            "as many threads make calls at the same time"; "a thread of the service and a ring's memory each";
        AGAIN: u32 = 64; "So many calls after one has failed, twice as many each time";
            "the ring is there again after a restart"; "a connect in 64 calls";
        AGAIN_MAX: u32 = 1 << 20; "The most of them";
            "not measured: a bound"; "none";
        CREDIT: i32 = 64; "What a session has to spend, at first and at most, in calls that went well";
            "files all over the place are left to the kernel, which is faster there"; "so many calls for nothing";
        ENTERING: i32 = 4; "What it costs to enter a directory"; "as above"; "a request and a call";
        REFERRED: i32 = 1; "What it costs to be referred to the kernel"; "as above"; "a call";
        RARE: u64 = 300_000; "Nanoseconds since the last call that could be made, beyond which one counts as made rarely: the ring's thread sleeps by then";
            "pip and npm, which compute between files, are as fast as without"; "a burst is noticed after a few calls";
        RARELY: i32 = 3; "What a call costs that is made rarely"; "as above"; "as above";
        WITHOUT_CREDIT_EACH: u32 = 16; "Without credit one call in so many is tried";
            "a program that comes to work in one place is found"; "a call for nothing in 16";
        SLICE: u64 = 10_000_000; "Nanoseconds of the first wait, after which it is seen whether the service is still there, twice as long each time";
            "a service that has died is noticed"; "a poll in 10 ms";
        SLICE_MAX: u64 = 1_000_000_000; "The longest of them"; "not measured: a bound"; "none";
        SLICES: u32 = 16; "So many of them: ten seconds"; "not measured: a bound"; "none";
    }
    /// Which calls are tried over the ring at all.
    mod calls {
        FOREIGN_MANY: u32 = 32; "Opens in a row that had nothing to do with what is served, after which not each is looked at";
            "a statx for each open elsewhere"; "an open of ours that is not noticed";
        FOREIGN_EACH: u32 = 8; "From then on one in so many is looked at"; "as above"; "as above";
        LEFT_OVER: u32 = 64; "Descriptors of calls given up that are passed over to find one"; "not measured: a bound"; "none";
        AT_ROOT: u32 = 64; "Files on the mount of the root directory that are looked at before the socket is asked once";
            "asking once is cheaper than looking at each"; "a connect";
    }
    /// Attributes that the kernel knows, on the root directory's mount.
    mod root {
        FEW: u32 = 4; "So many calls for attributes, and the mount is looked at";
            "a request for each file that was read since the kernel asked for its attributes"; "a request, 15 us";
        FOREIGN_MANY: u32 = 32; "Files elsewhere in a row, after which not each is tried"; "a call for each file elsewhere"; "as above, for a few";
        FOREIGN_EACH: u32 = 8; "From then on one in so many is tried"; "as above"; "as above";
    }
    /// Names of extended attributes.
    mod xattrs {
        SETTLED: i64 = 2; "Seconds since a file's last change before it is remembered that it has none";
            "no change within one tick of a filesystem's clock is missed; two seconds is the longest of those"; "requests as ever for files just made";
    }
    /// What a session remembers of directories.
    mod dirs {
        KNOWN: usize = 64; "Directories that are known at a time"; "not entering one again"; "memory of a session, 4 KiB";
        FOREIGN: usize = 16; "Devices that are known not to be served"; "not asking again"; "memory of a session";
        TEXT: usize = 1024; "Longest path that is compared"; "not measured: a bound"; "memory of a session";
        MISSES: u32 = 8; "So many calls in a row that were the kernel's after all, and the directory is no good for guesses";
            "calls for nothing"; "the statx that a guess saves";
        MADE: usize = 512; "Places for directories that the program has made, which the kernel may not know";
            "tar: five FUSE requests a directory"; "8 KiB of a session, and a call for a wrong guess";
        MADE_NEXT: u64 = 4; "Places that one of them may be in"; "not measured: a bound"; "none";
    }
    /// The memory of generations.
    mod generations {
        KNOWN: usize = 16; "Memories that one process uses; those of further mounts are left alone"; "not measured: a bound"; "a mapping each";
        ASKED: u32 = 32; "How often the socket is asked in all"; "not measured: a bound"; "a connect each";
    }
    /// Copies from one descriptor to another.
    mod copies {
        SMALL: u64 = 128 << 10; "Bytes of a file that is copied through memory between the mount and a file that was handed out";
            "it stays handed out: `cp -a` of small files takes half the time"; "blocks that are not shared, where the layer's filesystem could";
    }
    /// The library's own descriptors.
    mod own_fds {
        HIGH: u64 = 40; "Where their numbers begin, if the process may have so many: beyond those that programs count on, and within the table of 64 that every process has";
            "5 to 15 ms in a program with threads, for which the kernel makes a larger table after an RCU grace period"; "none";
        ROOM: u64 = 24; "Numbers beneath the limit that are left to the program"; "not measured: a bound"; "none";
        DESCRIPTORS: usize = 4096; "Descriptors from this one on are the kernel's alone"; "not measured: a bound"; "64 bytes each, touched when used, twice";
    }
}
