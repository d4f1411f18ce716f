//! What `--help` and `--version` print for a mount program.

/// The usage, for callers that give no subcommand.
pub const HELP: &str = "\
usage: vellum -o lowerdir=DIR[:DIR...][,upperdir=DIR,workdir=DIR][,OPTION...] MOUNTPOINT
       vellum SOURCE MOUNTPOINT -o OPTIONS
       vellum COMMAND ...                       (vellum COMMAND --help)

Commands:
  mount        mount layers as one tree
  umount       take a mount away
  inspect      show where a path of a mount comes from, and how it is served
  doctor       check this host: kernel, FUSE, engines, stores, mounts
  flatten      copy into an upper layer what its files still take from the layers below
  sync         write everything in mounts to disk
  pool         what the tenants of this host may use: processors, memory, disks
  stats, top   show what the services of mounts have done, and do
  weight       give a mount another share of its service's cache
  metrics      tell Prometheus what services and pools have done
  balance      share the kernel's page cache among control groups by weight
  run          run a command in a container whose root is a Vellum tree
  ps, rm       show containers of vellum run, and end those whose vellum run was killed
  checkpoint   keep what a container is at this moment
  restore      have a container go on from a checkpoint
  checkpoints  list, show and delete checkpoints
  zoned        the store on zoned devices
  bench        compare Vellum with other filesystems on this machine
  completions  print what a shell needs to complete this command
  version, help

Layers:
  lowerdir=DIR[:DIR...]    layers, the top one first; a backslash before : , or \\ makes it part of a path
  lowerdir=ceph:PATH[:...] a layer on CephFS (package libcephfs2); a directory called ceph is written ./ceph
  ceph.conf=FILE, ceph.id=NAME, ceph.fs=NAME
                           its cluster, client and filesystem, as for ceph-fuse
  upperdir=DIR             the layer that takes changes; without it the tree is read-only
  workdir=DIR              a directory for unfinished work, on the filesystem of upperdir
                           both may lie on CephFS: upperdir=ceph:PATH,workdir=ceph:PATH
  ceph.write=sync|back, ceph.dirty=SIZE, ceph.age=SECONDS
                           what is changed of files there is on the cluster before it is answered, or later: at most
                           so much (64m), and for so long (5); it outlives the service, but not the machine
  upperdir=zoned:DEVICE/DIR, workdir=zoned:DEVICE/DIR, lowerdir=zoned:DEVICE/DIR[:...]
                           directories in the store on a zoned device, or on a file or disk that is used like one

Owners:
  uidmapping=L:M:N[:...]   user ids L... in the layers are M... in the mount, N of them
  gidmapping=L:M:N[:...]   the same for groups
  squash_to_root           everything is shown as root's
  squash_to_uid=UID        everything is shown as this user's
  squash_to_gid=GID        everything is shown as this group's
  xattr_permissions=1|2    owner and mode are kept in an attribute of security.* or user.*, not in the inode

Behaviour:
  profile=cached|passthrough
                           file data through the page cache of the mount, or straight to the layer (privileged)
  pool=NAME                the pool whose processors and memory the service uses (vellum pool --help)
  volatile, fsync=0        make nothing durable
  writeback=0              with profile=cached: every write goes to the layer at once, so that a full disk is told by write
  timeout=SECONDS          how long the kernel may believe names and attributes
  workers=N                threads that answer requests
  idmap                    allow clones with mapped ids also in a pool with profile=passthrough, where programs
                           are given no files then (elsewhere they are allowed anyway)
  keep_awake=auto|on|off   processors do not sleep while requests come in numbers, where that is permitted (auto: on
                           machines with at most 4)
  cache=off|shared|immutable, cache_size=SIZE
                           read lower layers through a cache of the service (256m), for layers that are slow;
                           shared: others may change them
  weight=N                 the mount's share of that cache where others want it too, 1 to 10000 (100)
  block_copy=off|SIZE      lower files from this size on are copied block by block as they are written to
                           (128k; passthrough: 1m); off: whole, at the first write
  block_map=holes|sidecar  how it is recorded which blocks were copied
  background_fill=RATE     copy what such files miss while nobody uses the mount, RATE bytes per second
  fill_at_end=SIZE|off     copy at most SIZE of what they miss once the mount has ended (1G)
  attr_timeout=SECONDS, entry_timeout=SECONDS
                           as libfuse has them: the shorter one is the timeout, unless that is given
  static_nlink, noacl, noxattrs=1
                           show one link per directory; no POSIX ACLs; no extended attributes
  log=FILTER, log_to=stderr|syslog|kmsg|FILE
                           what is logged, and where
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
