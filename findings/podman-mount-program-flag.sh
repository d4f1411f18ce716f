#!/bin/bash
# A podman store that was once used with a mount program stays on fuse-overlayfs after the option has gone.
#
# Guess: without mount_program in storage.conf, and with a kernel whose overlayfs podman can use, podman mounts containers with that: it is
#   the default, and `podman info` names no mount program any more.
# What happens: the first use with a mount program leaves the file overlay/.has-mount-program in the store. While it says "true", podman runs
#   fuse-overlayfs from PATH instead, for root as well, and `podman info` does not name it. The file goes away by hand only; then the same
#   store and image are mounted by the kernel.
# Seen with: podman 4.3.1 of Debian 12 and 5.4.2 of Debian 13, each with fuse-overlayfs 1.10, as root.
# Needs: root, podman, fuse-overlayfs, runc or crun, busybox; installs missing ones by apt. Exit status 1: it is not as stated; 77: it cannot be
# tried on this machine.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "run it as root" >&2; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
for tool in podman fuse-overlayfs busybox; do
  command -v $tool > /dev/null || "$here/../scripts/apt" podman fuse-overlayfs runc busybox-static > /dev/null || exit 77
done
if [ -z "${FINDING_INSIDE-}" ]; then
  # Mounts and processes go with these namespaces.
  FINDING_INSIDE=1 exec unshare --mount --pid --fork --mount-proc --kill-child "$0"
fi
top=$(mktemp -d /var/tmp/finding.XXXXXX)
trap 'podman rmi -fa > /dev/null 2>&1 || true; umount -l "$top"/root/overlay 2> /dev/null || true; rm -rf --one-file-system "$top"' EXIT
cd "$top"
export CONTAINERS_STORAGE_CONF=$top/storage.conf CONTAINERS_CONF=$top/containers.conf TMPDIR=$top PODMAN_IGNORE_CGROUPSV1_WARNING=1
runtime=runc; command -v runc > /dev/null || runtime=crun
cat > containers.conf <<C
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "$runtime"
C
settings() { # the mount program, if any
  printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "%s"\n[storage.options.overlay]\n%s' "$top/root" "$top/run" "${1:+mount_program = \"$1\"
}" > storage.conf
}
settings ""
podman --version; fuse-overlayfs --version 2> /dev/null | grep -o '^fuse-overlayfs.*'; uname -r

mkdir -p tree/bin tree/proc tree/dev tree/sys tree/etc
cp "$(command -v busybox)" tree/bin/busybox; ln -s busybox tree/bin/cat
tar -C tree -cf image.tar .
root_of() { podman run --rm --network=none base cat /proc/mounts | awk '$2 == "/" && !n++ { print $3 }'; }
named() { podman info | grep -A1 overlay.mount_program | sed -n 's/ *Executable: //p' || true; }

settings "$(command -v fuse-overlayfs)"
podman import image.tar base > /dev/null 2>&1 && podman run --rm --network=none base cat /proc/version > /dev/null ||
  { echo "no containers here" >&2; exit 77; }
with="$(root_of), named: $(named)"
settings ""
without="$(root_of), named: $(named), flag: $(cat root/overlay/.has-mount-program)"
rm root/overlay/.has-mount-program
removed="$(root_of), named: $(named), flag: $(cat root/overlay/.has-mount-program)"
echo "with mount_program:       $with"
echo "without:                  $without"
echo "and without the file:     $removed"
[ "$with" = "fuse.fuse-overlayfs, named: $(command -v fuse-overlayfs)" ] &&
  [ "$without" = "fuse.fuse-overlayfs, named: , flag: true" ] &&
  [ "$removed" = "overlay, named: , flag: false" ] || { echo "not as stated"; exit 1; }
echo "as stated"
