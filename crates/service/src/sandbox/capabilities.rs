//! Capabilities.
//!
//! | kept | for |
//! | --- | --- |
//! | CAP_CHOWN | owners of what clients make and change, and of what is copied up |
//! | CAP_DAC_OVERRIDE | files of all owners and modes in the upper; who may do what is judged by the kernel before it asks us |
//! | CAP_FOWNER | mode, times, attributes and opens without access times of files of others; sticky directories |
//! | CAP_FSETID | set-group-id bits of files whose group is not ours |
//! | CAP_MKNOD | devices that clients with that right make, and whiteouts (0:0) |
//! | CAP_SETFCAP | `security.capability` of files: set by clients with that right, and copied up |
//! | CAP_SYS_ADMIN | `trusted.*` attributes (the marks in layers), `security.*` ones, backing files of `passthrough` |
//! | CAP_LEASE (the service of a pool, and `passthrough`) | asking the kernel whether somebody still writes to a file that was handed to a program, or that may be mapped |
//!
//! A mount that is only read keeps CAP_DAC_READ_SEARCH in place of CAP_DAC_OVERRIDE, CAP_FOWNER (opening without touching the access
//! time) and CAP_SYS_ADMIN (reading `trusted.*`). In a user namespace CAP_SYS_ADMIN is worth nothing of that, and goes.
//!
//! Everything else goes, above all:
//!
//! | dropped | because |
//! | --- | --- |
//! | CAP_DAC_READ_SEARCH (writable) | it opens files by handle, past every directory; naming a file without a name goes through /proc where the kernel asks for it |
//! | CAP_SYS_PTRACE | whether a client is in a container is asked in a way that everybody may |
//! | CAP_SYS_RESOURCE | limits, the out-of-memory score and the standing in memory reclaim are set before. A filesystem's reserve and quotas hold for clients |
//! | CAP_SETUID, CAP_SETGID, CAP_SETPCAP | the service is nobody else at any time |
//! | CAP_LINUX_IMMUTABLE | flags of layers are not touched |

use super::plan::Plan;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Gives up all capabilities that `plan` does not need; says which are left.
pub(super) fn restrict(plan: &Plan) -> Result<String, String> {
    keep(needed(plan, is_initial_namespace()))
}

/// Whether the kernel takes files of layers from this process, to read and write them itself.
#[must_use]
pub fn can_pass_through() -> bool {
    is_initial_namespace()
        && capabilities(None).is_ok_and(|has| has.effective.contains(CapabilitySet::SYS_ADMIN))
}

fn needed(plan: &Plan, initial_namespace: bool) -> CapabilitySet {
    let mut needed = CapabilitySet::FOWNER;
    needed |= if plan.writable {
        CapabilitySet::CHOWN
            | CapabilitySet::DAC_OVERRIDE
            | CapabilitySet::FSETID
            | CapabilitySet::MKNOD
            | CapabilitySet::SETFCAP
    } else {
        CapabilitySet::DAC_READ_SEARCH
    };
    needed.set(CapabilitySet::SYS_ADMIN, initial_namespace);
    let hands_out = plan.roots.is_none() || plan.passthrough;
    needed.set(CapabilitySet::LEASE, plan.writable && hands_out && initial_namespace);
    needed
}

fn keep(needed: CapabilitySet) -> Result<String, String> {
    let failed = |e: rustix::io::Errno| e.to_string();
    let has = capabilities(None).map_err(failed)?;
    let left = has.permitted & needed;
    // The kernel lets only who may set capabilities narrow the bounding set; without new privileges it is moot for others.
    if has.effective.contains(CapabilitySet::SETPCAP) {
        for one in CapabilitySet::all().difference(left).iter() {
            // A kernel that does not know one has nothing to give up.
            if capability_is_in_bounding_set(one).unwrap_or(false) {
                remove_capability_from_bounding_set(one).map_err(failed)?;
            }
        }
    }
    clear_ambient_capability_set().map_err(failed)?;
    let sets = CapabilitySets { effective: left, permitted: left, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(failed)?;
    Ok(names(left))
}

fn names(set: CapabilitySet) -> String {
    let names: Vec<String> = set.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// Whether capabilities count for the host: the process is in the first user namespace, or in one that maps everybody.
pub(crate) fn is_initial_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    // Without /proc, or without namespaces, too much is kept rather than too little.
    let all = u32::MAX.to_string();
    map.is_empty() || map.split_whitespace().eq(["0", "0", all.as_str()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::Mode;

    fn plan(writable: bool) -> Plan {
        Plan {
            mode: Mode::On,
            roots: None,
            passthrough: false,
            writable,
            keep_awake: false,
            cache: false,
            ceph: None,
            zoned: false,
        }
    }

    #[test]
    fn a_read_only_mount_keeps_fewer_capabilities() {
        assert_eq!(names(needed(&plan(false), true)), "dac_read_search, fowner, sys_admin");
        let writable = needed(&plan(true), true);
        assert_eq!(names(writable), "chown, dac_override, fowner, fsetid, sys_admin, mknod, lease, setfcap");
        assert!(!needed(&plan(true), false).contains(CapabilitySet::SYS_ADMIN));
    }
}
