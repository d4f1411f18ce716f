#!/bin/bash
# Checkpoints of containerd's containers; see lib.sh for the arguments. Root's, with a CRIU that knows the kernel in PATH.
. "$(dirname "$0")/lib.sh"
cd "$DIR" || exit 1
export CONTAINERD_ADDRESS=$DIR/socket CONTAINERD_NAMESPACE=vellum-test-$$ VELLUM_POOLS=$DIR/pools VELLUM_LIBRARY=
NS=$CONTAINERD_NAMESPACE ROOT=$DIR/tree
cat > config.toml <<C
version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri"]
root = "$DIR/root"
state = "$DIR/state-of-containerd"
[grpc]
address = "$CONTAINERD_ADDRESS"
[ttrpc]
address = "$DIR/ttrpc"
C
containerd -c config.toml > containerd.log 2>&1 & DAEMON=$!
finish() {
  local id; for id in $(ctr containers ls -q); do ctr tasks rm -f "$id"; ctr containers rm "$id"; done > /dev/null 2>&1
  kill $DAEMON; wait $DAEMON 2> /dev/null; umount "$ROOT" 2> /dev/null
}
trap finish EXIT
for n in $(seq 600); do ctr version > /dev/null 2>&1 && break; sleep 0.1; done

vellum() { "$PROGRAM" "$@"; }
mounted() { vellum mount -o "lowerdir=$DIR/low,upperdir=$DIR/up,workdir=$DIR/work" "$ROOT"; }
# run ID COMMAND: on a tree of its own.
run() { rm -rf up work; mkdir -p up work tree; mounted; ctr run -d --rootfs "$ROOT" "$1" /bin/sh -c "export PATH=/bin; $2" > /dev/null; }
take() { vellum checkpoint --state "$DIR/state" --to "${TO:-$DIR/kept}" "$@"; }
restore() { vellum restore --state "$DIR/state" "$@"; }
state() { ctr tasks ls | awk -v id="$1" '$1 == id { print $3 }'; }
is() { [ "$(state "$2")" = "$1" ]; }
# Away with an ended one, its tree and its layer.
forget() { ctr tasks rm -f "$1" > /dev/null 2>&1; ctr containers rm "$1"; vellum umount "$ROOT"; rm -rf up work; }
counted() { cat "$ROOT/srv/count"; }
COUNT='i=0; while :; do i=$((i+1)); echo $i >> /srv/count; sleep 0.02; done'
counts_on() {
  local before; before=$(counted | wc -l)
  more() { [ "$(counted | wc -l)" -gt "$before" ]; }
  ! eventually more || return 0
  echo "it does not count on from $before"; return 1
}
gapless() { same "what it has counted" "" "$(counted | awk '$1 != NR { print "gap at", NR; exit }')"; }
refused() {
  local words=$1 said rc=0; shift
  said=$("$@" 2>&1 > /dev/null) || rc=$?
  same "status of $*: $said" 2 "$rc"
  same "lines of $*: $said" 1 "$(echo "$said" | wc -l)"
  case $said in *"$words"*) ;; *) echo "$*: $words is not in: $said"; return 1 ;; esac
}

