//! The filesystems that are compared, by name.

use crate::tasks::Task;

/// Which filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A directory on the testbed, without a union.
    Host,
    /// The kernel's overlayfs with its default options.
    Overlay,
    /// The kernel's overlayfs on XFS, which can share blocks between files.
    OverlayXfs,
    /// fuse-overlayfs, versions 0 and 1.
    FuseOverlayfs,
    /// fuse-overlayfs, version 2.
    FuseOverlayfs2,
    /// unionfs-fuse.
    UnionfsFuse,
    /// `Host` on CephFS, with a client for each tenant.
    HostOwn,
    /// `FuseOverlayfs` on CephFS, with a client for each tenant.
    FuseOverlayfsOwn,
    /// `FuseOverlayfs2` on CephFS, with a client for each tenant.
    FuseOverlayfs2Own,
    /// `UnionfsFuse` on CephFS, with a client for each tenant.
    UnionfsFuseOwn,
    /// Vellum with `profile=cached`.
    VellumCached,
    /// Vellum with `profile=passthrough`.
    VellumPassthrough,
    /// `VellumCached`, which writes to CephFS behind.
    VellumCachedBack,
    /// `VellumPassthrough`, which writes to CephFS behind.
    VellumPassthroughBack,
    /// `VellumPassthrough` in a pool of its own, with Vellum's library in every process that works on it.
    VellumLibrary,
    /// `VellumCached`, with the service of each tenant in a pool of its own.
    VellumCachedPools,
    /// `VellumPassthrough`, with the service of each tenant in a pool of its own.
    VellumPassthroughPools,
    /// `VellumCached`, all mounts in one pool, whose service's cache they share.
    VellumShares,
}

