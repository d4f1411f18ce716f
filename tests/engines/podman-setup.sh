# Podman with a store of its own in $DIR on the mount program $PROGRAM; sourced after lib.sh, in $DIR.
mountopt=
[ -z "$PROFILE" ] || mountopt="mountopt = \"profile=$PROFILE\""
cat > storage.conf <<C
[storage]
driver = "overlay"
graphroot = "$DIR/root"
runroot = "$DIR/run"
[storage.options.overlay]
mount_program = "$PROGRAM"
$mountopt
C
# Hosts without CAP_SYS_RESOURCE cannot raise limits; without systemd there are cgroupfs and a file of events.
# Rootless without cgroups is what crun can do and runc cannot.
runtime=runc; [ -z "${ROOTLESS-}" ] || runtime=crun
cat > containers.conf <<C
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "${RUNTIME:-$runtime}"
C
export CONTAINERS_STORAGE_CONF=$DIR/storage.conf CONTAINERS_CONF=$DIR/containers.conf PODMAN_IGNORE_CGROUPSV1_WARNING=1
export TMPDIR=$DIR/tmp XDG_RUNTIME_DIR=$DIR/xdg; mkdir -p "$TMPDIR" "$XDG_RUNTIME_DIR"
ARGS=() BUILD=(--network=none)
[ -z "${ROOTLESS-}" ] || { ARGS=(--cgroups=disabled) BUILD=(--isolation=chroot); }
podman --version