prepare() { make_root low; mkdir -p low/srv; ln -s usr/lib low/lib; ln -s usr/lib64 low/lib64; ctr --version; criu --version; runc --version; }
# Goes on, ends, goes on as containerd's twice, the second time in a pool.
counter() {
  run count "$COUNT"; sleep 0.3
  take "containerd:$NS/count" --leave-running
  same "state" RUNNING "$(state count)"; counts_on; gapless
  take "containerd:$NS/count" --name last
  same "state of the one that has ended" STOPPED "$(state count)"
  refused "containers rm count" restore kept/last
  ctr tasks rm count > /dev/null || true; ctr containers rm count
  refused "vellum umount" restore kept/last
  vellum umount "$ROOT"
  refused "something is in it" restore kept/last
  rm -rf up work
  refused "leave --name out" restore kept/last --name other
  restore kept/last
  same "state" RUNNING "$(state count)"; counts_on; gapless
  same "its runtime from now on" "$(command -v runc)" "$(readlink "state/containerd/$NS.count/runc")"
  same "exec" here "$(ctr tasks exec --exec-id one count /bin/echo here)"
  ctr tasks pause count; same "state" PAUSED "$(state count)"; refused "not running" take "containerd:$NS/count"
  ctr tasks resume count; counts_on
  take "containerd:$NS/count" --name again; forget count
  vellum pool create "$NS"; restore kept/again --pool "$NS"; counts_on; gapless
  vellum stats | grep -q "$ROOT" || vellum pool show "$NS" | grep -q "$ROOT"
  ctr tasks kill -s KILL count; eventually is STOPPED count || true; same "state" STOPPED "$(state count)"; forget count
  pool_goes "$NS"
  same "names" "again count last" "$(vellum checkpoints list --json kept | grep -o '"name": "[a-z]*"' | cut -d'"' -f4 | sort | xargs)"
  vellum checkpoints show kept last | grep -q "$DIR/low"
}
# With the library, which it sees from outside: it goes away, and comes back.
# What it writes all the time is in shared memory: a volume is not kept, and may be written to until the end.
library() {
  local bind=options=rbind:ro; ground "$NS"
  rm -rf up work; mkdir -p up work tree; mounted
  ctr run -d --rootfs --env LD_PRELOAD=/opt/lib/libvellum.so --env VELLUM_RING=on --mount "type=bind,src=/usr,dst=/usr,$bind" \
    --mount "type=bind,src=$DIR/library,dst=/opt/lib,$bind" --mount "type=bind,src=$VELLUM_POOLS/.run/$NS.session,dst=/.vellum,$bind" \
    --mount "type=bind,src=$DIR/data,dst=/data,options=rbind:rw" "$ROOT" lib /bin/sh -c 'exec /opt/lib/works /data /dev/shm > /srv/said'
  said() { cat "$ROOT/srv/said"; }
  served said
  take "containerd:$NS/lib" --leave-running; served said
  take "containerd:$NS/lib"; ! said | grep BAD; forget lib
  needs_library kept/lib
  restore kept/lib; served said; forget lib; no_ground "$NS"
}
# Every kind of change in the upper layer.
layer() {
  # A sleep that CRIU has ended is begun anew.
  run changed "$CHANGES; echo more > /new/later; touch /tmp/done; while :; do sleep 600; done"
  eventually test -e "$ROOT/tmp/done"
  listing "$ROOT" > seen
  take "containerd:$NS/changed" --pace 200M; [ -e kept/changed/object ]; forget changed
  restore kept/changed
  listing "$ROOT" > kept-listing; same "state" RUNNING "$(state changed)"
  grep -q 'new/dir/file f' seen || { echo "the listing lacks something"; return 1; }
  same "container against its checkpoint" "$(cat seen)" "$(cat kept-listing)"
  forget changed
}
# Between the dump and its end nothing of it runs, as of podman's.
still() {
  local n
  run busy 'for n in 1 2; do (i=0; while :; do i=$((i+1)); echo $i >> /srv/busy$n; done) & done
    x=$(busybox head -c 30000000 /dev/zero | busybox tr "\\0" x); echo > /srv/ready; wait'
  eventually test -e "$ROOT/srv/ready"
  take "containerd:$NS/busy"
  cp "$ROOT"/srv/busy? .; forget busy
  restore_and_look kept/busy "$DIR/up"
  for n in 1 2; do same "what $n has written" "$(tail -n1 "moment/busy$n")" "$(tail -n1 "busy$n")"; done
  forget busy; vellum checkpoints delete kept busy
}
store() {
  vellum zoned format --state "$DIR/calibrations" --size 64M --zone-size 1M device
  run stored "$COUNT"; sleep 0.3
  TO="zoned:$DIR/device" take "containerd:$NS/stored"; forget stored
  restore "zoned:$DIR/device/stored"; counts_on; gapless; forget stored
}
# Killed at any moment: containerd says that it runs, and it does.
interrupted() {
  run cut "$COUNT"; sleep 0.3
  take "containerd:$NS/cut" --leave-running
  local pid delay rc=0
  for delay in 0.02 0.05 0.08 0.12 0.16 0.2 0.25 0.3; do
    "$PROGRAM" checkpoint --state "$DIR/state" --to "$DIR/kept" "containerd:$NS/cut" --leave-running > /dev/null 2>&1 & pid=$!
    sleep $delay; kill -KILL $pid 2> /dev/null || true; wait $pid 2> /dev/null || true
    same "state after $delay s" RUNNING "$(state cut)"
    counts_on; gapless; vellum checkpoints show kept cut > /dev/null
  done
  nothing_unfinished "containerd:$NS/cut"
  counts_on; ctr tasks pause cut; ctr tasks resume cut; counts_on; forget cut
  restore kept/cut; counts_on; gapless; forget cut
  # A restoration that is killed: the container runs, or what is left is taken away by hand, as it is said.
  for delay in 0.03 0.08 0.13 0.18 0.25 0.35; do
    "$PROGRAM" restore --state "$DIR/state" kept/cut > /dev/null 2>&1 & pid=$!
    sleep $delay; kill -KILL $pid 2> /dev/null || true; wait $pid 2> /dev/null || true
    # Containerd comes to its end with what it was asked for.
    eventually not pgrep -f "ctr --namespace $NS run"
    if [ "$(state cut)" = RUNNING ]; then counts_on; gapless; fi
    ctr tasks rm -f cut > /dev/null 2>&1 || true; ctr containers rm cut > /dev/null 2>&1 || true
    unmounted() { ! grep -qF "$ROOT" /proc/self/mounts || vellum umount "$ROOT" 2> /dev/null; }
    eventually unmounted
    rm -rf up work
  done
  restore kept/cut; counts_on; gapless; forget cut
  # Images that CRIU cannot read: nothing is left.
  cp -a kept/cut kept/broken; damage kept/broken/object
  restore kept/broken 2> said || rc=$?; cat said
  same "status, lines" "125 1" "$rc $(wc -l < said)"
  same "containers" "" "$(ctr containers ls -q)"
  same "mounts" "" "$(grep -F "$ROOT" /proc/self/mounts)"
  same "upper layer" "" "$(ls -A up)"
  refused "" restore kept/nothing
}
unfit() {
  refused none take "containerd:$NS/none"
  refused "letter or digit" take "containerd:--all/x"
  mkdir -p up work tree
  ctr run -d --rootfs "$DIR/low" plain /bin/sleep 600
  refused "no writable tree of Vellum" take "containerd:$NS/plain"
  ctr tasks kill -s KILL plain; eventually is STOPPED plain || true; refused "not running" take "containerd:$NS/plain"
  ctr tasks rm plain > /dev/null || true; ctr containers rm plain
  run there "$COUNT"; sleep 0.1; take "containerd:$NS/there"; forget there
  echo other > low/etc/new; refused "has changed" restore kept/there
}
remove() { same "left in the state" "" "$(ls -A state/engines)"; nothing_left "$DIR"; }
try prepare prepare
try counter counter
try layer layer
try still still
try library library
try store store
try interrupted interrupted
try unfit unfit
try remove remove
exit $FAILED
