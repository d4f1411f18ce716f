#!/bin/bash
# memory.low and the multi-generational LRU, when the whole machine is short of memory.
#
# One would guess: a group within its memory.low keeps its page cache as long as there is unprotected page cache to take: "best-effort
# memory protection", as the kernel's cgroup-v2 document says, whatever list of pages the kernel keeps.
# What happens: with the multi-generational LRU, Debian's default from Linux 6.12 on, global reclaim passes a protected group over once and then
# takes from it, while another group without protection reads gigabytes through the page cache. With the older LRU of the same kernel the group keeps
# everything. Below a common memory.max both kinds keep to memory.low.
# Versions: Debian's linux-image-6.12-cloud-amd64 (run with 6.12.117-1~deb12u1), in QEMU 7.2 without KVM. Needs apt.
# Prints the protected group's page cache, in MiB, for each kind of LRU. Exit status 1: it is not as stated; 77: no virtual machine here.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat > "$work/inside" <<'INSIDE'
mount -t cgroup2 none /sys/fs/cgroup && cd /sys/fs/cgroup
uname -r
echo +memory > cgroup.subtree_control
mkdir kept other
dd if=/dev/zero of=/disk/kept bs=1M count=150 2>/dev/null
dd if=/dev/zero of=/disk/other bs=1M count=700 2>/dev/null
sync
cache() { awk '$1 == "file" { print int($2 / 1048576) }' kept/memory.stat; }
for lru in 0 7; do
  echo $lru > /sys/kernel/mm/lru_gen/enabled
  echo 3 > /proc/sys/vm/drop_caches
  echo 0 > kept/memory.low
  sh -c 'echo $$ > kept/cgroup.procs; cat /disk/kept /disk/kept > /dev/null'
  echo $((200 << 20)) > kept/memory.low
  before=$(cache)
  sh -c 'echo $$ > other/cgroup.procs; cat /disk/other /disk/other /disk/other > /dev/null'
  echo "lru_gen $(cat /sys/kernel/mm/lru_gen/enabled) before $before after $(cache) low 200"
done
INSIDE
status=0
"$here/../scripts/vm" --kernel 6.12 --mem 512M --disk 1G --limit 500 --add "$work/inside:inside" -- sh /inside > "$work/said" || status=$?
cat "$work/said"
dpkg-query -W -f '${Package} ${Version}\n' qemu-system-x86
[ $status = 0 ] || exit $status
awk '/^lru_gen/ { before[$2] = $4; after[$2] = $6 }
  END {
    classic = after["0x0000"] / before["0x0000"]; young = after["0x0007"] / before["0x0007"]
    printf "kept: %.0f %% with the older LRU, %.0f %% with generations\n", classic * 100, young * 100
    exit !(classic > 0.95 && young < 0.8)
  }' "$work/said"
