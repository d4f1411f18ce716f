//! Layers on CephFS, and the options that say which cluster they are on, and when an upper layer there is written to.

use super::bad_input::BadInput;
use std::time::Duration;
use vellum_service::LayerSource;
use vellum_service::config::{Config, WritebackConfig};
use vellum_service::layers::ceph::Cluster;

/// What options say of when the cluster is given changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WriteTiming {
    /// Later.
    pub(super) writeback: bool,
    pub(super) bytes: Option<u64>,
    pub(super) age: Option<Duration>,
}

impl WriteTiming {
    /// The policy. Refuses one that does not fit the layers, and limits of none.
    pub(super) fn policy(&self, config: &Config) -> Result<Option<WritebackConfig>, BadInput> {
        let refused = |why: String| Err(BadInput::new(why));
        if !self.writeback {
            let said = [("ceph.dirty", self.bytes.is_some()), ("ceph.age", self.age.is_some())];
            return match said.iter().find(|(_, said)| *said) {
                Some((key, _)) => refused(format!(
                    "option {key}: each change is written before it is answered; add ceph.write=back, or leave it out"
                )),
                None => Ok(None),
            };
        }
        if config.flags.read_only && config.upper.as_ref().is_some_and(|upper| upper.ceph().is_some()) {
            return Ok(None);
        }
        let is_far = config.writable_layers().is_some_and(|(upper, _)| upper.ceph().is_some());
        // A mount without an upper layer and one without a work directory are refused for that.
        if !is_far {
            return refused(
                "option ceph.write=back: no upper layer on CephFS is written to; give one with \
                 upperdir=ceph:PATH,workdir=ceph:PATH, or leave it out"
                    .into(),
            );
        }
        let bytes = self.bytes.unwrap_or(WritebackConfig::BYTES_USUAL);
        if !WritebackConfig::BYTES.contains(&bytes) {
            return refused(format!("option ceph.dirty: {bytes} bytes cannot be; write 4M to 64G"));
        }
        let age = self.age.unwrap_or(WritebackConfig::AGE_USUAL);
        if !WritebackConfig::AGES.contains(&age) {
            return refused(format!("option ceph.age: {} cannot be; write 0.1 to 3600", age.as_secs_f64()));
        }
        Ok(Some(WritebackConfig { bytes, age }))
    }
}

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
