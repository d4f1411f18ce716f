#!/bin/sh
# balance-growth.sh VELLUM DIR: below a limit of version 1 a group reads files until it has its share, and then takes far more memory at once
# than its share: by reading into memory of its own, which the kernel writes to, and by writing to such memory, which faults. Prints
# "grown" if nobody was killed, and `limits` before and after.
set -eu
vellum=$1 dir=$2
mem=/sys/fs/cgroup/memory
# By the time: where scripts run in PID namespaces of their own, numbers of processes are the same ones.
name=vellum-growth-$(date +%s%N)
finish() {
  for g in reader grower; do
    for p in $(cat "$mem/$name/$g/cgroup.procs" 2>/dev/null); do kill -9 "$p" 2>/dev/null || true; done
  done
  [ -z "${balance:-}" ] || kill "$balance" 2>/dev/null || true
  wait 2>/dev/null || true
  for g in reader grower; do rmdir "$mem/$name/$g" 2>/dev/null || { sleep 1; rmdir "$mem/$name/$g" || true; }; done
  rmdir "$mem/$name" || true
}
trap finish EXIT
mkdir "$mem/$name" "$mem/$name/reader" "$mem/$name/grower"
echo $((256 << 20)) > "$mem/$name/memory.limit_in_bytes"
for g in reader grower; do dd if=/dev/zero of="$dir/$g" bs=1048576 count=256 2>/dev/null; done
sync
# Whoever made the pages pays for them; from here on the two groups do. No others' pages are dropped: somebody may measure beside this.
for g in reader grower; do dd if="$dir/$g" iflag=nocache count=0 2>/dev/null; done
limits() { echo "limits $1 $(cat "$mem/$name/grower/memory.limit_in_bytes" "$mem/$name/grower/memory.oom_control" | tr '\n' ' ')"; }
limits before
"$vellum" balance --interval 1 "$name" &
balance=$!
sh -c 'echo $$ > "$1/cgroup.procs"; while :; do cat "$2" > /dev/null; done' reader "$mem/$name/reader" "$dir/reader" &
# Its share of the cache is about 120 MiB; 200 are more than that, and less than all may have.
sh -c 'echo $$ > "$1/cgroup.procs"; for i in 1 2 3 4; do cat "$2" > /dev/null; done
  exec python3 -c "
import mmap, sys, time
time.sleep(1.5)
for is_kernel in (True, False):
    memory = mmap.mmap(-1, 200 << 20)
    if is_kernel:
        with open(sys.argv[1], \"rb\") as file:
            assert file.readinto(memory) == 200 << 20
    else:
        for at in range(0, 200 << 20, 4096):
            memory[at] = 1
    memory.close()
    # What it was given for once is taken back.
    time.sleep(7 if is_kernel else 0)
" "$2"' grower "$mem/$name/grower" "$dir/grower" && echo grown
kill $balance
wait $balance 2>/dev/null || true
balance=
limits after
