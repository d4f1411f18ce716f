//! Pages of the program itself. What was run once, to read a command line or to move addresses at the start, stays mapped otherwise for as
//! long as the process lives, and counts as its memory. Linux maps as much around a page as it has in one piece: from 6.18 on often 128 KiB
//! for one instruction. So what runs after the last look at them has to be little, and in one place.

use std::sync::OnceLock;

/// Where the program's and its libraries' code and constants are: first bytes and lengths.
static CODE: OnceLock<Vec<(usize, usize)>> = OnceLock::new();

/// Finds them, in /proc: to be called as long as that can be opened.
pub fn find_code() {
    CODE.get_or_init(|| {
        std::fs::read_to_string("/proc/self/maps").map(|maps| ranges(&maps)).unwrap_or_default()
    });
}

/// Lets go of pages that are not in use at this moment; those that are needed come back from the file, with those around them.
#[inline(always)]
pub fn drop_code() {
    for &(start, len) in CODE.get().into_iter().flatten() {
        // SAFETY: the range was mapped from a file, privately, and nobody could write to it: what comes back is the same. The program and its
        // libraries are never unmapped.
        let _ = unsafe { libc::madvise(start as *mut libc::c_void, len, libc::MADV_DONTNEED) };
    }
}

/// Of a table of mappings those of files that nobody has written to: what can be run, and a file's beginning. Other constants may have been
/// written to before they became constants.
fn ranges(maps: &str) -> Vec<(usize, usize)> {
    let range = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (range, access, offset) = (words.next()?, words.next()?, words.next()?);
        let path = words.nth(2)?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        let is_code = access == "r-xp" || access == "r--p" && number(offset)? == 0;
        (is_code && path.starts_with('/')).then(|| Some((start, end.checked_sub(start)?)))?
    };
    maps.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_pages_are_not_dropped() {
        let maps = "1000-3000 r--p 00000000 fe:00 12 /bin/it\n3000-5000 r-xp 00002000 fe:00 12 /bin/it\n\
                    5000-6000 r--p 00004000 fe:00 12 /bin/it\n6000-7000 rw-p 00005000 fe:00 12 /bin/it\n\
                    8000-9000 rw-p 00000000 00:00 0 [heap]\na000-b000 r-xp 00000000 00:00 0 [vdso]\n";
        assert_eq!(ranges(maps), [(0x1000, 0x2000), (0x3000, 0x2000)]);
    }

    #[test]
    fn the_program_runs_after_dropping_its_code_pages() {
        find_code();
        drop_code();
        assert!(CODE.get().is_some_and(|code| !code.is_empty()));
        assert_eq!(format!("{:?}", Some(7)), "Some(7)");
    }
}
