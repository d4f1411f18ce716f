//! Files, by Landlock: the layers, and the few files that the service opens while it serves.
//!
//! A rule belongs to an inode, and a file is judged by the directories above it, up to the root of its mount and on through mount
//! points. So a rule on a layer's root holds in a private copy of its mount as well, which nothing lies above.
//!
//! Landlock has no say in attributes (mode, owner, times, extended attributes) nor in asking for them. With files it also refuses
//! every change of mounts.

use super::plan::{Plan, Roots};
use crate::instance::client;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// The newest version of Landlock that is made use of; older kernels do with what they have.
const NEWEST: ABI = ABI::V9;

/// Files that are opened while the service serves.
const PLACES: [(&str, BitFlags<AccessFs>); 2] = [
    // A descriptor for each worker.
    ("/dev/fuse", DEVICE),
    // In place of the terminal, once the mount is ready.
    ("/dev/null", DEVICE),
];

/// What this process's threads are doing, and what the descriptors that they hold are.
const OWN: &str = "/proc/self/task";

/// What all processes do, for kernels that give no descriptors of threads. Landlock itself closes what is private in there: it lets
/// nobody look into processes outside.
const ALL: &str = "/proc";

const DEVICE: BitFlags<AccessFs> = landlock::make_bitflags!(AccessFs::{ReadFile | WriteFile | IoctlDev});

/// The file that keeps processors awake while it is open.
const AWAKE: &str = "/dev/cpu_dma_latency";

/// What the C library reads to find a cluster's monitors by name, and OpenSSL before it computes.
const CEPH: [&str; 6] = [
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/ssl/openssl.cnf",
];

/// A rule belongs to an inode, and those of a process in /proc come and go unless somebody holds them.
pub(super) type RuleFds = PathFd;

/// Gives up all files, ports, and processes that `plan` does not need; says how far the kernel can.
pub(super) fn restrict(plan: &Plan) -> Result<(String, Option<RuleFds>), String> {
    let mut rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    if plan.roots().is_some() {
        // The first version refuses to move a file to another directory, whatever the rules.
        rules = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::Refer)
            .map_err(|_| "the kernel has no Landlock, or one before Linux 5.19".to_owned())?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))
            .map_err(|e| e.to_string())?;
    }
    let own = PathFd::new(if client::can_open_threads() { OWN } else { ALL }).ok();
    let mut ports = AccessNet::from_all(NEWEST);
    if plan.ceph.is_some() {
        // A cluster says itself where its servers are, at whatever ports.
        ports.remove(AccessNet::ConnectTcp);
    }
    let status = rules
        .handle_access(ports)
        .and_then(|rules| rules.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .and_then(|created| match plan.roots() {
            Some(roots) => allow(created, roots, plan, own.as_ref()),
            None => Ok(created),
        })
        .and_then(RulesetCreated::restrict_self)
        .map_err(|e| e.to_string())?;
    let (LandlockStatus::Available { effective_abi, .. }, true) =
        (status.landlock, status.ruleset != RulesetStatus::NotEnforced)
    else {
        return Err("the kernel has no Landlock".into());
    };
    let what = match (plan.roots(), &plan.roots) {
        (Some(_), _) => "the layers",
        (None, Some(_)) => "everything, as asked for",
        (None, None) => "everything, for layers come later",
    };
    Ok((format!("{what} (Landlock {})", effective_abi as u32), own))
}

fn allow(
    created: RulesetCreated,
    roots: &Roots,
    plan: &Plan,
    own: Option<&RuleFds>,
) -> Result<RulesetCreated, RulesetError> {
    let mut read = AccessFs::ReadFile | AccessFs::ReadDir;
    if plan.passthrough {
        // The kernel opens files in our name for clients, also those that it runs.
        read |= AccessFs::Execute;
    }
    let write = read | (AccessFs::from_write(NEWEST) & !(AccessFs::IoctlDev | AccessFs::ResolveUnix));
    let mut created = created;
    for root in &roots.read_only {
        created = created.add_rule(PathBeneath::new(root.as_fd(), read))?;
    }
    for root in &roots.writable {
        created = created.add_rule(PathBeneath::new(root.as_fd(), write))?;
    }
    if let Some(own) = own {
        created = created.add_rule(PathBeneath::new(own, AccessFs::ReadFile))?;
    }
    let awake = plan.keep_awake.then_some((AWAKE, AccessFs::WriteFile.into()));
    let keys = plan.ceph.iter().flatten().map(PathBuf::as_path);
    let cluster = plan.ceph.iter().flat_map(|_| CEPH).map(Path::new).chain(keys);
    let cluster = cluster.map(|path| (path, AccessFs::ReadFile.into()));
    let places = PLACES.into_iter().chain(awake).map(|(path, access)| (Path::new(path), access));
    for (path, access) in places.chain(cluster) {
        // What is not there will not be opened either.
        if let Ok(file) = PathFd::new(path) {
            created = created.add_rule(PathBeneath::new(file, access))?;
        }
    }
    Ok(created)
}
