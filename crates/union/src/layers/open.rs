//! The layers are opened, and the upper one is made ready for what is written to it.

use crate::config::UnionConfig;
use crate::extents::OpenSidecars;
use crate::layers::Layers;
use crate::layers::handles::Share;
use crate::layers::layer::{Layer, LowerDir};
use crate::layers::links::LayerLinks;
use crate::layers::list::holds_nothing;
use crate::layers::marks::{self, MarkFormat};
use crate::layers::overrides::Format;
use crate::layers::sidecar;
use crate::layers::work_dir::{Whiteouts, Work};
use crate::nodes::ino;
use std::sync::Arc;
use vellum_vfs::{Branch, BranchDir, Errno, Error, Result};

impl Layers {
    /// Opens the layers and prepares the work directory; also says whether the upper layer may hold whiteouts in the AUFS format.
    ///
    /// EINVAL: no layers, or too many; otherwise the errno of what could not be read, with its path.
    pub(crate) fn open(config: UnionConfig) -> Result<(Self, Option<Work>, bool)> {
        let invalid = |what| Err(Error::new(Errno::INVAL, what));
        if config.lowers.is_empty() && config.upper.is_none() {
            return invalid("a union needs at least one layer");
        }
        if config.lowers.len() > UnionConfig::MAX_LOWERS {
            return invalid("too many lower layers");
        }
        let mut stack = Vec::with_capacity(config.lowers.len() + 1);
        let mut devices = Vec::new();
        let first_lower = u16::from(config.upper.is_some());
        let uppers = config.upper.iter().map(|u| &u.branch);
        for branch in uppers.chain(&config.lowers) {
            stack.push(open_layer(branch, &mut devices)?);
        }
        if let (Some(wanted), Some(_), Some(layer)) = (config.override_stat, &config.upper, stack.first_mut())
        {
            let empty = holds_nothing(&*layer.branch.root())?;
            let settled = layer.overrides.wanted(wanted, layer.marking, empty);
            layer.overrides = settled.map_err(|e| e.at(layer.branch.describe()))?;
        }
        let (work, aufs) = match (&config.upper, stack.first_mut()) {
            (Some(upper), Some(layer)) => {
                let mut work = Work::open(
                    upper,
                    (layer.overrides, config.squash),
                    config.background,
                    config.ledger.as_deref(),
                )?;
                let adopted = adopt_upper(&*upper.branch.root(), &mut work, layer)?;
                let aufs = adopted || work.whiteouts == Whiteouts::Aufs;
                (Some(work), aufs)
            }
            _ => (None, false),
        };
        if let (Some(_), Some(_), Some(layer)) = (config.override_stat, &config.upper, stack.first()) {
            layer.overrides.mark(&*layer.branch.root())?;
        }
        if config.sidecars
            && config.upper.is_some()
            && let Some(layer) = stack.first_mut()
            && layer.maps.is_none()
            && layer.marking.own.is_some()
        {
            layer.maps = Some(sidecar::make(&*layer.branch.root())?);
        }
        if config.upper.is_some()
            && let Some(layer) = stack.first()
            && let Some(maps) = &layer.maps
        {
            sidecar::adopt(&**maps, config.run, &|| layer.branch.sync())
                .map_err(|e| e.doing("taking over maps of blocks").at(layer.branch.describe()))?;
        }
        let layers = Self {
            lower_roots: lower_roots(&stack, first_lower)?,
            links: stack.iter().map(|_| LayerLinks::default()).collect(),
            has_maps: stack.iter().any(|layer| layer.maps.is_some()),
            budget: Share::of_budget(&config.handles),
            config,
            stack,
        };
        Ok((layers, work, aufs))
    }
}

fn open_layer(branch: &Arc<dyn Branch>, devices: &mut Vec<u64>) -> Result<Layer> {
    let name = branch.describe();
    let root = branch.root();
    let attr = root.stat().map_err(|e| e.doing("reading a layer").at(&name))?;
    let fsid = branch.fsid().map_err(|e| e.doing("reading a layer").at(&name))?;
    let fs = devices.iter().position(|d| *d == attr.dev).unwrap_or_else(|| {
        devices.push(attr.dev);
        devices.len() - 1
    });
    let marking = MarkFormat::read(&*root);
    Ok(Layer {
        branch: Arc::clone(branch),
        fs: u16::try_from(fs).unwrap_or(u16::MAX),
        fsid: marks::fold_fsid(fsid),
        marking,
        maps: sidecar::open(&*root, marking.own),
        open_maps: OpenSidecars::default(),
        overrides: Format::detect(&*root),
    })
}

/// Marks the upper as one of ours; true if it held something that others may have put there.
fn adopt_upper(root: &dyn BranchDir, work: &mut Work, layer: &mut Layer) -> Result<bool> {
    if layer.marking.own == Some(work.space) {
        return Ok(layer.marking.adopted);
    }
    let empty = holds_nothing(root)?;
    match layer.marking.own {
        // One of an ordinary user's, in the hands of root: what is marked in one namespace is not found in the other.
        Some(space) => work.space = space,
        None => match MarkFormat::write(root, work.space, !empty) {
            Ok(marking) => layer.marking = marking,
            Err(error) => tracing::warn!(%error, "the upper layer takes no extended attributes"),
        },
    }
    Ok(!empty)
}

fn lower_roots(layers: &[Layer], first: u16) -> Result<Vec<Arc<LowerDir>>> {
    let mut roots = Vec::with_capacity(layers.len());
    for (at, layer) in layers.iter().enumerate().skip(usize::from(first)) {
        let root = layer.branch.root();
        let attr = root.stat()?;
        let marks = marks::read_dir_marks(&*root, layer.marking.spaces)?;
        let at = u16::try_from(at).map_err(|_| Error::new(Errno::INVAL, "too many layers"))?;
        roots.push(Arc::new(LowerDir::new(at, c"", ino::visible_ino(layer.fs, attr.ino), &marks)));
    }
    Ok(roots)
}
