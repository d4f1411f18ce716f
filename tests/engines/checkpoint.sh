#!/bin/bash
# Checkpoints of podman's containers; see lib.sh for the arguments. Root's, with a CRIU that knows the kernel in PATH.
. "$(dirname "$0")/lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
cd "$DIR" || exit 1
. "$here/podman-setup.sh"
trap 'podman rm -fa -t0 > /dev/null 2>&1; umount "$DIR/small" 2> /dev/null' EXIT
export VELLUM_LIBRARY=

vellum() { "$PROGRAM" "$@"; }
run() { podman run -d --network=none "$@"; }
take() { vellum checkpoint --state "$DIR/state" --to "${TO:-$DIR/kept}" "$@"; }
restore() { vellum restore --state "$DIR/state" "$@"; }
state() { podman inspect -f '{{.State.Status}}' "$1"; }
is() { [ "$(state "$2")" = "$1" ]; }
counted() { podman exec "$1" cat /srv/count; }
# Counts in memory and in a file.
COUNT='i=0; while :; do i=$((i+1)); echo $i >> /srv/count; sleep 0.02; done'
# Waits until it counts on.
counts_on() {
  local before end=$((SECONDS + 60))
  # While it stands still podman runs nothing in it, and the guard of a killed command may not be done yet.
  until before=$(counted "$1" | wc -l); do ((SECONDS < end)) || break; sleep 0.1; done
  while ((SECONDS < end)); do [ "$(counted "$1" | wc -l)" -le "$before" ] || return 0; sleep 0.05; done
  echo "$1 does not count on from $before"; return 1
}
# Without a gap: memory and file are of one moment.
gapless() { same "what $1 has counted" "" "$(counted "$1" | awk '$1 != NR { print "gap at", NR; exit }')"; }
# refused WORDS COMMAND...: one line, status 2.
refused() {
  local words=$1 said rc=0; shift
  said=$("$@" 2>&1 > /dev/null) || rc=$?
  same "status of $*: $said" 2 "$rc"
  same "lines of $*: $said" 1 "$(echo "$said" | wc -l)"
  case $said in *"$words"*) ;; *) echo "$*: $words is not in: $said"; return 1 ;; esac
}

