//! A container of podman that goes on.
//!
//! Podman is asked to import the archive that was made with the checkpoint: it makes a container, mounts its tree, and calls conmon. In conmon's
//! place it finds a gate. While podman waits there, the empty upper layer is filled; then conmon goes on with the images where they are, and
//! nothing of them was copied. If anything fails, podman takes the container away again.

use super::exec_barrier::{Gate, GateWaiter};
use super::scratch_dir::ScratchDir;
use super::{ARCHIVE, Podman, PodmanCommand, RestoreSpec, archive, succeeded};
use rustix::fs::lgetxattr;
use serde::Deserialize;
use std::collections::HashMap;
use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vellum_container::SavedContainer;
use vellum_container::criu::{ALWAYS, OWN_NETWORK, explain};
use vellum_container::{ContainerExit, Restore};
use vellum_service::Failure;
use vellum_service::config::LAYERS_MAX;
use vellum_service::instance::LAYER;
use vellum_service::mounts::unmount::unmount;
use vellum_sys::remove_tree;

/// What conmon is called with that is to restore a container.
const RESTORES: &str = "--restore";
/// What runc writes of a container that it has restored, and where if it is not told.
const RUNC_STATE: &str = "/run/runc";
const STATE: &str = "state.json";
/// The log of a restoration, in the directory of a container.
const LOG: &str = "restore.log";
/// Longest path of a layer.
const PATH_MAX: usize = 4096;
/// How long a tree may be in use that nobody is to use yet.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// What podman says of itself.
#[derive(Deserialize)]
struct Info {
    host: InfoHost,
    store: InfoStore,
}

#[derive(Deserialize)]
struct InfoHost {
    conmon: Conmon,
}

#[derive(Deserialize)]
struct Conmon {
    path: PathBuf,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InfoStore {
    #[serde(default)]
    graph_options: HashMap<String, serde_json::Value>,
}

/// As much as is of use of a configuration for a runtime.
#[derive(Deserialize)]
struct Spec {
    root: Root,
}

#[derive(Deserialize)]
struct Root {
    path: PathBuf,
}

/// The program that mounts podman's trees, and its options for all of them.
struct Mounter {
    program: PathBuf,
    options: String,
}

impl Mounter {
    fn from_store(store: &InfoStore) -> Option<Self> {
        let program = store.graph_options.get("overlay.mount_program")?;
        // A text in some versions, and in others all that podman knows of it.
        let program = program.get("Executable").unwrap_or(program).as_str()?.into();
        let options = store.graph_options.get("overlay.mountopt").and_then(|options| options.as_str());
        Some(Self { program, options: options.unwrap_or_default().to_owned() })
    }
}

/// Has a container of podman go on.
pub(crate) fn restore(
    asked: &Restore,
    podman: Podman,
    kept: &dyn SavedContainer,
    container: &str,
    described: &RestoreSpec,
) -> Result<ContainerExit, Failure> {
    let name = asked.name.as_deref().unwrap_or(container);
    let restoring = RestoreRun { asked, podman, kept, described };
    restoring.refuse(name)?;
    let info: Info = restoring.podman.query_json(&["info", "--format", "json"])?;
    let mounter = Mounter::from_store(&info.store).ok_or_else(|| {
        restoring.input("podman's storage is not on Vellum; name vellum as mount_program in storage.conf")
    })?;
    let scratch = ScratchDir::new(asked.state.as_deref())?;
    restoring.go(&scratch, &info.host.conmon.path, &mounter)
}

/// The command that mounts a tree, and conmon's arguments.
type Orders = (Vec<OsString>, Vec<OsString>);

/// A container that podman has made, and what has become of it.
#[derive(Default)]
struct ImportedContainer {
    id: Option<PathBuf>,
    log: Option<File>,
    why: Option<Failure>,
}

struct RestoreRun<'a> {
    asked: &'a Restore,
    podman: Podman,
    kept: &'a dyn SavedContainer,
    described: &'a RestoreSpec,
}

