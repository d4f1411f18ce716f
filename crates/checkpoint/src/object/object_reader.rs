//! A checkpoint that is an object, to be restored.

use super::format::{Contents, Index, ObjectInfo};
use super::image_files::{Files, Object, serve};
use super::layer;
use super::unpack::ObjectBytes;
use crate::detached_mount::DetachedMount;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use vellum_container::SavedContainer;
use vellum_service::Failure;

/// How often it is looked whether a container has been restored.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct ObjectReader {
    object: Arc<Object>,
    index: Index,
    display: String,
    mount: Arc<Mutex<Option<DetachedMount>>>,
}

impl ObjectReader {
    /// The one in an object. `parents`: those that it needs, in the order of its map.
    pub(crate) fn new(
        object_info: ObjectInfo,
        parents: Vec<ObjectInfo>,
        display: &str,
    ) -> Result<Self, Failure> {
        let (index, bytes) = object_info.open(parents)?;
        Ok(Self::of(index, bytes, display))
    }

    /// What an index says of these bytes.
    pub(super) fn of(index: Index, bytes: ObjectBytes, display: &str) -> Self {
        let object = Arc::new(Object { bytes: Mutex::new(Some(Arc::new(bytes))), trouble: Mutex::default() });
        Self { object, index, display: display.to_owned(), mount: Arc::default() }
    }

    fn bytes(&self) -> Result<Arc<ObjectBytes>, Failure> {
        let bytes = self.object.bytes.lock().clone();
        bytes.ok_or_else(|| Failure::system(format!("{}: it has been given back", self.display)))
    }

    fn read(&self, contents: &Contents) -> Result<Vec<u8>, Failure> {
        let bytes = self.bytes()?;
        let mut text = Vec::new();
        for piece in &contents.pieces {
            let from = text.len();
            text.resize(from + usize::try_from(piece.len).unwrap_or(0), 0);
            let part = text.get_mut(from..).unwrap_or_default();
            bytes
                .read_exact(piece.from, part)
                .map_err(|e| Failure::system(self.display.clone()).because(e))?;
        }
        Ok(text)
    }

    #[cfg(test)]
    pub(super) fn image(&self, name: &str) -> Option<Vec<u8>> {
        self.index.images.get(name).and_then(|contents| self.read(contents).ok())
    }
}

impl SavedContainer for ObjectReader {
    fn display(&self) -> String {
        self.display.clone()
    }

    fn upper(&self, to: &Path) -> Result<(), Failure> {
        let bytes = self.bytes()?;
        layer::unpack(&self.index.layer, &bytes, to)
    }

    fn file(&self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        self.index.files.get(name).map(|contents| self.read(contents)).transpose()
    }

    fn read_failure(&self) -> Option<String> {
        self.object.trouble.lock().clone()
    }

    fn images(&self, scratch: &Path, restored: &Path) -> Result<PathBuf, Failure> {
        let files = Arc::new(Files::from(Arc::clone(&self.object), &self.index.images));
        let mount = serve(&files, scratch)?;
        let path = mount.path().to_owned();
        *self.mount.lock() = Some(mount);
        let (restored, object, mount) =
            (restored.to_owned(), Arc::clone(&self.object), Arc::clone(&self.mount));
        // Others may have the store as soon as the container runs.
        let watch = move || {
            while !restored.exists() || files.is_open() {
                thread::sleep(LOOK);
            }
            *mount.lock() = None;
            *object.bytes.lock() = None;
        };
        let watching = thread::Builder::new().name("restored".to_owned()).spawn(watch);
        watching.map_err(|e| Failure::system("no thread to watch a restored container").because(e))?;
        Ok(path)
    }
}
