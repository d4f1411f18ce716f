#!/bin/bash
# Targets of symbolic links on CephFS that are longer than PATH_MAX.
#
# One would guess: symlink() refuses a target of 4,096 bytes and more (ENAMETOOLONG), as Linux does, or readlink() says that it was cut.
# What happens: libcephfs makes such a link, up to any length, stat() shows its whole length, and readlink() gives as much as fits
# into the buffer, without an error. So a program that reads into PATH_MAX bytes gets another, valid path. ceph-fuse shows the same link with its length, and EIO for readlink(2).
# Versions: Debian's libcephfs2, ceph-fuse and python3-cephfs (run with 16.2.15+ds-0+deb12u2).
# Needs root, FUSE and apt; the cluster is one in memory on this machine. Exit status 1: it is not as stated.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
"$here/../scripts/apt" ceph-mon ceph-mgr ceph-osd ceph-mds ceph-common ceph-fuse python3 python3-cephfs uuid-runtime fuse3 > /dev/null || exit 77
dpkg-query -W -f '${Package} ${Version}\n' libcephfs2 ceph-fuse python3-cephfs
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/mount"
cat > "$work/by-library" <<'PYTHON'
import cephfs, os
fs = cephfs.LibCephFS(conffile=os.environ["CEPH_CONF"])
fs.mount()
for length in (4095, 4096, 9000):
    name = "/%d" % length
    fs.symlink("a/" * (length // 2) + "b" * (length % 2), name)
    read = fs.readlink(name, 4096)
    size = fs.lstat(name).st_size
    print("library: length", length, "stat", size, "readlink", len(read))
    assert size == length and len(read) == min(length, 4096), "not as stated"
fs.shutdown()
PYTHON
cat > "$work/run" <<'RUN'
set -eu
/usr/bin/python3 "$1/by-library"
ceph-fuse --id admin -c "$CEPH_CONF" "$1/mount" > /dev/null 2>&1
status=0
/usr/bin/python3 - "$1/mount" <<'PYTHON' || status=1
import errno, os, sys
for length in (4095, 4096, 9000):
    name = "%s/%d" % (sys.argv[1], length)
    try:
        read = len(os.readlink(name))
    except OSError as error:
        read = errno.errorcode[error.errno]
    print("ceph-fuse: length", length, "stat", os.lstat(name).st_size, "readlink", read)
    assert read == (length if length < 4096 else "EIO"), "not as stated"
PYTHON
umount "$1/mount"
exit $status
RUN
"$here/../scripts/ceph-local" sh "$work/run" "$work"
echo "as stated"
