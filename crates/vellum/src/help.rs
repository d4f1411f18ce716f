//! What `--help` and `--version` print for a mount program.

/// The usage, for callers that give no subcommand.
pub const HELP: &str = "\
usage: vellum -o lowerdir=DIR[:DIR...][,upperdir=DIR,workdir=DIR][,OPTION...] MOUNTPOINT
       vellum SOURCE MOUNTPOINT -o OPTIONS
       vellum COMMAND ...                       (vellum COMMAND --help)

Commands:
  mount        mount layers as one tree
  umount       unmount
  inspect      show the layer, the service and the options behind a path of a mount
  doctor       check this host: kernel, FUSE, engines, stores, mounts
  flatten      complete the partial files of an upper layer, or of an engine's store
  sync         write all data of mounts to disk
  pool         manage limits of tenants for processors, memory and disks
  stats, top   show counts and times of requests, once or continuously
  weight       change a mount's share of its service's data cache
  metrics      export metrics for Prometheus
  balance      share the kernel's page cache among control groups by weight
  run          run a command in a container on a Vellum mount
  ps, rm       show containers of vellum run, and end those whose vellum run was killed
  checkpoint   save a container's memory and files
  restore      resume a container from a checkpoint
  checkpoints  list, show and delete checkpoints
  zoned        manage stores on zoned devices, files and disks
  bench        compare Vellum with other filesystems on this machine
  completions  print a completion script for a shell
  version, help

Layers:
  lowerdir=DIR[:DIR...]    layers, the top one first; a backslash before : , or \\ makes it part of a path
  lowerdir=ceph:PATH[:...] a layer on CephFS (package libcephfs2); a directory called ceph is written ./ceph
  ceph.conf=FILE, ceph.id=NAME, ceph.fs=NAME
                           its cluster, client and filesystem, as for ceph-fuse
  upperdir=DIR             the writable layer; without it the mount is read-only
  workdir=DIR              the work directory, on the filesystem of upperdir
                           both may be on CephFS: upperdir=ceph:PATH,workdir=ceph:PATH
  ceph.write=sync|back, ceph.dirty=SIZE, ceph.age=SECONDS
                           file changes reach the cluster before the answer (sync), or later (back): at most SIZE
                           (64m) wait for at most SECONDS (5); they outlive the service, but not the machine
  upperdir=zoned:DEVICE/DIR, workdir=zoned:DEVICE/DIR, lowerdir=zoned:DEVICE/DIR[:...]
                           directories in the store of a zoned device, a file or a disk

Owners:
  uidmapping=L:M:N[:...]   user ids L... in the layers are M... in the mount, N of them
  gidmapping=L:M:N[:...]   the same for groups
  squash_to_root           root owns all files
  squash_to_uid=UID        this user owns all files
  squash_to_gid=GID        this group owns all files
  xattr_permissions=1|2    owner and mode are in an attribute of security.* or user.*, not in the inode

Behaviour:
  profile=cached|passthrough
                           file data pass the page cache of the mount, or the kernel uses the layer's file
                           directly (privileged)
  pool=NAME                the pool with the limits of the mount (vellum pool --help)
  volatile, fsync=0        make nothing durable
  writeback=0              with profile=cached: each write reaches the layer at once, so write reports a full disk
  timeout=SECONDS          how long the kernel caches names and attributes
  workers=N                threads that answer requests
  idmap                    allow clones with mapped ids also in a pool with profile=passthrough; direct descriptors
                           are off then (other mounts always allow such clones)
  keep_awake=auto|on|off   processors do not sleep while many requests arrive, if permitted (auto: on machines with
                           at most 4)
  cache=off|shared|immutable, cache_size=SIZE
                           read lower layers through the service's data cache (256m), for slow storage;
                           shared: other hosts or programs may change the layers
  weight=N                 the mount's share of that cache under contention, 1 to 10000 (100)
  block_copy=off|SIZE      lower files from this size on are copied block by block as they are written to
                           (128k; passthrough: 1m); off: whole, at the first write
  block_map=holes|sidecar  the record of copied blocks
  background_fill=RATE     complete such files while the mount is idle, RATE bytes per second
  fill_at_end=SIZE|off     complete them after the end of the mount, at most SIZE bytes (1G)
  attr_timeout=SECONDS, entry_timeout=SECONDS
                           libfuse's options: the shorter one is the timeout, unless timeout is given
  static_nlink, noacl, noxattrs=1
                           show one link per directory; no POSIX ACLs; no extended attributes
  log=FILTER, log_to=stderr|syslog|kmsg|FILE
                           filter and target of the log
  ro, nosuid, nodev, noexec, noatime, allow_other, fsname=NAME, ...
                           as in mount(8) and mount.fuse3(8)

Switches:
  -f     stay in the foreground          -d, --debug    log everything, stay in the foreground
  -s     answer one request at a time    -V, --version  print the version
  -h, --help
";

/// The version as mount programs print it: callers show the lines as they are.
#[must_use]
pub fn version() -> String {
    format!("vellum: version {}\n", env!("CARGO_PKG_VERSION"))
}