impl Kind {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 18] = [
        Self::Host,
        Self::Overlay,
        Self::OverlayXfs,
        Self::FuseOverlayfs,
        Self::FuseOverlayfs2,
        Self::UnionfsFuse,
        Self::HostOwn,
        Self::FuseOverlayfsOwn,
        Self::FuseOverlayfs2Own,
        Self::UnionfsFuseOwn,
        Self::VellumCached,
        Self::VellumPassthrough,
        Self::VellumCachedBack,
        Self::VellumPassthroughBack,
        Self::VellumLibrary,
        Self::VellumCachedPools,
        Self::VellumPassthroughPools,
        Self::VellumShares,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Overlay => "overlayfs",
            Self::OverlayXfs => "overlayfs-xfs",
            Self::FuseOverlayfs => "fuse-overlayfs",
            Self::FuseOverlayfs2 => "fuse-overlayfs-2",
            Self::UnionfsFuse => "unionfs-fuse",
            Self::VellumCached => "vellum-cached",
            Self::VellumPassthrough => "vellum-passthrough",
            Self::HostOwn => "host-own",
            Self::FuseOverlayfsOwn => "fuse-overlayfs-own",
            Self::FuseOverlayfs2Own => "fuse-overlayfs-2-own",
            Self::UnionfsFuseOwn => "unionfs-fuse-own",
            Self::VellumCachedBack => "vellum-cached-back",
            Self::VellumPassthroughBack => "vellum-passthrough-back",
            Self::VellumLibrary => "vellum-library",
            Self::VellumCachedPools => "vellum-cached-pools",
            Self::VellumPassthroughPools => "vellum-passthrough-pools",
            Self::VellumShares => "vellum-shares",
        }
    }

    /// What it is, for lists.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Host => "a directory, no union",
            Self::Overlay => "the kernel's overlayfs, default options",
            Self::OverlayXfs => "the same on XFS with reflinks, in an image on a loop device",
            Self::FuseOverlayfs => "fuse-overlayfs 1",
            Self::FuseOverlayfs2 => "fuse-overlayfs 2",
            Self::UnionfsFuse => "unionfs-fuse (copy-on-write)",
            Self::VellumCached => "Vellum, profile=cached",
            Self::VellumPassthrough => "Vellum, profile=passthrough",
            Self::HostOwn => "ceph-fuse alone, one for each tenant",
            Self::FuseOverlayfsOwn => "fuse-overlayfs 1, on one ceph-fuse for each tenant",
            Self::FuseOverlayfs2Own => "fuse-overlayfs 2, on one ceph-fuse for each tenant",
            Self::UnionfsFuseOwn => "unionfs-fuse, on one ceph-fuse for each tenant",
            Self::VellumCachedBack => "Vellum, profile=cached, ceph.write=back",
            Self::VellumPassthroughBack => "Vellum, profile=passthrough, ceph.write=back",
            Self::VellumLibrary => "Vellum, profile=passthrough in a pool, its clients with the library",
            Self::VellumCachedPools => "Vellum, profile=cached, a pool for each tenant",
            Self::VellumPassthroughPools => "Vellum, profile=passthrough, a pool for each tenant",
            Self::VellumShares => "Vellum, profile=cached, mounts of one pool that share its cache by weight",
        }
    }

    /// The subject of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What it is apart from how it has CephFS.
    #[must_use]
    pub fn union(self) -> Self {
        match self {
            Self::HostOwn => Self::Host,
            Self::FuseOverlayfsOwn => Self::FuseOverlayfs,
            Self::FuseOverlayfs2Own => Self::FuseOverlayfs2,
            Self::UnionfsFuseOwn => Self::UnionfsFuse,
            Self::VellumCachedBack => Self::VellumCached,
            Self::VellumPassthroughBack => Self::VellumPassthrough,
            other => other,
        }
    }

    /// Whether each tenant has a client of CephFS of his own, which Vellum's always have.
    #[must_use]
    pub fn has_own_clients(self) -> bool {
        !self.is_vellum() && self.union() != self
    }

    /// Whether it writes to CephFS behind.
    #[must_use]
    pub fn uses_writeback(self) -> bool {
        self.is_vellum() && self.union() != self
    }

    /// Whether it is on CephFS only.
    #[must_use]
    pub fn is_remote(self) -> bool {
        self.union() != self
    }

    /// Whether the kernel alone serves it.
    #[must_use]
    pub fn is_in_kernel(self) -> bool {
        matches!(self.union(), Self::Host | Self::Overlay | Self::OverlayXfs)
    }

    /// Whether Vellum is to be faster than it.
    #[must_use]
    pub fn is_peer(self) -> bool {
        matches!(self.union(), Self::FuseOverlayfs | Self::FuseOverlayfs2)
    }

    /// Whether it is one of Vellum's.
    #[must_use]
    pub fn is_vellum(self) -> bool {
        matches!(self.union(), Self::VellumCached | Self::VellumPassthrough) || self.has_pools()
    }

    /// Whether its mounts are in pools.
    #[must_use]
    pub fn has_pools(self) -> bool {
        matches!(self, Self::VellumCachedPools | Self::VellumPassthroughPools | Self::VellumShares)
            || self.has_library()
    }

    /// Whether Vellum's library is in the processes that work on it.
    #[must_use]
    pub fn has_library(self) -> bool {
        self == Self::VellumLibrary
    }

    /// Whether it takes part in a task: pools and clients of their own are for tenants, the library is for what it can be in, and a cache is shared by those
    /// that have one.
    #[must_use]
    pub fn applies_to(self, task: &Task) -> bool {
        match self {
            Self::VellumShares => task.cache.is_some(),
            _ if task.cache.is_some() => false,
            Self::VellumLibrary => task.library,
            _ => task.tenants || !(self.has_pools() || self.has_own_clients()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks;

    #[test]
    fn names_are_unique_and_found() {
        for kind in Kind::ALL {
            assert_eq!(Kind::named(kind.name()), Some(kind));
        }
        assert_eq!(Kind::named("nothing"), None);
    }

    #[test]
    fn separate_clients_are_for_tenant_tasks() {
        let own: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| kind.has_own_clients()).collect();
        let part =
            |name: &str| own.iter().filter(|kind| kind.applies_to(tasks::named(name).unwrap())).count();
        assert_eq!(
            (own.len(), part("s2-rocksdb-put-4"), part("s2-scale-out-2"), part("s2-isolation-web")),
            (4, 4, 4, 4)
        );
        // Clones of one tenant, and one mount, need no second.
        assert_eq!((part("s2-rocksdb-get-8"), part("untar"), part("s3-misses-four")), (0, 0, 0));
        assert!(own.iter().all(|kind| kind.is_remote() && !kind.is_vellum() && !kind.has_pools()));
    }

    #[test]
    fn writeback_kinds_are_compared_with_vellum_itself() {
        let back = [Kind::VellumCachedBack, Kind::VellumPassthroughBack];
        assert!(Kind::ALL.into_iter().all(|kind| kind.uses_writeback() == back.contains(&kind)));
        let untar = tasks::named("untar").unwrap();
        assert!(back.iter().all(|kind| kind.is_vellum() && kind.is_remote() && kind.applies_to(untar)));
        assert!(back.iter().all(|kind| !kind.has_own_clients() && !kind.is_peer()));
    }
}
