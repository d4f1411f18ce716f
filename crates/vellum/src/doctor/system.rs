//! The kernel, FUSE, control groups, user namespaces, and the programs beside Vellum.

use super::check::Check;
use super::host::Host;
use rustix::io::Errno;
use rustix::process::Resource;

/// The first kernel that reads and writes files of a FUSE mount by itself.
const PASSTHROUGH: (u32, u32) = (6, 9);
/// The first kernel in which a service can ask for its inodes to be forgotten.
const PRUNE: (u32, u32) = (6, 18);
/// A container with many open files needs as many descriptors in its service.
const DESCRIPTORS: u64 = 65_536;

pub(super) fn checks(host: &Host) -> Vec<Check> {
    let mut checks = vec![kernel(host), fuse(host), groups(host), descriptors()];
    if !host.is_root() {
        checks.push(helper(host));
        checks.push(user_namespaces(host));
        checks.push(subordinate_ids(host));
    }
    checks.push(runtime(host));
    #[cfg(feature = "containers")]
    checks.push(criu());
    checks
}

fn kernel(host: &Host) -> Check {
    const SUBJECT: &str = "kernel";
    let Some(release) = host.read("/proc/sys/kernel/osrelease") else {
        return Check::note(SUBJECT, "/proc is not mounted").remedy("mount it");
    };
    let release = release.trim();
    let Some(version) = version(release) else { return Check::note(SUBJECT, format!("Linux {release}")) };
    if version < PASSTHROUGH {
        return Check::note(SUBJECT, format!("Linux {release} has no FUSE passthrough"))
            .remedy("use profile=cached, or Linux 6.9 for profile=passthrough");
    }
    if version < PRUNE {
        return Check::note(SUBJECT, format!("Linux {release} does not give back inodes on request"))
            .remedy("give pools memory for all the files they show, or use Linux 6.18");
    }
    Check::ok(SUBJECT, format!("Linux {release}"))
}

/// `6.18.5-amd64` is (6, 18).
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn fuse(host: &Host) -> Check {
    const SUBJECT: &str = "fuse";
    match std::fs::File::options().read(true).write(true).open(host.at("/dev/fuse")) {
        Ok(_) => Check::ok(SUBJECT, "/dev/fuse can be opened"),
        Err(e) => match Errno::from_io_error(&e) {
            Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Check::problem(
                SUBJECT,
                "/dev/fuse is missing",
                "run modprobe fuse; in a container, start it with --device /dev/fuse",
            ),
            Some(Errno::ACCESS | Errno::PERM) => Check::problem(
                SUBJECT,
                "/dev/fuse may not be opened by this user",
                "run chmod 0666 /dev/fuse as root; in a container, start it with --device /dev/fuse",
            ),
            _ => Check::problem(SUBJECT, format!("/dev/fuse: {e}"), "see dmesg"),
        },
    }
}

fn groups(host: &Host) -> Check {
    const SUBJECT: &str = "control groups";
    let Some(controllers) = host.read("/sys/fs/cgroup/cgroup.controllers") else {
        let kind = if host.at("/sys/fs/cgroup/unified").is_dir() { "both versions" } else { "not version 2" };
        return Check::note(SUBJECT, format!("/sys/fs/cgroup is {kind}"))
            .remedy("boot with systemd.unified_cgroup_hierarchy=1 for podman with crun");
    };
    let missing: Vec<&str> = ["cpu", "memory", "io"]
        .into_iter()
        .filter(|wanted| !controllers.split_whitespace().any(|name| name == *wanted))
        .collect();
    if missing.is_empty() {
        return Check::ok(SUBJECT, "version 2 with cpu, memory, io");
    }
    Check::note(SUBJECT, format!("version 2 without {}", missing.join(", ")))
        .remedy("limits of pools need these controllers; delegate them to this user or boot with them")
}

fn descriptors() -> Check {
    const SUBJECT: &str = "open files";
    match rustix::process::getrlimit(Resource::Nofile).maximum {
        Some(most) if most < DESCRIPTORS => {
            Check::note(SUBJECT, format!("a service may hold {most} files open"))
                .remedy(format!("raise the hard limit (ulimit -Hn) to {DESCRIPTORS} or more"))
        }
        _ => Check::ok(SUBJECT, "the limit is high enough"),
    }
}

/// What mounts for an ordinary user.
fn helper(host: &Host) -> Check {
    const SUBJECT: &str = "fusermount3";
    match host.program("fusermount3") {
        Some(path) => Check::ok(SUBJECT, path.display().to_string()),
        None => {
            Check::problem(SUBJECT, "not in PATH; ordinary users mount with it", "install the package fuse3")
        }
    }
}

