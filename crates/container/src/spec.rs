//! `config.json`: what a runtime is to make, with the defaults that engines have.

use super::preload::Preload;
use super::process::Plan;
use super::user::User;
use super::volume::Volume;
use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Capabilities, Capability, HookBuilder, HooksBuilder, Linux, LinuxBuilder, LinuxCapabilitiesBuilder,
    LinuxDeviceCgroupBuilder, LinuxIdMappingBuilder, LinuxNamespaceBuilder, LinuxNamespaceType,
    LinuxPidsBuilder, LinuxResourcesBuilder, Mount, MountBuilder, Process, ProcessBuilder, RootBuilder, Spec,
    SpecBuilder, UserBuilder,
};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use vellum_pool::UidRange;

/// The version of the specification that is written for: no newer than the oldest runtime in use knows.
const VERSION: &str = "1.0.2";
/// By which runtimes know of a file for CRIU.
const CRIU_ANNOTATION: &str = "org.criu.config";
/// Where the root is, beside the file.
pub(super) const ROOT: &str = "merged";
/// As many processes and threads as engines allow.
const PIDS_MAX: i64 = 2048;

/// The group that terminals belong to.
const TERMINALS: u32 = 5;

/// What podman leaves to root in a container.
const CAPABILITIES: [Capability; 11] = [
    Capability::Chown,
    Capability::DacOverride,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::NetBindService,
    Capability::Setfcap,
    Capability::Setgid,
    Capability::Setpcap,
    Capability::Setuid,
    Capability::SysChroot,
];

/// What tells of the host, or would let it be changed.
const MASKED: [&str; 13] = [
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/dev/block",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/fs/selinux",
];
const READ_ONLY: [&str; 6] =
    ["/proc/asound", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Filesystems that every container has: place, type, source, options.
const FILESYSTEMS: [[&str; 4]; 6] = [
    ["/proc", "proc", "proc", "nosuid,noexec,nodev"],
    ["/dev", "tmpfs", "tmpfs", "nosuid,strictatime,mode=755,size=65536k"],
    ["/dev/pts", "devpts", "devpts", "nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5"],
    ["/dev/shm", "tmpfs", "shm", "nosuid,noexec,nodev,mode=1777,size=65536k"],
    ["/dev/mqueue", "mqueue", "mqueue", "nosuid,noexec,nodev"],
    ["/sys", "sysfs", "sysfs", "nosuid,noexec,nodev,ro"],
];

/// What a container is made of.
#[derive(Debug)]
pub(super) struct Container<'a> {
    pub(super) plan: &'a Plan,
    pub(super) user: &'a User,
    pub(super) terminal: bool,
    pub(super) no_new_privileges: bool,
    pub(super) hostname: &'a str,
    /// Whether it has the host's network.
    pub(super) host_network: bool,
    pub(super) read_only: bool,
    pub(super) volumes: &'a [Volume],
    /// Files that we make for it: where they lie, and where it sees them.
    pub(super) files: &'a [(PathBuf, &'static str)],
    pub(super) preload: &'a Preload,
    /// Its control group; None: that of who starts it.
    pub(super) cgroup: Option<&'a Path>,
    /// Whether this is root of a user namespace only.
    pub(super) rootless: bool,
    /// Its users and groups outside; None: the same as inside.
    pub(super) ids: Option<UidRange>,
    /// The file by which CRIU is told more than a runtime can.
    pub(super) criu: &'a Path,
    /// The program that brings its loopback interface up, where the runtime does not: in one that is restored.
    pub(super) loopback: Option<&'a Path>,
}

/// A mount with its options between commas.
pub(super) fn mount(place: &str, kind: &str, source: &str, options: &str) -> Mount {
    let mut mount = Mount::default();
    mount
        .set_destination(place.into())
        .set_typ(Some(kind.to_owned()))
        .set_source(Some(source.into()))
        .set_options(Some(options.split(',').map(str::to_owned).collect()));
    mount
}

