#!/bin/sh
# balance.sh VELLUM DIR MIB: four control groups with weights 100, 200, 400 and 800 below one that may have MIB of memory, or, with OPEN=1 (version
# 2), as much as the machine has; each reads a file of MIB in DIR again and again. Prints lines "WHEN WEIGHT BYTES" of their page cache: `without` vellum
# balance, then `with` it; then, but with SHARES=1, `idle`, when the last one has not read for a while, and `back`, when it reads again; and
# `limits` before and after, which must be equal, and `with` it, and when it has been `killed`; and `read WHEN BYTES`, what all have read meanwhile. Plain sh, and busybox: it also runs in a virtual machine.
set -eu
vellum=$1 dir=$2 mib=$3
weights="100 200 400 800"
# By the time: where scripts run in PID namespaces of their own, numbers of processes are the same ones.
# Busybox has no nanoseconds, and is alone in its machine.
name=vellum-balance-$(date +%s%N | tr -cd 0-9)
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  version=2 mem=/sys/fs/cgroup cpu=/sys/fs/cgroup
  limit=memory.low
  echo "+memory +cpu" > $mem/cgroup.subtree_control
else
  version=1 mem=/sys/fs/cgroup/memory cpu=/sys/fs/cgroup/cpu
  limit=memory.limit_in_bytes
fi
groups() { for w in $weights; do echo "$mem/$name/$w"; done; }
finish() {
  for g in $(groups); do
    for p in $(cat "$g/cgroup.procs" 2>/dev/null); do kill -9 "$p" 2>/dev/null || true; done
  done
  [ -z "${balance:-}" ] || kill "$balance" 2>/dev/null || true
  wait 2>/dev/null || true
  sleep 1
  for w in $weights; do rmdir "$mem/$name/$w" "$cpu/$name/$w" 2>/dev/null || true; done
  rmdir "$mem/$name" "$cpu/$name" 2>/dev/null || true
}
trap finish EXIT
mkdir -p $mem/$name $cpu/$name
if [ $version = 2 ]; then
  echo "+memory +cpu" > $mem/$name/cgroup.subtree_control
  [ -n "${OPEN:-}" ] || echo $((mib << 20)) > $mem/$name/memory.max
else
  echo $((mib << 20)) > $mem/$name/memory.limit_in_bytes
fi
for w in $weights; do
  mkdir -p $mem/$name/$w $cpu/$name/$w
  if [ $version = 2 ]; then echo $w > $cpu/$name/$w/cpu.weight; else echo $((w * 1024 / 100)) > $cpu/$name/$w/cpu.shares; fi
  [ -e "$dir/$w" ] || dd if=/dev/zero of="$dir/$w" bs=1048576 count=$mib 2>/dev/null
done
sync
# Whoever made the pages pays for them; from here on the readers do. No others' pages are dropped, for somebody may measure beside this, but
# where busybox is all that there is, which cannot tell them apart.
for w in $weights; do
  dd if="$dir/$w" iflag=nocache count=0 2>/dev/null || echo 1 > /proc/sys/vm/drop_caches
done
# A reader of a group reads until a file says so; then it says by another that it waits for somebody to write to a pipe.
reader() {
  w=$1
  sh -c 'echo $$ > "$1/cgroup.procs"; [ "$2" = "$1" ] || echo $$ > "$2/cgroup.procs"
    while :; do cat "$3" > /dev/null; [ ! -e "$3.wait" ] || { : > "$3.waits"; cat "$3.go"; }; done' \
    reader "$mem/$name/$w" "$cpu/$name/$w" "$dir/$w" &
  readers="${readers:-} $!"
}
# Bytes that all readers have read so far.
have_read() { for p in $readers; do cat "/proc/$p/io"; done | awk '$1 == "rchar:" { n += $2 } END { printf "%.0f", n }'; }
cache() {
  if [ $version = 2 ]; then
    awk '$1 == "file" { f = $2 } $1 == "shmem" { s = $2 } END { print f - s }' "$mem/$name/$1/memory.stat"
  else
    awk '$1 == "total_cache" { f = $2 } $1 == "total_shmem" { s = $2 } END { print f - s }' "$mem/$name/$1/memory.stat"
  fi
}
# The mean of some looks, for a group's cache moves by what it reads in the meantime.
look() {
  for w in $weights; do eval "sum$w=0"; done
  from=$(have_read)
  looks=${LOOKS:-8} i=0
  while [ $i -lt "$looks" ]; do
    i=$((i + 1))
    for w in $weights; do eval "sum$w=\$((sum$w + $(cache $w)))"; done
    sleep 0.3
  done
  echo "read $1 $(awk -v a="$from" -v b="$(have_read)" 'BEGIN { printf "%.0f", b - a }')"
  for w in $weights; do eval "echo $1 $w \$((sum$w / looks))"; done
}
# As long as a group that has told of pressure has its old limit back (some seconds, version 1), shares are not what is looked for.
settled() {
  tries=0
  while :; do
    tries=$((tries + 1)) early=
    [ $version = 2 ] || ! is_relieved || early=yes
    said=$(look "$1")
    if [ $version = 2 ] || [ $tries -ge 8 ]; then break; fi
    [ -n "$early" ] || is_relieved || break
  done
  echo "$said"
}
is_relieved() { old=${before##* }; limits now | grep -q " $old\( \|\$\)"; }
limits() { echo "limits $1" $(for g in $(groups); do cat "$g/$limit"; done) $(cat "$mem/$name/memory.high" 2>/dev/null); }
for w in $weights; do reader $w; done
sleep "${WARM:-6}"
look without
limits before
before=$(limits before)
"$vellum" balance --interval 0.5 "$name" &
balance=$!
sleep "${WARM:-6}"
settled with
limits with
if [ -z "${SHARES:-}" ]; then
  [ -p "$dir/800.go" ] || mkfifo "$dir/800.go"
  rm -f "$dir/800.waits"
  touch "$dir/800.wait"
  # It reads its file to the end first, which takes as long as it takes.
  i=0
  while [ $i -lt 600 ] && [ ! -e "$dir/800.waits" ]; do i=$((i + 1)); sleep 0.1; done
  sleep "${IDLE:-14}"
  settled idle
  rm "$dir/800.wait"
  : > "$dir/800.go"
  sleep 8
  settled back
fi
# Killed, it leaves its limits to the next one, which ends by itself; where there are limits, to its guard.
kill -9 $balance
wait $balance 2>/dev/null || true
# Where groups may have limits a guard gives them back at once.
if [ $version = 1 ] || [ -n "${OPEN:-}" ]; then
  i=0
  while [ $i -lt 100 ] && [ "$(limits before)" != "$before" ]; do i=$((i + 1)); sleep 0.1; done
fi
limits killed
"$vellum" balance --interval 0.1 -n 2 "$name"
balance=
limits after
