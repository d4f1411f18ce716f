#!/bin/bash
# The directory that a name is moved out of, on CephFS.
#
# One would guess: after rename() has returned, stat() of the old directory by the same client shows new times, and one link less where a
# directory has moved; unlink() and rmdir() do.
# What happens: libcephfs goes on answering what it knew before, however long one waits, while another client sees the change at once. What asks
# the cluster for the directory sets it right: reading the attribute ceph.dir.entries, or a listing. By ceph-fuse it is the same.
# Versions: Debian's libcephfs2 and python3-cephfs (run with 16.2.15+ds-0+deb12u2).
# Needs apt; the cluster is one in memory on this machine. Exit status 1: it is not as stated.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
"$here/../scripts/apt" ceph-mon ceph-mgr ceph-osd ceph-mds ceph-common python3 python3-cephfs uuid-runtime
dpkg-query -W -f '${Package} ${Version}\n' libcephfs2 python3-cephfs
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat > "$work/run" <<'PYTHON'
import cephfs, os, time
def client():
    one = cephfs.LibCephFS(conffile=os.environ["CEPH_CONF"])
    one.mount()
    return one
def look(by, what):
    seen = by.statx(b"/old", cephfs.CEPH_STATX_NLINK | cephfs.CEPH_STATX_MTIME | cephfs.CEPH_STATX_CTIME, 0)
    print("%-34s links %d, changed %s" % (what, seen["nlink"], seen["ctime"]))
    return seen["nlink"], seen["mtime"], seen["ctime"]
here, there = client(), client()
for name in (b"/old", b"/new", b"/old/dir", b"/old/other"):
    here.mkdir(name, 0o755)
before = look(here, "before")
time.sleep(1.1)
here.rename(b"/old/dir", b"/new/dir")
assert look(here, "after rename") == before, "not as stated"
time.sleep(10)
assert look(here, "10 s later") == before, "not as stated"
after = look(there, "by another client")
assert after[0] == before[0] - 1 and after[2] > before[2], "not as stated"
here.getxattr(b"/old", "ceph.dir.entries")
assert look(here, "after getxattr ceph.dir.entries") == after, "not as stated"
time.sleep(1.1)
here.rmdir(b"/old/other")
assert look(here, "after rmdir")[2] > after[2], "not as stated"
here.shutdown()
there.shutdown()
PYTHON
"$here/../scripts/ceph-local" /usr/bin/python3 "$work/run"
echo "as stated"
