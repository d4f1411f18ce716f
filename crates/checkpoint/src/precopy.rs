//! Whether memory is read ahead, as it is asked for, and as the kernel can.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::str::FromStr;
use vellum_service::Failure;

/// With less memory than this, in bytes, nobody stops twice for it: chosen, not measured.
const LEAST: u64 = 64 << 20;
/// In what the kernel says of a page: it was written.
const WRITTEN: u64 = 1 << 55;
const PAGE: u64 = 4096;

/// Whether memory is read once while the container runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precopy {
    /// Where the kernel tells what is written meanwhile, and there is much of it.
    #[default]
    Auto,
    /// It is not.
    None,
    /// In any case.
    Always,
}

impl FromStr for Precopy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            "always" => Ok(Self::Always),
            _ => Err("give auto, none or always".to_owned()),
        }
    }
}

impl Precopy {
    /// Refuses what this kernel cannot do.
    pub(super) fn check(self) -> Result<(), Failure> {
        self.check_with(has_dirty_tracking)
    }

    fn check_with(self, tells: impl FnOnce() -> bool) -> Result<(), Failure> {
        if self == Self::Always && !tells() {
            return Err(Failure::input(
                "option --memory-ahead always: this kernel does not tell which memory was written (CONFIG_MEM_SOFT_DIRTY); leave the option out",
            ));
        }
        Ok(())
    }

    /// Whether it is to be done with so much memory, if the kernel tells.
    pub(super) fn is_needed(self, bytes: u64, tells: impl FnOnce() -> bool) -> bool {
        match self {
            Self::Auto => bytes >= LEAST && tells(),
            Self::None => false,
            Self::Always => true,
        }
    }
}

/// Whether the kernel tells which pages were written: of a new one it says so.
pub(super) fn has_dirty_tracking() -> bool {
    let page = vec![1_u8; 2 * PAGE as usize];
    let number = page.as_ptr() as u64 / PAGE + 1;
    let mut entry = [0; 8];
    let read = File::open("/proc/self/pagemap").and_then(|map| map.read_exact_at(&mut entry, number * 8));
    std::hint::black_box(&page);
    read.is_ok() && u64::from_ne_bytes(entry) & WRITTEN != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precopy_runs_for_much_memory_with_dirty_tracking() {
        for (how, bytes, tells, wanted) in [
            (Precopy::Auto, LEAST, true, true),
            (Precopy::Auto, LEAST - 1, true, false),
            (Precopy::Auto, LEAST, false, false),
            (Precopy::None, LEAST, true, false),
            (Precopy::Always, 0, true, true),
        ] {
            assert_eq!(how.is_needed(bytes, || tells), wanted, "{how:?} {bytes} {tells}");
        }
        for (text, how) in [("auto", Precopy::Auto), ("none", Precopy::None), ("always", Precopy::Always)] {
            assert_eq!(text.parse(), Ok(how));
            let refused = how.check_with(|| false).err();
            assert_eq!(refused.as_ref().map(Failure::exit_status), (text == "always").then_some(2));
            assert_eq!(how.check_with(|| true), Ok(()));
        }
        assert!("".parse::<Precopy>().unwrap_err().contains("always"));
    }
}