import() { make_root tree; mkdir -p tree/srv; ln -s usr/lib tree/lib; ln -s usr/lib64 tree/lib64; tar -C tree --xattrs --xattrs-include='*' -cf image.tar .; podman import image.tar base; vellum --version; criu --version; }
# Goes on twice, ends and goes on; podman knows it all the time.
counter() {
  run --name count base sh -c "$COUNT"; sleep 0.3
  take podman:count --leave-running
  same "state" running "$(state count)"; counts_on count; gapless count
  take "podman:$(podman inspect -f '{{.Id}}' count)" --name last
  # Podman cleans up behind it by another process: it is `stopped` until then.
  eventually is exited count
  same "state of the one that has ended" "exited 137" "$(podman inspect -f '{{.State.Status}} {{.State.ExitCode}}' count)"
  refused "podman rm count" restore kept/last
  podman rm count
  restore kept/last
  same "podman ps" "count Up" "$(podman ps --format '{{.Names}} {{.Status}}' | cut -d' ' -f1,2)"
  counts_on count; gapless count
  # The earlier one beside it, by another name and id.
  restore kept/count --name other; counts_on other; gapless other; gapless count
  podman stop -t1 other; same "state" exited "$(state other)"; podman start other; podman exec other true
  take podman:count --name again; podman rm count
  restore kept/again; counts_on count; gapless count
  podman pause count; refused paused take podman:count; podman unpause count; counts_on count
  podman rm -f -t0 count other
  same "names" "again count last" "$(vellum checkpoints list --json kept | grep -o '"name": "[a-z]*"' | cut -d'"' -f4 | sort | xargs)"
  vellum checkpoints show kept last | grep -q 'podman:localhost/base'
}
# Every kind of change in the upper layer, and what is removed from it later does not come back.
layer() {
  run --name changed base sh -c "$CHANGES; echo more > /new/later; touch /tmp/done; sleep 600"
  eventually podman exec changed test -e /tmp/done
  listing "$(podman mount changed)" > seen; podman umount changed
  take podman:changed; podman rm changed
  restore kept/changed
  listing "$(podman mount changed)" > kept-listing; podman umount changed
  grep -q 'new/dir/file f' seen || { echo "the listing lacks something"; return 1; }
  same "container against its checkpoint" "$(cat seen)" "$(cat kept-listing)"
  same "podman diff" "A /new/later" "$(podman diff changed | grep later)"
  podman rm -f -t0 changed
}
# Shared memory, which podman mounts itself; files without a name, there and in the layer, larger than CRIU takes by itself.
nameless() {
  run --name nameless base sh -c 'exec 3<>/srv/gone 4<>/dev/shm/gone; dd if=/dev/zero bs=1M count=3 >&3 2>/dev/null; echo words >&4; rm /srv/gone /dev/shm/gone
    mkdir /dev/shm/deep; echo shared > /dev/shm/deep/named; chmod 640 /dev/shm/deep/named; touch /srv/ready; while :; do sleep 0.1; done'
  eventually podman exec nameless test -e /srv/ready
  take podman:nameless; podman rm nameless; restore kept/nameless
  same "shared memory" "shared 640" "$(podman exec nameless sh -c 'echo $(cat /dev/shm/deep/named) $(stat -c %a /dev/shm/deep/named)')"
  same "nameless" "words 3145728" "$(podman exec nameless sh -c 'echo $(cat /proc/1/fd/4) $(wc -c < /proc/1/fd/3)')"
  podman rm -f -t0 nameless
}
# What podman does when a container ends is done when a checkpoint ends it, and nothing more.
endings() {
  run --rm --name gone base sh -c "$COUNT"; sleep 0.3
  take podman:gone
  eventually not podman container exists gone
  same "containers" "" "$(podman ps -aq)"
  restore kept/gone; counts_on gone; gapless gone; podman rm -f -t0 gone
  run --restart=always --name always base sh -c "$COUNT"; sleep 0.3
  # It is not begun anew, though podman would.
  take podman:always; eventually is exited always; sleep 1
  same "state" exited "$(state always)"; podman rm always
  restore kept/always; counts_on always; gapless always; podman rm -f -t0 always
}
# Between the dump and its end nothing of it runs: what processes have written is what the checkpoint has. The first one's end is the others', after its memory
# was given back, which takes a while.
still() {
  local n
  run --name busy base sh -c 'for n in 1 2; do (i=0; while :; do i=$((i+1)); echo $i >> /srv/busy$n; done) & done
    x=$(busybox head -c 30000000 /dev/zero | busybox tr "\\0" x); echo > /srv/ready; wait'
  eventually podman exec busy test -e /srv/ready
  take podman:busy
  podman mount busy > at; cp "$(cat at)"/srv/busy? .; podman umount busy; podman rm busy
  restore_and_look kept/busy "$DIR/root/overlay"
  for n in 1 2; do same "what $n has written" "$(tail -n1 "moment/busy$n")" "$(tail -n1 "busy$n")"; done
  podman rm -f -t0 busy; vellum checkpoints delete kept busy
  # Podman does not kill it, or the command is killed first: it goes on.
  mkdir -p shim; printf '#!/bin/sh\nfor word; do [ "$word" != kill ] || { %s; exit 1; }; done\nexec %s "$@"\n' '[ -e alone ] || kill -KILL $PPID' "$(command -v podman)" > shim/podman; chmod 755 shim/podman
  run --name held base sh -c "$COUNT"; sleep 0.3
  local turn; for turn in 1 2; do
    # The first one's guard may not be done yet.
    for n in $(seq 50); do ! PATH=$DIR/shim:$PATH take podman:held > said 2>&1; grep -q somebody said || break; sleep 0.1; done
    cat said; [ ! -e alone ] || grep -q "is still running" said
    same "state" running "$(state held)"; counts_on held; gapless held; touch alone
  done
  podman rm -f -t0 held; vellum checkpoints delete kept held
}
volumes() {
  mkdir -p volume; echo here > volume/file; podman volume create named > /dev/null
  run --name sees -v "$DIR/volume:/d" -v named:/n base sh -c "echo kept > /n/file; $COUNT"; sleep 0.3
  take podman:sees; podman rm sees
  mv volume away; refused volume restore kept/sees; mv away volume
  restore kept/sees; counts_on sees
  same "volumes" "here kept" "$(podman exec sees sh -c 'echo $(cat /d/file) $(cat /n/file)')"
  podman rm -f -t0 sees; podman volume rm named > /dev/null
  refused "podman volume create named" restore kept/sees
}
# With the library, which it sees from outside: it goes away, and comes back.
# What it writes all the time is in shared memory: a volume is not kept, and may be written to until the end.
library() {
  local pool=podman-$$; ground "$pool"
  run --name lib -v /usr/lib:/usr/lib:ro -v /usr/lib64:/usr/lib64:ro -v "$DIR/library:/opt/lib:ro" -v "$VELLUM_POOLS/.run/$pool.session:/.vellum:ro" -v "$DIR/data:/data" \
    -e LD_PRELOAD=/opt/lib/libvellum.so -e VELLUM_RING=on base /opt/lib/works /data /dev/shm
  served podman logs lib
  take podman:lib --leave-running; served podman logs lib
  take podman:lib; ! podman logs lib | grep BAD; podman rm lib
  needs_library kept/lib
  restore kept/lib; served podman logs lib
  podman rm -f -t0 lib; no_ground "$pool"
}
store() {
  vellum zoned format --state "$DIR/calibrations" --size 64M --zone-size 1M device
  run --name stored base sh -c "$COUNT"; sleep 0.3
  TO="zoned:$DIR/device" take podman:stored --leave-running; counts_on stored
  TO="zoned:$DIR/device" take podman:stored; podman rm stored
  restore "zoned:$DIR/device/stored"; counts_on stored; gapless stored
  # The store is free again, though the container runs.
  eventually vellum checkpoints delete "zoned:$DIR/device" stored
  counts_on stored; podman rm -f -t0 stored
}
# Packed, with another one that it needs, and from one command to the other.
packed() {
  run --name packs base sh -c "$COUNT"; sleep 0.3
  take podman:packs --leave-running --name whole --compress zstd:1; counts_on packs
  take podman:packs --name next --compress zstd:1 --parent whole --pace 200M; podman rm packs
  [ -e kept/next/object ]; refused next vellum checkpoints delete kept whole
  restore kept/next; counts_on packs; gapless packs
  vellum checkpoint --state "$DIR/state" --stream podman:packs > stream; podman rm packs
  restore --stream < stream; counts_on packs; gapless packs
  podman rm -f -t0 packs; vellum checkpoints delete kept whole next
}
# Killed at any moment: podman says that it runs, and it does; an older checkpoint is whole.
interrupted() {
  run --name cut base sh -c "$COUNT"; sleep 0.3
  take podman:cut --leave-running
  local pid delay manner=
  for delay in 0.02 0.08 0.15 0.2 0.25 0.3 0.4; do
    # In turn at a pace.
    if [ "$manner" ]; then manner=; else manner="--name paced --pace 1M"; fi
    # shellcheck disable=SC2086
    "$PROGRAM" checkpoint --state "$DIR/state" --to "$DIR/kept" podman:cut --leave-running $manner > /dev/null 2>&1 & pid=$!
    sleep $delay; kill -KILL $pid 2> /dev/null || true; wait $pid 2> /dev/null || true
    same "state after $delay s" running "$(state cut)"
    counts_on cut; gapless cut
    vellum checkpoints show kept cut > /dev/null
  done
  nothing_unfinished podman:cut
  counts_on cut; podman exec cut true; podman pause cut; podman unpause cut; podman rm -f -t0 cut
  for delay in 0.05 0.1 0.15 0.2 0.25 0.3 0.4; do
    "$PROGRAM" restore --state "$DIR/state" kept/cut > /dev/null 2>&1 & pid=$!
    sleep $delay; kill -KILL $pid 2> /dev/null || true; wait $pid 2> /dev/null || true
    # Podman, turned away, takes back what it has begun; or the container runs.
    eventually not pgrep -f "container restore.*$DIR/state"
    # Some versions leave one behind that was not started.
    if [ "$(state cut 2> /dev/null)" = running ]; then counts_on cut; gapless cut; podman rm -f -t0 cut
    elif podman container exists cut; then same "state after $delay s" created "$(state cut)"; podman rm cut; fi
  done
  restore kept/cut; counts_on cut; gapless cut; podman rm -f -t0 cut
  # Images that CRIU cannot read: podman has no container.
  cp -a kept/cut kept/broken; damage kept/broken/object
  local rc=0; restore kept/broken 2> said || rc=$?; cat said
  same "status, lines" "125 1" "$rc $(wc -l < said)"
  same "containers" "" "$(podman ps -aq)"
  same "mounts" "" "$(grep -F "$DIR/root/overlay/" /proc/self/mounts | grep merged)"
}
full() {
  run --name whole base sh -c "$COUNT"; sleep 0.3
  mkdir -p small; mount -t tmpfs -o size=2m tmpfs small
  local rc=0 before
  TO=$DIR/small/kept take podman:whole --leave-running || { umount small; return 1; }
  before=$(md5sum < small/kept/whole/checkpoint.json)
  dd if=/dev/zero of=small/fill bs=4k 2> /dev/null || true
  TO=$DIR/small/kept take podman:whole 2> said || rc=$?
  ls -A small/kept > left; [ "$before" = "$(md5sum < small/kept/whole/checkpoint.json)" ] || rc=changed
  umount small
  same "status, lines, and what is left" "1 1 whole" "$rc $(wc -l < said) $(cat left | xargs)"
  same "state" running "$(state whole)"; counts_on whole; gapless whole; podman rm -f -t0 whole
}
unfit() {
  refused none take podman:none
  refused "letter or digit" take podman:--all
  run --name fit base sh -c "$COUNT"
  podman stop -t0 fit; refused exited take podman:fit; podman rm fit
  run --name crunned --runtime runc --uidmap 0:100000:65536 --gidmap 0:100000:65536 base sleep 600
  refused "ids of its own" take podman:crunned; podman rm -f -t0 crunned || podman rm -f -t0 crunned
  podman pod create --infra=false --name together > /dev/null
  run --name member --pod together base sleep 600; refused "in a pod" take podman:member
  podman rm -f -t0 member; podman pod rm together > /dev/null
  run --name first base sleep 600; run --name second --pid container:first base sleep 600
  refused "shares namespaces" take podman:second; podman rm -f -t0 second; podman rm -f -t0 first
  run --name base-gone base sh -c "$COUNT"; take podman:base-gone; podman rm base-gone
  refused pool restore kept/base-gone --pool x
  podman rmi -f base; refused "podman load" restore kept/base-gone
  # Another image of this name.
  echo other > tree/etc/config; tar -C tree -cf image-2.tar .; podman import image-2.tar base
  refused "podman load" restore kept/base-gone
}
remove() { podman rm -fa -t0; podman rmi -fa; same "left in the state" "" "$(ls -A state/engines)"; nothing_left "$DIR/root"; }
try import import
try counter counter
try layer layer
try nameless nameless
try endings endings
try still still
try volumes volumes
try library library
try store store
try packed packed
try interrupted interrupted
try full full
try unfit unfit
try remove remove
exit $FAILED
