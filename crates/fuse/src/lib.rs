//! A FUSE protocol layer: mount, the /dev/fuse loop, passthrough, notifications