impl Container<'_> {
    /// The configuration.
    pub(super) fn spec(&self) -> Result<Spec, OciSpecError> {
        let annotations = [(CRIU_ANNOTATION.to_owned(), self.criu.to_string_lossy().into_owned())];
        let mut spec = SpecBuilder::default()
            .version(VERSION)
            .annotations(HashMap::from(annotations))
            .root(RootBuilder::default().path(ROOT).readonly(self.read_only).build()?)
            .process(self.process()?)
            .hostname(self.hostname)
            .mounts(self.mounts()?)
            .linux(self.linux()?)
            .build()?;
        if let Some(program) = self.loopback {
            let name = crate::loopback::HOOK;
            let args = vec!["vellum".to_owned(), name.to_owned()];
            let hook = HookBuilder::default().path(program).args(args).build()?;
            spec.set_hooks(Some(HooksBuilder::default().create_runtime(vec![hook]).build()?));
        }
        Ok(spec)
    }

    fn process(&self) -> Result<Process, OciSpecError> {
        let some: Capabilities = CAPABILITIES.into_iter().collect();
        let none = Capabilities::default;
        // What root may do, others may only where a file gives it to them.
        let now = if self.user.uid == 0 { some.clone() } else { none() };
        let capabilities = LinuxCapabilitiesBuilder::default()
            .bounding(some)
            .effective(now.clone())
            .permitted(now)
            .inheritable(none())
            .ambient(none())
            .build()?;
        let user = UserBuilder::default()
            .uid(self.user.uid)
            .gid(self.user.gid)
            .additional_gids(self.user.groups.clone())
            .build()?;
        let mut env = self.plan.env.clone();
        self.preload.apply(&mut env);
        let mut process = ProcessBuilder::default()
            .terminal(self.terminal)
            .user(user)
            .args(self.plan.args.clone())
            .env(env)
            .cwd(&self.plan.workdir)
            .capabilities(capabilities)
            .no_new_privileges(self.no_new_privileges)
            .build()?;
        // Those of who starts it.
        process.set_rlimits(None);
        Ok(process)
    }

    fn mounts(&self) -> Result<Vec<Mount>, OciSpecError> {
        let mut mounts = Vec::new();
        for [place, kind, source, options] in FILESYSTEMS {
            // The network's owner is somebody else then, who alone may mount what shows it.
            let foreign = self.rootless || self.ids.is_some();
            let bound = place == "/sys" && foreign && self.host_network;
            // In a namespace of few ids there is no group for terminals.
            let few = self.rootless || self.ids.is_some_and(|ids| ids.count() <= TERMINALS);
            mounts.push(match bound {
                true => mount(place, "bind", place, "rbind,rprivate,nosuid,noexec,nodev,ro"),
                false if few => mount(place, kind, source, options.trim_end_matches(",gid=5")),
                false => mount(place, kind, source, options),
            });
        }
        let taken = |place: &str| self.volumes.iter().any(|volume| volume.to == Path::new(place));
        for (file, place) in self.files.iter().filter(|(_, place)| !taken(place)) {
            let mut one = mount(place, "bind", "", "bind,rprivate,nosuid,nodev,noexec");
            one.set_source(Some(file.clone()));
            mounts.push(one);
        }
        mounts.extend(self.preload.mounts());
        for volume in self.volumes {
            let access = if volume.read_only { "ro" } else { "rw" };
            let options = ["rbind", "rprivate", "nosuid", "nodev", access].map(str::to_owned).to_vec();
            let one = MountBuilder::default()
                .destination(&volume.to)
                .typ("bind")
                .source(&volume.from)
                .options(options)
                .build()?;
            mounts.push(one);
        }
        Ok(mounts)
    }

    fn linux(&self) -> Result<Linux, OciSpecError> {
        let mut kinds = vec![
            LinuxNamespaceType::Pid,
            LinuxNamespaceType::Ipc,
            LinuxNamespaceType::Uts,
            LinuxNamespaceType::Mount,
        ];
        if !self.host_network {
            kinds.push(LinuxNamespaceType::Network);
        }
        if self.ids.is_some() {
            kinds.push(LinuxNamespaceType::User);
        }
        let namespace = |kind| LinuxNamespaceBuilder::default().typ(kind).build();
        let namespaces = kinds.into_iter().map(namespace).collect::<Result<Vec<_>, _>>()?;
        let strings = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let mut linux = LinuxBuilder::default()
            .namespaces(namespaces)
            .masked_paths(strings(&MASKED))
            .readonly_paths(strings(&READ_ONLY))
            .build()?;
        linux.set_resources(None);
        if let Some(ids) = self.ids {
            let mapping = LinuxIdMappingBuilder::default()
                .container_id(0_u32)
                .host_id(ids.start())
                .size(ids.count())
                .build()?;
            linux.set_uid_mappings(Some(vec![mapping])).set_gid_mappings(Some(vec![mapping]));
        }
        if let Some(group) = self.cgroup {
            // What every container needs, runtimes allow by themselves.
            let nothing = LinuxDeviceCgroupBuilder::default().allow(false).access("rwm").build()?;
            let resources = LinuxResourcesBuilder::default()
                .devices(vec![nothing])
                .pids(LinuxPidsBuilder::default().limit(PIDS_MAX).build()?)
                .build()?;
            linux.set_resources(Some(resources)).set_cgroups_path(Some(group.to_owned()));
        }
        Ok(linux)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn written(container: &Container<'_>) -> (Spec, Value) {
        let spec = container.spec().unwrap();
        let text = serde_json::to_string(&spec).unwrap();
        let read: Spec = serde_json::from_str(&text).unwrap();
        assert_eq!(read, spec);
        (spec, serde_json::from_str(&text).unwrap())
    }

    fn plan(text: &str) -> Plan {
        Plan {
            args: vec![text.to_owned()],
            env: vec![format!("A={text}")],
            workdir: format!("/{text}"),
            user: text.to_owned(),
        }
    }

    fn container<'a>(plan: &'a Plan, user: &'a User, preload: &'a Preload) -> Container<'a> {
        Container {
            plan,
            user,
            terminal: false,
            no_new_privileges: true,
            hostname: "h",
            host_network: false,
            read_only: false,
            volumes: &[],
            files: &[],
            preload,
            cgroup: None,
            rootless: false,
            ids: None,
            criu: Path::new("/c/criu.conf"),
            loopback: None,
        }
    }

    #[test]
    fn defaults_are_those_of_engines() {
        let (plan, root, preload) = (plan("sh"), User::default(), Preload::default());
        let (_, all) = written(&container(&plan, &root, &preload));
        let kinds: Vec<&str> = all["linux"]["namespaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["type"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["pid", "ipc", "uts", "mount", "network"]);
        assert_eq!(all["process"]["noNewPrivileges"], true);
        assert_eq!(all["process"]["capabilities"]["effective"].as_array().unwrap().len(), 11);
        assert_eq!(all["process"]["capabilities"]["ambient"].as_array().map_or(0, Vec::len), 0);
        assert!(all["process"]["rlimits"].is_null() && all["linux"]["resources"].is_null());
        assert_eq!(all["root"]["path"], "merged");
        assert!(!all.to_string().contains(".vellum"));
        // Another user has no capabilities, and could get none.
        let user = User { uid: 7, gid: 8, groups: vec![9], home: None };
        let (_, all) = written(&Container {
            cgroup: Some(Path::new("/vellum/a/b")),
            ..container(&plan, &user, &preload)
        });
        assert_eq!(all["process"]["capabilities"]["effective"].as_array().map_or(0, Vec::len), 0);
        assert_eq!(all["process"]["user"]["additionalGids"][0], 9);
        assert_eq!(all["linux"]["cgroupsPath"], "/vellum/a/b");
        assert_eq!(all["linux"]["resources"]["pids"]["limit"], 2048);
        assert_eq!(all["linux"]["resources"]["devices"][0]["allow"], false);
    }

    #[test]
    fn root_of_a_tenant_is_nobody_outside() {
        let (plan, root, preload) = (plan("sh"), User::default(), Preload::default());
        let of = |ids: &str, host_network| {
            let ids = Some(ids.parse().unwrap());
            written(&Container { ids, host_network, ..container(&plan, &root, &preload) }).1
        };
        let all = of("100000:65536", false);
        for key in ["uidMappings", "gidMappings"] {
            let mapping = serde_json::json!([{"containerID": 0, "hostID": 100_000, "size": 65536}]);
            assert_eq!(all["linux"][key], mapping);
        }
        assert_eq!(all["linux"]["namespaces"][5]["type"], "user");
        assert!(all.to_string().contains("gid=5") && all.to_string().contains("\"sysfs\""));
        // Fewer ids than a terminal's group needs; a network that is another's.
        assert!(!of("7:5", false).to_string().contains("gid=5"));
        assert!(of("7:6", false).to_string().contains("gid=5"));
        assert!(!of("7:6", true).to_string().contains("\"sysfs\""));
        let (_, without) = written(&container(&plan, &root, &preload));
        assert!(without["linux"]["uidMappings"].as_array().is_none_or(Vec::is_empty));
    }

    #[test]
    fn a_volume_replaces_a_generated_file() {
        let (plan, root, preload) = (plan("sh"), User::default(), Preload::default());
        let files =
            [(PathBuf::from("/s/hosts"), "/etc/hosts"), (PathBuf::from("/s/hostname"), "/etc/hostname")];
        let volumes = [Volume { from: "/srv".into(), to: "/etc/hosts".into(), read_only: true }];
        let (_, all) =
            written(&Container { files: &files, volumes: &volumes, ..container(&plan, &root, &preload) });
        let of = |place: &str| -> Vec<String> {
            let all = all["mounts"].as_array().unwrap().iter().filter(|one| one["destination"] == place);
            all.map(|one| format!("{} {}", one["source"], one["options"])).collect()
        };
        assert_eq!(of("/etc/hosts").len(), 1);
        assert!(of("/etc/hosts")[0].contains("/srv") && of("/etc/hosts")[0].contains("\"ro\""));
        assert_eq!(of("/etc/hostname").len(), 1);
    }

    proptest! {
        #[test]
        fn a_written_value_parses_back(
            text in "\\PC{0,20}", args in proptest::collection::vec("\\PC{0,12}", 0..5),
            ids in proptest::collection::vec(any::<u32>(), 2..6), flags in any::<[bool; 6]>(), place in "/[a-z/ :,]{0,12}",
        ) {
            let mut plan = plan(&text);
            plan.args.extend(args);
            let user = User { uid: ids[0], gid: ids[1], groups: ids[2..].to_vec(), home: None };
            let preload = Preload { library: flags[0].then(|| place.clone().into()), socket: flags[1].then(|| "/s".into()) };
            let volumes = [Volume { from: place.clone().into(), to: place.clone().into(), read_only: flags[2] }];
            let files = [(PathBuf::from(&place), "/etc/hosts")];
            let all = Container {
                terminal: flags[3], host_network: flags[4], rootless: flags[5], read_only: flags[0], no_new_privileges: flags[1],
                hostname: &text, volumes: &volumes, files: &files, cgroup: flags[2].then_some(Path::new(&place)),
                ..container(&plan, &user, &preload)
            };
            written(&all);
        }
    }
}
