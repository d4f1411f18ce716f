//! A container of containerd that goes on.
//!
//! The tree is mounted where it was, above a new upper layer, and `ctr run` makes the container anew. The program that containerd calls for
//! it is a script that has runc restore where it is asked to create, and gives its place to runc itself when the container runs.

use super::{Containerd, RUNTIME, RestoreSpec, Spec, runc_state, runtimes, succeeded};
use crate::podman::{ScratchDir, quoted};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use vellum_container::SavedContainer;
use vellum_container::criu::{ALWAYS, OWN_NETWORK, explain};
use vellum_container::{ContainerExit, Restore, in_path};
use vellum_pool::Mount;
use vellum_service::config::Config;
use vellum_service::mounts::mountpoint::top_mount;
use vellum_service::mounts::unmount::unmount;
use vellum_service::{Failure, LayerSource};
use vellum_sys::remove_tree;

/// What runc writes of a container that it has restored.
const STATE: &str = "state.json";
/// Logs of CRIU, in the directory of the script, and that of a restoration.
const WORK: &str = "criu";
const LOG: &str = "restore.log";
/// How long a tree may be in use that nobody is to use any more.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// Has a container of containerd go on.
pub(crate) fn restore(
    asked: &Restore,
    containerd: Containerd,
    kept: &dyn SavedContainer,
    container: &str,
    described: &RestoreSpec,
) -> Result<ContainerExit, Failure> {
    let spec = Spec::parse(&described.spec)?;
    let restoring = RestoreRun { asked, containerd, kept, id: container, described, spec };
    restoring.refuse()?;
    let lowers = restoring.lowers()?;
    let runc = in_path(Path::new(RUNTIME))
        .ok_or_else(|| Failure::input("no runc in PATH, which restores containers; apt-get install runc"))?;
    restoring.mount(lowers)?;
    let gone_on = restoring.go(&runc);
    if gone_on.is_err() {
        restoring.take_back();
    }
    gone_on
}

/// A directory, with those above it that are missing, which only this user enters: programs in an upper layer may be root's with set-user-ID bits.
fn private(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

struct RestoreRun<'a> {
    asked: &'a Restore,
    containerd: Containerd,
    kept: &'a dyn SavedContainer,
    id: &'a str,
    described: &'a RestoreSpec,
    spec: Spec,
}