impl RestoreRun<'_> {
    fn input(&self, why: impl std::fmt::Display) -> Failure {
        Failure::input(format!("checkpoint {}: {why}", self.kept.display()))
    }

    /// Refuses what podman would do something else with, or nothing.
    fn refuse(&self, name: &str) -> Result<(), Failure> {
        let (asked, described) = (self.asked, self.described);
        for (option, given) in [
            ("--pool", asked.pool.is_some()),
            ("--image", asked.image.is_some()),
            ("--runtime", asked.runtime.is_some()),
        ] {
            if given {
                return Err(self.input(format!(
                    "it is of a container of podman, which decides that; leave {option} out"
                )));
            }
        }
        let id = described.id.as_str();
        let taken = if self.podman.has("container", name)? {
            Some(name)
        } else if asked.name.is_none() && self.podman.has("container", id)? {
            Some(id)
        } else {
            None
        };
        if let Some(taken) = taken {
            return Err(self.input(format!(
                "podman has a container {taken}; remove it with podman rm {taken}, or give another --name"
            )));
        }
        let image = &described.image_name;
        if !self.podman.has("image", &described.image)? {
            return Err(self.input(format!(
                "podman has no image {image} with the id {}; get it with podman pull or podman load",
                described.image
            )));
        }
        if self.podman.layers(&described.image)? != described.layers {
            return Err(self.input(format!("image {image}: it has other layers than at the checkpoint")));
        }
        if let Some(library) = &described.library {
            library.check().map_err(|why| why.context(format!("checkpoint {}", self.kept.display())))?;
        }
        for mount in &described.mounts {
            let missing = match &mount.volume {
                Some(volume) => (!self.podman.has("volume", volume)?)
                    .then(|| format!("volume {volume}, which is not there; podman volume create {volume}")),
                None => (!mount.source.exists())
                    .then(|| format!("{}, which is not there; make it", mount.source.display())),
            };
            if let Some(missing) = missing {
                return Err(self.input(format!("the container sees {missing} first")));
            }
        }
        Ok(())
    }

    fn go(&self, scratch: &ScratchDir, conmon: &Path, mounter: &Mounter) -> Result<ContainerExit, Failure> {
        let failed = |e: std::io::Error| Failure::at(scratch.path(), e);
        let archive = self.kept.file(ARCHIVE)?.ok_or_else(|| self.input("it has nothing for podman"))?;
        if archive::text(&archive, "config.dump").map_err(failed)?.is_none() {
            return Err(self.input("it does not say what the container was started with"));
        }
        let file = scratch.path().join(ARCHIVE);
        fs::write(&file, archive).map_err(failed)?;
        let gate = Gate::new(scratch.path(), scratch.path()).map_err(failed)?;
        let script = gate.script(&self.asked.vellum, "conmon", RESTORES, conmon).map_err(failed)?;
        let mut arguments: Vec<OsString> = vec!["--conmon".into(), script.into()];
        arguments.extend(["container", "restore", "--ignore-rootfs", "--ignore-volumes"].map(OsString::from));
        arguments.extend(ALWAYS.map(OsString::from));
        // Podman refuses connections under another name.
        if !self.described.host_network && self.asked.name.is_none() {
            arguments.extend(OWN_NETWORK.map(OsString::from));
        }
        arguments.extend(["--import".into(), file.into()]);
        if let Some(name) = &self.asked.name {
            arguments.extend(["--name".into(), name.into()]);
        }
        let podman = PodmanCommand::start(self.podman.command(&arguments), scratch.path());
        let mut podman = podman.map_err(failed)?;
        let mut made = ImportedContainer::default();
        if let Some(waiting) = gate.wait(&mut podman.child).map_err(failed)? {
            let dir = after(&waiting.arguments, "-b");
            made.id = after(&waiting.arguments, "-c");
            match self.prepare(&waiting, scratch.path(), mounter) {
                Ok((mount, arguments)) => {
                    // Before podman removes it with the container.
                    made.log = dir.and_then(|dir| File::open(dir.join(LOG)).ok());
                    waiting.go(&mount, &arguments).map_err(failed)?;
                }
                Err(why) => made.why = Some(why),
            }
        }
        match succeeded(podman.output().map_err(failed)?) {
            Ok(output) => {
                let _ = std::io::stdout().write_all(&output.stdout);
                Ok(ContainerExit { status: 0, said: None })
            }
            Err(said) => Err(self.failed(made, said)),
        }
    }

    /// Why it does not go on. Podman has no container of it then; some versions leave one behind.
    fn failed(&self, made: ImportedContainer, said: String) -> Failure {
        if let Some(id) = made.id {
            let removed = self.podman.command(["rm".as_ref(), "--force".as_ref(), id.as_os_str()]).output();
            tracing::debug!(?removed);
        }
        let display = self.kept.display();
        if let Some(why) = made.why {
            return why.context(format!("checkpoint {display}"));
        }
        let of_log = |log: File| explain(format!("/proc/self/fd/{}", log.as_raw_fd()).as_ref());
        let log = self.kept.read_failure().or_else(|| made.log.and_then(of_log));
        Failure::system(format!("checkpoint {display}: cannot be restored: {}", log.unwrap_or(said)))
    }

    /// Fills the upper layer of the container that podman has made: the command that mounts its tree again, and with what arguments conmon is
    /// to go on then.
    fn prepare(&self, waiting: &GateWaiter, scratch: &Path, mounter: &Mounter) -> Result<Orders, Failure> {
        let words = &waiting.arguments;
        let unclear = || Failure::system("podman calls conmon in a way that is not known");
        let bundle = after(words, "-b").ok_or_else(unclear)?;
        let id = after(words, "-c").ok_or_else(unclear)?;
        let spec = bundle.join("config.json");
        let text = fs::read(&spec).map_err(|e| Failure::at(&spec, e))?;
        let spec: Spec = serde_json::from_slice(&text).map_err(|_| unclear())?;
        let mount = self.fill(&spec.root.path, mounter)?;
        let restored = Path::new(RUNC_STATE).join(id).join(STATE);
        let images = self.kept.images(scratch, &restored)?;
        let at = words.iter().position(|word| word == RESTORES).ok_or_else(unclear)?;
        let mut told = words.clone();
        *told.get_mut(at + 1).ok_or_else(unclear)? = images.into();
        Ok((mount, told))
    }

    /// Takes the tree away and fills its upper layer. The command by which podman's program mounts it again, as podman did.
    fn fill(&self, merged: &Path, mounter: &Mounter) -> Result<Vec<OsString>, Failure> {
        let mut layers = Vec::new();
        for number in 0..=LAYERS_MAX {
            match layer(merged, number) {
                Some(layer) => layers.push(layer),
                None => break,
            }
        }
        let dir = merged.parent().unwrap_or(Path::new("/"));
        let (upper, work) = (dir.join("diff"), dir.join("work"));
        let ours = layers.first().is_some_and(|first| is_same_path(first, &upper)) && layers.len() > 1;
        if !ours {
            return Err(Failure::system(format!(
                "{}: not a mount of Vellum as podman makes it; name vellum as mount_program in storage.conf",
                merged.display()
            )));
        }
        unused(merged)?;
        for entry in fs::read_dir(&upper).map_err(|e| Failure::at(&upper, e))? {
            let path = entry.map_err(|e| Failure::at(&upper, e))?.path();
            let is_dir = path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
            let removed = if is_dir { remove_tree(&path) } else { fs::remove_file(&path) };
            removed.map_err(|e| Failure::at(&path, e))?;
        }
        self.kept.upper(&upper)?;
        let mut options = OsString::from("lowerdir=");
        for (number, lower) in layers.iter().skip(1).enumerate() {
            if number > 0 {
                options.push(":");
            }
            options.push(lower);
        }
        for (name, dir) in [(",upperdir=", &upper), (",workdir=", &work)] {
            options.push(name);
            options.push(dir);
        }
        if !mounter.options.is_empty() {
            options.push(",");
            options.push(&mounter.options);
        }
        Ok(vec![mounter.program.clone().into(), "-o".into(), options, merged.into()])
    }
}

fn after(words: &[OsString], option: &str) -> Option<PathBuf> {
    let at = words.iter().position(|word| word == option)?;
    words.get(at + 1).map(PathBuf::from)
}

/// A layer of a mount, by its number.
pub(crate) fn layer(merged: &Path, number: usize) -> Option<PathBuf> {
    let mut path = vec![0; PATH_MAX];
    let question = CString::new(format!("{LAYER}{number}")).ok()?;
    let len = lgetxattr(merged, &question, path.as_mut_slice()).ok()?;
    path.truncate(len);
    Some(OsString::from_vec(path).into())
}

fn is_same_path(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().ok().zip(other.canonicalize().ok()).is_some_and(|(a, b)| a == b)
}

/// Takes away a tree that somebody may have looked at a moment ago.
fn unused(merged: &Path) -> Result<(), Failure> {
    let mut unmounted = Ok(());
    vellum_sys::wait_until(PATIENCE, PAUSE, || {
        unmounted = unmount(merged, false);
        unmounted.is_ok()
    });
    unmounted
}
