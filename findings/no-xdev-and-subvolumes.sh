#!/bin/bash
# One would guess: openat2(2) with RESOLVE_NO_XDEV ends a walk (EXDEV) where st_dev changes, so that below a directory reached by it
# (st_dev of the start, st_ino) names a file.
# What happens: it looks at mounts alone. A btrfs subvolume is none: the walk goes on, st_dev differs, and a snapshot's file has the
# st_ino of the file that it was made from. So two files, which can be changed apart, have one st_ino below one NO_XDEV walk.
# statx(2) tells them apart by st_dev, and since Linux 6.10 by stx_subvol.
# Seen with Linux 6.18 and Debian 12's btrfs-progs 6.2. As root, with loop devices.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "as root, please" >&2; exit 77; }
command -v mkfs.btrfs > /dev/null || apt-get install -y btrfs-progs > /dev/null || exit 77
uname -r
mkfs.btrfs --version
dir=$(mktemp -d)
trap 'umount --lazy "$dir/at" 2> /dev/null || true; rm -rf --one-file-system "$dir"' EXIT
mkdir "$dir/at"
truncate -s 256M "$dir/image"
mkfs.btrfs -q "$dir/image"
mount -o loop "$dir/image" "$dir/at"
btrfs -q subvolume create "$dir/at/a"
echo one > "$dir/at/a/file"
btrfs -q subvolume snapshot "$dir/at/a" "$dir/at/b"
echo two > "$dir/at/b/file"
python3 - "$dir/at" <<'PYTHON'
import ctypes, os, struct, sys
OPENAT2, RESOLVE_NO_XDEV = 437, 1
libc = ctypes.CDLL(None, use_errno=True)
top = os.open(sys.argv[1], os.O_PATH | os.O_DIRECTORY)
def walk(path):
    how = struct.pack("QQQ", os.O_RDONLY, 0, RESOLVE_NO_XDEV)
    fd = libc.syscall(OPENAT2, top, path.encode(), how, len(how))
    if fd < 0:
        sys.exit(f"{path}: {os.strerror(ctypes.get_errno())}: the walk ends at a subvolume, not as stated")
    return os.fstat(fd), os.read(fd, 9)
(a, one), (b, two) = walk("a/file"), walk("b/file")
home = os.fstat(top)
print(f"start st_dev {home.st_dev:x}; a/file {a.st_dev:x}:{a.st_ino} {one}; b/file {b.st_dev:x}:{b.st_ino} {two}")
if home.st_dev in (a.st_dev, b.st_dev) or a.st_dev == b.st_dev or a.st_ino != b.st_ino or one == two:
    sys.exit("not as stated")
PYTHON
echo "as stated: the walk passes, st_dev changes, st_ino is the same, and the files differ"
