//! Whether this process is root, and of what.

use std::fs;

/// Whether it is root of the host. Root of a user namespace, as the mount program of a rootless engine is, is somebody else there.
#[must_use]
pub fn is_host_root() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    rustix::process::geteuid().is_root() && is_everybody(&map)
}

/// Whether a map of users leaves all of them as they are.
fn is_everybody(map: &str) -> bool {
    let all = u32::MAX.to_string();
    map.split_whitespace().eq(["0", "0", all.as_str()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_id_map_is_the_hosts() {
        assert!(is_everybody("         0          0 4294967295\n"));
        assert!(!is_everybody("         0       1000          1\n         1     100000      65536\n"));
        assert!(!is_everybody(""));
    }
}
