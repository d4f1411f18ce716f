//! What container engines are configured to mount with, and where their stores are.

use super::check::Check;
use super::host::Host;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LayerStore {
    pub(super) path: PathBuf,
    /// Whether its engine mounts it with Vellum.
    pub(super) is_ours: bool,
}

/// The program that Docker and containerd's snapshotter call.
const FUSE_OVERLAYFS: &str = "fuse-overlayfs";

pub(super) fn checks(host: &Host) -> (Vec<Check>, Vec<LayerStore>) {
    let mut checks = Vec::new();
    let mut stores = Vec::new();
    podman(host, &mut checks, &mut stores);
    docker(host, &mut checks, &mut stores);
    containerd(host, &mut stores);
    (checks, stores)
}

/// The file that podman, buildah and skopeo of this user read.
fn storage_conf(host: &Host) -> Option<(PathBuf, String)> {
    let user = host.config.as_ref().map(|dir| dir.join("containers/storage.conf"));
    let candidates = [
        host.storage_conf.clone(),
        user.filter(|_| !host.is_root()),
        Some("/etc/containers/storage.conf".into()),
        Some("/usr/share/containers/storage.conf".into()),
    ];
    candidates.into_iter().flatten().find_map(|path| {
        let text = host.read(&path)?;
        Some((path, text))
    })
}

fn podman(host: &Host, checks: &mut Vec<Check>, stores: &mut Vec<LayerStore>) {
    const SUBJECT: &str = "podman";
    let file = storage_conf(host);
    let shown =
        file.as_ref().map_or("/etc/containers/storage.conf".into(), |(path, _)| path.display().to_string());
    let parsed: Option<Result<toml::Table, _>> = file.as_ref().map(|(_, text)| text.parse());
    let is_broken = matches!(parsed, Some(Err(_)));
    let table = parsed.and_then(Result::ok).unwrap_or_default();
    let storage = table.get("storage").and_then(toml::Value::as_table);
    let options = storage.and_then(|table| table.get("options")?.as_table());
    let overlay = options.and_then(|table| table.get("overlay")?.as_table());
    // The older place of the same option.
    let program = overlay
        .and_then(|table| table.get("mount_program"))
        .or_else(|| options?.get("mount_program"))
        .and_then(toml::Value::as_str)
        .filter(|program| !program.is_empty())
        .map(PathBuf::from);
    let is_ours = program.as_deref().is_some_and(|program| host.is_vellum(program));

    let default = if host.is_root() {
        Some("/var/lib/containers/storage".into())
    } else {
        host.data.as_ref().map(|dir| dir.join("containers/storage"))
    };
    let named = storage.and_then(|table| {
        let key = if host.is_root() { "graphroot" } else { "rootless_storage_path" };
        // Names with variables are podman's to expand.
        Some(PathBuf::from(table.get(key)?.as_str().filter(|path| !path.contains('$'))?))
    });
    let store = named.or(default);
    let mark = store.as_ref().map(|path| path.join("overlay/.has-mount-program")).unwrap_or_default();
    let has_mark = host.read(&mark).is_some_and(|text| text.trim() == "true");
    if let Some(path) = store {
        stores.push(LayerStore { path: host.at(path), is_ours });
    }

    if host.program("podman").is_none() && host.program("buildah").is_none() {
        checks.push(Check::ok(SUBJECT, "not installed"));
        return;
    }
    checks.push(match program {
        _ if is_broken => Check::problem(SUBJECT, format!("{shown} is not TOML"), "correct the file"),
        Some(program) if !host.at(&program).is_file() => Check::problem(
            SUBJECT,
            format!("{shown} names {}, which is missing", program.display()),
            "run make install, or correct mount_program",
        ),
        Some(program) if is_ours => Check::ok(SUBJECT, format!("mounts with {}", program.display())),
        Some(program) => Check::note(SUBJECT, format!("mounts with {}", program.display()))
            .remedy(format!("for Vellum, change mount_program in {shown}")),
        // The mark that podman leaves at the first use of a mount program.
        None if host.program(FUSE_OVERLAYFS).is_some() && has_mark => Check::note(
            SUBJECT,
            format!("mounts with {FUSE_OVERLAYFS}, because {} says true", mark.display()),
        )
        .remedy("for the kernel's overlayfs, stop all containers and remove that file"),
        None => Check::note(SUBJECT, "mounts with the kernel's overlayfs")
            .remedy(format!("for Vellum, set mount_program in {shown}")),
    });
}

