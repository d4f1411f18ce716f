//! Layers on CephFS, and the options that say which cluster they are on.

use super::bad::{BadInput, shown};
use vellum_service::LayerSource;
use vellum_service::ceph::Cluster;
use vellum_service::config::Config;

/// Says of each layer on CephFS that it is on this cluster. Refuses those that cannot be there, and a cluster that none is on.
pub(super) fn place(config: &mut Config, cluster: &Cluster) -> Result<(), BadInput> {
    for (option, layer) in [("upperdir", &config.upper), ("workdir", &config.work)] {
        if let Some(LayerSource::Ceph(layer)) = layer {
            return Err(BadInput::new(format!(
                "option {option}={}: only lower layers can lie on CephFS yet; give a directory of this host",
                shown(layer.to_string().as_bytes())
            )));
        }
    }
    let mut any = false;
    for lower in &mut config.lowers {
        if let LayerSource::Ceph(layer) = lower {
            layer.cluster = cluster.clone();
            any = true;
        }
    }
    if !any && *cluster != Cluster::default() {
        return Err(BadInput::new(
            "options ceph.conf, ceph.id and ceph.fs: no layer is on CephFS; give one with lowerdir=ceph:PATH, or leave them out",
        ));
    }
    Ok(())
}
