//! Layers on CephFS, and the options that say which cluster they are on.

use super::bad::BadInput;
use vellum_service::LayerSource;
use vellum_service::config::Config;
use vellum_service::layers::ceph::Cluster;

/// Says of each layer on CephFS that it is on this cluster. Refuses a cluster that none is on.
pub(super) fn place(config: &mut Config, cluster: &Cluster) -> Result<(), BadInput> {
    let mut any = false;
    for source in config.upper.iter_mut().chain(&mut config.work).chain(&mut config.lowers) {
        if let LayerSource::Ceph(layer) = source {
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