fn docker(host: &Host, checks: &mut Vec<Check>, stores: &mut Vec<LayerStore>) {
    const SUBJECT: &str = "docker";
    const FILE: &str = "/etc/docker/daemon.json";
    let program = host.program(FUSE_OVERLAYFS);
    let is_ours = program.as_deref().is_some_and(|program| host.is_vellum(program));
    let parsed = host.read(FILE).map(|text| serde_json::from_str::<serde_json::Value>(&text));
    let is_broken = matches!(parsed, Some(Err(_)));
    let settings = parsed.and_then(Result::ok).unwrap_or_default();
    let text = |key: &str| settings.get(key).and_then(serde_json::Value::as_str);
    let data = text("data-root").unwrap_or("/var/lib/docker");
    stores.push(LayerStore { path: host.at(data), is_ours });
    if host.program("dockerd").is_none() {
        checks.push(Check::ok(SUBJECT, "not installed"));
        return;
    }
    checks.push(match (text("storage-driver"), program) {
        _ if is_broken => Check::problem(SUBJECT, format!("{FILE} is not JSON"), "correct the file"),
        (Some(FUSE_OVERLAYFS), None) => Check::problem(
            SUBJECT,
            "its driver is fuse-overlayfs, and no such program is in PATH",
            "run make install, and link fuse-overlayfs to vellum",
        ),
        (Some(FUSE_OVERLAYFS), Some(program)) if is_ours => {
            Check::ok(SUBJECT, format!("mounts with Vellum, as {}", program.display()))
        }
        (Some(FUSE_OVERLAYFS), Some(program)) => {
            Check::note(SUBJECT, format!("mounts with {}", program.display()))
                .remedy(format!("for Vellum, link {} to vellum", program.display()))
        }
        (driver, _) => {
            let driver =
                driver.map_or("its default driver".to_owned(), |driver| format!("the driver {driver}"));
            Check::note(SUBJECT, format!("mounts with {driver}"))
                .remedy(format!("for Vellum, set \"storage-driver\": \"{FUSE_OVERLAYFS}\" in {FILE}"))
        }
    });
}

fn containerd(host: &Host, stores: &mut Vec<LayerStore>) {
    let path = Path::new("/var/lib/containerd-fuse-overlayfs");
    let is_ours = host.program(FUSE_OVERLAYFS).as_deref().is_some_and(|program| host.is_vellum(program));
    if host.at(path).is_dir() {
        stores.push(LayerStore { path: host.at(path), is_ours });
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Grade;
    use super::super::host::tests::host;
    use super::*;

    const PODMAN: (&str, &str) = ("/usr/bin/podman", "");
    const OURS: (&str, &str) = ("/usr/local/bin/vellum", "");

    fn judged(uid: u32, files: &[(&str, &str)]) -> (Check, LayerStore) {
        let (_dir, host) = host(uid, files);
        let (mut checks, mut stores) = (Vec::new(), Vec::new());
        podman(&host, &mut checks, &mut stores);
        let mut store = stores.remove(0);
        store.path = Path::new("/").join(store.path.strip_prefix(&host.root).unwrap());
        (checks.remove(0), store)
    }

    #[test]
    fn podmans_mount_program_is_read_from_its_config_files() {
        let ours = "[storage.options.overlay]\nmount_program = \"/usr/local/bin/vellum\"\n";
        let system = ("/etc/containers/storage.conf", ours);
        let (check, store) = judged(0, &[PODMAN, OURS, system]);
        assert_eq!((check.grade, store.is_ours), (Grade::Ok, true));
        assert_eq!(store.path, Path::new("/var/lib/containers/storage"));

        // An ordinary user's own file comes first.
        let own = ("/srv/ann/.config/containers/storage.conf", "[storage]\ndriver = \"overlay\"\n");
        let (check, store) = judged(1000, &[PODMAN, OURS, system, own]);
        assert_eq!((check.grade, store.is_ours), (Grade::Note, false));
        assert_eq!(store.path, Path::new("/srv/ann/.local/share/containers/storage"));
        let (_, store) =
            judged(0, &[PODMAN, ("/etc/containers/storage.conf", "[storage]\ngraphroot = \"/srv/c\"\n")]);
        assert_eq!(store.path, Path::new("/srv/c"));
    }

    #[test]
    fn a_missing_mount_program_is_a_problem() {
        let conf = "[storage.options]\nmount_program = \"/opt/vellum\"\n";
        let (check, _) = judged(0, &[PODMAN, ("/etc/containers/storage.conf", conf)]);
        assert_eq!(check.grade, Grade::Problem);
        let (check, _) = judged(0, &[PODMAN, ("/etc/containers/storage.conf", "[storage")]);
        assert_eq!(check.grade, Grade::Problem);
    }

    #[test]
    fn a_store_that_had_a_mount_program_stays_on_fuse_overlayfs() {
        let mark = ("/var/lib/containers/storage/overlay/.has-mount-program", "true");
        let (check, _) = judged(0, &[PODMAN, mark, ("/usr/bin/fuse-overlayfs", "")]);
        assert!(check.finding.starts_with("mounts with fuse-overlayfs, because "), "{check:?}");
        let (check, _) = judged(0, &[PODMAN, mark]);
        assert_eq!(check.finding, "mounts with the kernel's overlayfs");
    }

    #[test]
    fn dockers_driver_decides() {
        let dockerd = ("/usr/bin/dockerd", "");
        let daemon =
            ("/etc/docker/daemon.json", r#"{"storage-driver": "fuse-overlayfs", "data-root": "/srv/d"}"#);
        let grade = |files: &[(&str, &str)]| {
            let (_dir, host) = host(0, files);
            let (mut checks, mut stores) = (Vec::new(), Vec::new());
            docker(&host, &mut checks, &mut stores);
            checks.remove(0).grade
        };
        assert_eq!(grade(&[]), Grade::Ok);
        assert_eq!(grade(&[dockerd]), Grade::Note);
        assert_eq!(grade(&[dockerd, daemon]), Grade::Problem);
        assert_eq!(grade(&[dockerd, daemon, ("/usr/bin/fuse-overlayfs", "")]), Grade::Note);
    }
}