impl RestoreRun<'_> {
    fn input(&self, why: impl std::fmt::Display) -> Failure {
        Failure::input(format!("checkpoint {}: {why}", self.kept.display()))
    }

    /// Refuses what would become something else than it was.
    fn refuse(&self) -> Result<(), Failure> {
        let asked = self.asked;
        for (option, given) in [
            ("--name", asked.name.is_some()),
            ("--image", asked.image.is_some()),
            ("--runtime", asked.runtime.is_some()),
        ] {
            if given {
                return Err(self.input(format!("it is of a container of containerd; leave {option} out")));
            }
        }
        let RestoreSpec { namespace, root, upper, .. } = self.described;
        if self.containerd.output(namespace, ["containers", "info", self.id])?.status.success() {
            let id = self.id;
            return Err(self.input(format!(
                "containerd has a container {id} in namespace {namespace}; remove it with ctr -n {namespace} containers rm {id}"
            )));
        }
        let display = root.display();
        let point = root.canonicalize().unwrap_or_else(|_| root.clone());
        if top_mount(&point).is_some() {
            return Err(
                self.input(format!("the container's root {display} is mounted; vellum umount {display}"))
            );
        }
        if !root.is_dir() {
            return Err(
                self.input(format!("the container's root {display} is not there; make the directory"))
            );
        }
        if fs::read_dir(upper).is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(
                self.input(format!("upper layer {}: something is in it; move that away", upper.display()))
            );
        }
        if let Some(library) = &self.described.library {
            library.check().map_err(|why| self.input(why))?;
        }
        if let Some(missing) = self.spec.sources().find(|source| !source.exists()) {
            return Err(self.input(format!(
                "the container sees {}, which is not there; make it first",
                missing.display()
            )));
        }
        Ok(())
    }

    /// The layers below, as they were.
    fn lowers(&self) -> Result<Vec<LayerSource>, Failure> {
        let store = vellum_container::State::open(self.asked.state.as_deref())?.layers();
        let mut all = Vec::new();
        for lowers in &self.described.lowers {
            let found = lowers.layers(&lowers.source(), &store, &|| false);
            let found = found.map_err(|why| why.context(format!("checkpoint {}", self.kept.display())))?;
            all.extend(found.into_iter().flatten());
        }
        Ok(all)
    }

    /// Fills the upper layer, and mounts the tree.
    fn mount(&self, lowers: Vec<LayerSource>) -> Result<(), Failure> {
        let RestoreSpec { root, upper, work, profile, .. } = self.described;
        let profile = profile.parse().unwrap_or_default();
        for dir in [upper, work] {
            private(dir).map_err(|e| Failure::at(dir, e))?;
        }
        let config = Config {
            mountpoint: root.clone(),
            lowers,
            upper: Some(upper.clone().into()),
            work: Some(work.clone().into()),
            profile,
            ..Config::default()
        };
        let mount = Mount { config, pool: self.asked.pool.clone(), foreground: false };
        let mounted = self.kept.upper(upper).and_then(|()| mount.mount_by_helper(&self.asked.vellum));
        if mounted.is_err() {
            self.empty();
        }
        mounted
    }

    /// Has containerd run it.
    fn go(&self, runc: &Path) -> Result<ContainerExit, Failure> {
        let RestoreSpec { namespace, spec, .. } = self.described;
        let state = self.asked.state.as_deref();
        let scratch = ScratchDir::new(state)?;
        let dir = runtimes(state, namespace, self.id)?;
        let failed = |e: io::Error| Failure::at(&dir, e);
        // Of one that containerd has no more.
        if dir.exists() {
            remove_tree(&dir).map_err(failed)?;
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir.join(WORK)).map_err(failed)?;
        let restored = runc_state(namespace).join(self.id).join(STATE);
        let images = self.kept.images(scratch.path(), &restored)?;
        let program = dir.join(RUNTIME);
        self.script(&dir, runc, &images).map_err(failed)?;
        let file = scratch.path().join("spec.json");
        let text = serde_json::to_vec(spec).map_err(|e| Failure::system("a specification").because(e))?;
        fs::write(&file, text).map_err(failed)?;
        let arguments = [
            "run".as_ref(),
            "--detach".as_ref(),
            "--config".as_ref(),
            file.as_os_str(),
            "--runc-binary".as_ref(),
            program.as_os_str(),
            self.id.as_ref(),
        ];
        match succeeded(self.containerd.output(namespace, arguments)?) {
            Ok(_) => {
                let _ = writeln!(io::stdout(), "{namespace}/{}", self.id);
                Ok(ContainerExit { status: 0, said: None })
            }
            Err(said) => {
                let why = explain(&dir.join(WORK).join(LOG)).unwrap_or(said);
                // Containerd takes back what it has begun, but for what it has not noticed.
                for what in [&["tasks", "rm", "--force"][..], &["containers", "rm"]] {
                    let _ = self.containerd.output(namespace, what.iter().chain([&self.id]));
                }
                let _ = remove_tree(&dir);
                Err(Failure::system(format!("checkpoint {}: cannot be restored: {why}", self.kept.display())))
            }
        }
    }

    /// The program that containerd calls, and beside it what takes its place.
    fn script(&self, dir: &Path, runc: &Path, images: &Path) -> io::Result<()> {
        let (program, next) = (dir.join(RUNTIME), dir.join("next"));
        symlink(runc, &next)?;
        let mut options = ALWAYS.to_vec();
        if self.spec.has_namespace("network") {
            options.extend(OWN_NETWORK);
        }
        let work = dir.join(WORK);
        let [runc, images, work, program_word, next, path] = [
            runc.as_os_str(),
            images.as_os_str(),
            work.as_os_str(),
            program.as_os_str(),
            next.as_os_str(),
            &self.containerd.path,
        ]
        .map(quoted);
        let options = options.join(" ");
        let parts: [&[u8]; 16] = [
            b"#!/bin/sh\n# Has runc restore a container for containerd, and is replaced by it.\nfor word; do case $word in\ncreate)\n  PATH=",
            &path,
            b"\n  export PATH\n  for word; do\n    shift\n    if [ \"$word\" = create ]; then set -- \"$@\" restore --detach --image-path ",
            &images,
            b"--work-path ",
            &work,
            options.as_bytes(),
            b"\n    else set -- \"$@\" \"$word\"; fi\n  done\n  exec ",
            &runc,
            b"\"$@\" ;;\nstart) mv -f ",
            &next,
            &program_word,
            b"; exit 0 ;;\nstate|kill|delete|pause|resume|exec|ps|events|update|checkpoint|list) break ;;\n",
            b"esac; done\nexec ",
            &runc,
            b"\"$@\"\n",
        ];
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o700).open(&program)?;
        parts.iter().try_for_each(|part| file.write_all(part))
    }

    /// The tree, and what the upper layer was filled with, go.
    fn take_back(&self) {
        let root = &self.described.root;
        let begin = Instant::now();
        while let Err(why) = unmount(root, false) {
            if begin.elapsed() > PATIENCE {
                tracing::warn!("{why}");
                return;
            }
            thread::sleep(PAUSE);
        }
        self.empty();
    }

    fn empty(&self) {
        for entry in fs::read_dir(&self.described.upper).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_dir = path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
            let removed = if is_dir { remove_tree(&path) } else { fs::remove_file(&path) };
            if let Err(e) = removed {
                tracing::warn!("{}: cannot be removed: {e}", path.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn directories_for_an_upper_layer_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let upper = dir.path().join("a/b/upper");
        private(&upper).unwrap();
        for made in upper.ancestors().take(3) {
            assert_eq!(made.metadata().unwrap().mode() & 0o777, 0o700, "{}", made.display());
        }
        private(&upper).unwrap();
    }
}
