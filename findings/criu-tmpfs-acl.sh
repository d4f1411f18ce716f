#!/bin/bash
# Access-control lists on files in memory (tmpfs) over a checkpoint by CRIU.
#
# One would guess: a container that is restored has its files in /dev/shm with the rights that they had, or the dump is refused.
# What happens: CRIU packs a tmpfs by tar without access lists and attributes. A file 0600 with a list that lets one user write (`user:1000:rw`,
# `group::---`, mask rw) comes back without the list and with mode 0660: the list's mask has become the rights of the owning group, which had none.
# File capabilities are gone. The dump says nothing.
# Versions: CRIU 4.1.1 of Debian 13 (4.1.1-1), runc of Debian 12 (1.1.5+ds1-1+deb12u1), run on Linux 6.18.
# Needs root and apt. Exit status 1: it is not as stated; 77: CRIU, runc or control groups cannot be had here.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
"$here/../scripts/apt" runc acl busybox-static libcap2-bin python3 > /dev/null || exit 77
criu=$("$here/../scripts/criu-dir") || exit 77
"$criu/criu" --version
runc --version | head -1
work=$(mktemp -d)
id=finding-$$
finish() {
  runc --root "$work/state" kill "$id" KILL > /dev/null 2>&1 || true
  sleep 0.3
  runc --root "$work/state" delete --force "$id" > /dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT
mkdir -p "$work/bundle/rootfs/bin" "$work/images"
cp "$(command -v busybox)" "$work/bundle/rootfs/bin/busybox"
cd "$work/bundle"
runc spec
python3 - <<'PYTHON'
import json
spec = json.load(open("config.json"))
spec["process"]["terminal"] = False
spec["process"]["args"] = ["/bin/busybox", "sleep", "1000"]
spec["mounts"] = [mount for mount in spec["mounts"] if mount["type"] != "cgroup"]
json.dump(spec, open("config.json", "w"))
PYTHON
file() { echo "/proc/$(runc --root "$work/state" state "$id" | sed -n 's/.*"pid": \([0-9]*\).*/\1/p')/root/dev/shm/$1"; }
show() { echo "$1: mode $(stat -c %a "$(file list)"), list '$(getfacl -cnp "$(file list)" | xargs)', capability '$(getcap "$(file able)" | sed 's/.* //')'"; }
runc --root "$work/state" run -d "$id" < /dev/null > /dev/null 2>&1
install -m 600 /dev/null "$(file list)"
setfacl -m u:1000:rw "$(file list)"
cp "$work/bundle/rootfs/bin/busybox" "$(file able)"
setcap cap_net_raw+ep "$(file able)"
before=$(show before)
PATH=$criu:$PATH
runc --root "$work/state" checkpoint --image-path "$work/images" --work-path "$work/images" "$id"
runc --root "$work/state" delete --force "$id" > /dev/null 2>&1 || true
runc --root "$work/state" restore -d --image-path "$work/images" --work-path "$work/images" "$id" < /dev/null > /dev/null 2>&1
after=$(show after)
printf '%s\n' "$before" "$after"
[ "$before" = "before: mode 660, list 'user::rw- user:1000:rw- group::--- mask::rw- other::---', capability 'cap_net_raw=ep'" ]
[ "$after" = "after: mode 660, list 'user::rw- group::rw- other::---', capability ''" ]
echo "as stated"
