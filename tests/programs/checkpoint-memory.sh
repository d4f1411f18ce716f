# checkpoint-memory.sh MIB: in a virtual machine with a kernel that tells which memory was written, as root, with /bin/vellum, runc, criu and
# checkpoint-memory: checkpoints with a first pass over memory and without, everywhere where they can be, killed at moments, and restored.
# /disk: a filesystem for them. The last line is "all is well".
mib=$1 hot=$(($1 / 16))
die() { echo "FAILED: $*"; tail -n 5 /tmp/said.* 2> /dev/null; exit 1; }
up() { cut -d . -f 1 /proc/uptime; }
waits() { # seconds, words: until that is true
  until=$(($(up) + $1)); shift
  while ! eval "$*"; do
    [ "$(up)" -lt $until ] || die "not in time: $*"
    usleep 200000
  done
}
count() { n=$(grep -c "^$2 " "/tmp/said.$1"); echo "$n"; }
goes_on() { # name: it looks at all of its memory twice, and finds what it has written
  memory=$(count "$1" memory) shared=$(count "$1" shared)
  waits 120 "[ \$(count $1 memory) -ge $((memory + 2)) ] && [ \$(count $1 shared) -ge $((shared + 2)) ] || grep -q BAD /tmp/said.$1"
  ! grep BAD "/tmp/said.$1" || die "$1 has other memory than it had written"
}
checkpoint() { vellum checkpoint --state /disk/state "$@"; }
take() { # what, words
  what=$1; shift
  checkpoint c --leave-running "$@" > /tmp/taken 2> /tmp/why || die "$what: $(cat /tmp/why)"
  echo "$(up) s: $what: $(sed 's/.*: //' /tmp/taken) $(cat /tmp/why)"
}
restored() { # what, words
  what=$1; shift
  vellum restore --state /disk/state --name r "$@" < "${from:-/dev/null}" > /tmp/said.r 2>&1 &
  pid=$!
  waits 60 "[ \$(count r memory) -ge 1 ] || ! kill -0 $pid 2> /dev/null"
  kill -0 $pid 2> /dev/null || die "$what: not restored: $(tail -n 1 /tmp/said.r)"
  goes_on r
  kill -TERM $pid
  wait $pid
  echo "$(up) s: restored: $what"
}

mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t cgroup2 none /sys/fs/cgroup
for controller in cpu memory pids io; do echo +$controller > /sys/fs/cgroup/cgroup.subtree_control; done 2> /dev/null
mkdir -p /image/bin /image/tmp /image/dev /image/proc /image/sys /image/etc /disk/kept /run /var/tmp
chmod 700 /disk/kept
cp /bin/checkpoint-memory /image/bin/
ip link set lo up 2> /dev/null
vellum run --runtime runc --state /disk/state --image /image --name c /bin/checkpoint-memory "$mib" "$hot" > /tmp/said.c 2>&1 &
waits 120 '[ $(count c memory) -ge 1 ] && [ $(count c shared) -ge 1 ] || ! kill -0 $! 2> /dev/null'
goes_on c

take "all of it while it stands still" --to /disk/kept --name whole --memory-ahead none
take "a first pass" --to /disk/kept --name twice
vellum checkpoints show /disk/kept twice | grep -q "^pause .* before$" || die "the first pass is not shown"
rm -r /disk/kept/whole /disk/kept/twice
truncate -s 600M /disk/store
chmod 600 /disk/store
vellum zoned format --state /disk/state --zone-size 1M /disk/store > /dev/null || die "no store"
take "in a store" --to zoned:/disk/store --name first --pace none
take "in a store, with a parent" --to zoned:/disk/store --name second --parent first --pace none
checkpoint c --leave-running --stream > /disk/stream 2> /tmp/why || die "stream: $(cat /tmp/why)"

# A first pass that CRIU does not make.
mkdir /tmp/other
printf '#!/bin/sh\n[ "$1" != pre-dump ] || exit 1\nexec /bin/criu "$@"\n' > /tmp/other/criu
chmod 755 /tmp/other/criu
for to in /disk/kept zoned:/disk/store; do
  (
    PATH=/tmp/other:$PATH
    take "a first pass that fails" --to $to --name without
    grep -q "memory is read when" /tmp/why || die "it is not said"
    ! grep -q before /tmp/taken || die "there was a first pass"
    ! checkpoint c --leave-running --to $to --name without --memory-ahead always 2> /tmp/why || die "it has not failed"
    grep -q "cannot be read while it runs" /tmp/why || die "$(cat /tmp/why)"
  ) || exit 1
  goes_on c
done
rm -r /disk/kept/without

# So long after the first pass has begun.
for moment in 10000 300000 1000000 3000000; do
  vellum checkpoint --state /disk/state c --leave-running --to /disk/kept --name killed > /dev/null 2>&1 &
  pid=$!
  waits 60 'pgrep -f "criu pre-dump" > /dev/null'
  usleep $moment
  kill -KILL $pid 2> /dev/null
  wait $pid
  waits 60 '! ls -A /disk/kept | grep -q unfinished'
  goes_on c
  [ -e /disk/kept/killed ] && when="done before" || when=killed
  echo "$(up) s: $when, after $moment us"
  rm -rf /disk/kept/killed
done
checkpoint c --to /disk/kept --name last --pace 500M > /tmp/taken 2> /tmp/why || die "the last one: $(cat /tmp/why)"
[ "$(ls -A /disk/kept)" = last ] || die "left: $(ls -A /disk/kept)"
restored "what a directory has, as one object" /disk/kept/last
restored "what a store has, of two" zoned:/disk/store/second
from=/disk/stream
restored "a stream" --stream
echo "all is well"