fn user_namespaces(host: &Host) -> Check {
    const SUBJECT: &str = "user namespaces";
    let is = |path: &str, value: &str| host.read(path).is_some_and(|text| text.trim() == value);
    if is("/proc/sys/user/max_user_namespaces", "0") {
        return Check::problem(SUBJECT, "turned off", "run sysctl user.max_user_namespaces=15000 as root");
    }
    if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        let remedy = "run sysctl kernel.unprivileged_userns_clone=1 as root";
        return Check::problem(SUBJECT, "turned off for ordinary users", remedy);
    }
    if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        return Check::note(SUBJECT, "restricted by AppArmor")
            .remedy("programs without a profile need sysctl kernel.apparmor_restrict_unprivileged_userns=0");
    }
    Check::ok(SUBJECT, "available")
}

fn subordinate_ids(host: &Host) -> Check {
    const SUBJECT: &str = "subordinate ids";
    let uid = host.uid.to_string();
    let name = host.read("/etc/passwd").and_then(|text| {
        text.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)? == uid).then(|| name.to_owned())
        })
    });
    let is_ours = |line: &str| {
        line.split(':').next().is_some_and(|owner| owner == uid || Some(owner) == name.as_deref())
    };
    let missing: Vec<&str> = ["/etc/subuid", "/etc/subgid"]
        .into_iter()
        .filter(|file| !host.read(file).is_some_and(|text| text.lines().any(is_ours)))
        .collect();
    if missing.is_empty() {
        return Check::ok(SUBJECT, "there is a range for this user");
    }
    let user = name.unwrap_or(uid);
    Check::note(SUBJECT, format!("no range for this user in {}", missing.join(", "))).remedy(format!(
        "images with several owners need one: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"
    ))
}

/// What `vellum run` starts containers with.
fn runtime(host: &Host) -> Check {
    const SUBJECT: &str = "runtime";
    match ["crun", "runc"].into_iter().find_map(|name| host.program(name)) {
        Some(path) => Check::ok(SUBJECT, path.display().to_string()),
        None => Check::note(SUBJECT, "neither crun nor runc in PATH").remedy("vellum run needs one of them"),
    }
}

#[cfg(feature = "containers")]
fn criu() -> Check {
    const SUBJECT: &str = "criu";
    match vellum_container::criu::criu_version() {
        Ok(version) => Check::ok(SUBJECT, format!("version {version}")),
        Err(failure) => Check::note(SUBJECT, format!("{failure}")).remedy("only checkpoints need it"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Grade;
    use super::super::host::tests::host;
    use super::*;

    #[test]
    fn a_kernel_is_judged_by_its_first_two_numbers() {
        assert_eq!(version("6.18.5-amd64"), Some((6, 18)));
        assert_eq!(version("6.18-rc1"), Some((6, 18)));
        assert_eq!(version("next"), None);
        for (release, grade) in [("6.18.5\n", Grade::Ok), ("6.12.1\n", Grade::Note), ("6.1.0\n", Grade::Note)]
        {
            let (_dir, host) = host(0, &[("/proc/sys/kernel/osrelease", release)]);
            assert_eq!(kernel(&host).grade, grade, "{release}");
        }
    }

    #[test]
    fn obstacles_of_unprivileged_users_are_problems_with_a_remedy() {
        let (_dir, host) = host(1000, &[("/proc/sys/user/max_user_namespaces", "0\n")]);
        for check in [fuse(&host), helper(&host), user_namespaces(&host)] {
            assert_eq!(check.grade, Grade::Problem, "{check:?}");
            assert!(check.remedy.is_some(), "{check:?}");
        }
    }

    #[test]
    fn a_range_belongs_to_a_user_by_name_or_by_number() {
        let passwd = ("/etc/passwd", "root:x:0:0::/:\nann:x:1000:1000::/srv/ann:/bin/sh\n");
        for owner in ["ann", "1000"] {
            let range = format!("bob:100000:65536\n{owner}:165536:65536\n");
            let (_dir, host) = host(1000, &[passwd, ("/etc/subuid", &range), ("/etc/subgid", &range)]);
            assert_eq!(subordinate_ids(&host).grade, Grade::Ok, "{owner}");
        }
        let (_dir, host) = host(1000, &[passwd, ("/etc/subuid", "anna:1:2\n")]);
        let check = subordinate_ids(&host);
        assert_eq!(check.grade, Grade::Note);
        assert!(check.remedy.unwrap().ends_with(" ann"));
    }

    #[test]
    fn missing_controllers_are_named() {
        let (_dir, host) = host(0, &[("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu pids\n")]);
        assert_eq!(groups(&host).finding, "version 2 without memory, io");
    }
}
