//! The run of the machine, from one boot to the next.

use std::sync::LazyLock;

/// Where the kernel says it, as a UUID.
const FILE: &str = "/proc/sys/kernel/random/boot_id";

/// What names it; None: it cannot be told. Asked first before the process gives the right to this file up.
pub(crate) fn run() -> Option<[u8; 16]> {
    static RUN: LazyLock<Option<[u8; 16]>> =
        LazyLock::new(|| std::fs::read_to_string(FILE).ok().and_then(|text| parsed(&text)));
    *RUN
}

/// 32 digits, with dashes between.
fn parsed(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<char> = text.trim().chars().filter(|digit| *digit != '-').collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).ok();
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    bytes?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_id_parses_to_sixteen_bytes() {
        assert!(run().is_some());
        let shown = "00112233-4455-6677-8899-aabbccddeeff\n";
        assert_eq!(parsed(shown).unwrap()[..3], [0, 0x11, 0x22]);
        for bad in
            ["", "0011", "00112233-4455-6677-8899-aabbccddeeff00", "zz112233-4455-6677-8899-aabbccddeeff"]
        {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }
}
