# Shared by the engine tests. Sourced by bash scripts that are called as: SCRIPT DIR PROGRAM [PROFILE]
#   DIR      an empty directory on a local filesystem
#   PROGRAM  the mount program; PROFILE is given to it when it is Vellum
# Results go to the file $VELLUM_TEST_RESULTS: "ok NAME: ", "fail NAME: why", "skip NAME: why".
set -uo pipefail
DIR=$1 PROGRAM=$2 PROFILE=${3-}
FAILED=0

note() { [ -z "${VELLUM_TEST_RESULTS-}" ] || echo "$1 $2: ${3-}" >> "$VELLUM_TEST_RESULTS"; echo "### $1 $2 ${3-}"; }

# try NAME COMMAND...: one test, with a limit of its own. What it prints is in the log; its last line says why it
# failed.
try() {
  local name=$1 rc start=$EPOCHREALTIME; shift
  echo "=== $name"
  ( set -e; "$@" ) > "$DIR/out" 2>&1 < /dev/null; rc=$?
  cat "$DIR/out"
  case $rc in
    0) note ok "$name" ;;
    77) note skip "$name" "$(tail -n1 "$DIR/out")" ;;
    *) note fail "$name" "exit status $rc: $(grep -v '^$' "$DIR/out" | tail -n1)"; FAILED=1 ;;
  esac
  awk -v a="$start" -v b="$EPOCHREALTIME" -v n="$name" 'BEGIN { printf "    %s took %.1f s\n", n, b - a }'
}

# same WHAT EXPECTED SEEN
same() {
  [ "$2" = "$3" ] && return
  echo "$1:"; diff <(echo "$2") <(echo "$3") | head -n 20; echo "$1 differs"; return 1
}

# eventually COMMAND...: repeats it until it succeeds, for a minute at the longest. Only a failure takes so long.
eventually() { local end=$((SECONDS + 60)); until "$@"; do ((SECONDS < end)) || { echo "not within a minute: $*"; return 1; }; sleep 0.1; done; }
# not COMMAND...: whether it fails.
not() { ! "$@"; }
# pool_goes POOL: deletes it. A service ends a moment after its last mount.
pool_goes() { deleted() { "$PROGRAM" pool delete "$1" 2> /dev/null; }; eventually deleted "$1" || "$PROGRAM" pool delete "$1"; }

# nothing_unfinished CHECKPOINT: kills one more checkpoint that has a guard, which takes away what is unfinished in $DIR/kept. What commands have left that were
# killed before they had one, the next one takes away when it begins: here, this one.
nothing_unfinished() {
  local pid; no_guard() { ! pgrep -f internal-thaw > /dev/null; }
  eventually no_guard || { echo "a guard does not end"; return 1; }
  begin() { "$PROGRAM" checkpoint --state "$DIR/state" --to "$DIR/kept" "$1" --leave-running > /dev/null 2>&1 & pid=$!; }
  # Its own guard: the one of a command that was killed before may have been about to begin when none was seen, and has the right until it ends.
  is_begun() {
    ! pgrep -P $pid -f internal-thaw > /dev/null || return 0
    ! kill -0 $pid 2> /dev/null || return 1
    ! wait $pid || return 0
    begin "$1"; return 1
  }
  begin "$1"
  eventually is_begun "$1" || { echo "no guard"; return 1; }
  kill -KILL $pid 2> /dev/null || true; wait $pid 2> /dev/null || true
  none() { ! ls -A "$DIR/kept" | grep -q unfinished; }
  eventually none || true
  same "unfinished" "" "$(ls -A "$DIR/kept" | grep unfinished)"
  # It has the right to take one until it has ended.
  eventually no_guard
}

# A root tree with what images have: owners, set-id bits, links, attributes, a capability, old times.
make_root() { # DIRECTORY
  local root=$1 applet
  mkdir -p "$root"/{bin,dev,proc,sys,run,tmp,etc,root,home/user,usr/lib,var/lib/many}
  cp "$(command -v busybox)" "$root/bin/busybox"
  for applet in sh cat ls stat find id echo sleep chmod chown ln mv rm rmdir mkdir touch sha256sum mkfifo true sync dd wc test grep; do
    ln -s busybox "$root/bin/$applet"
  done
  echo 'root:x:0:0:root:/root:/bin/sh' > "$root/etc/passwd"
  echo 'root:x:0:' > "$root/etc/group"
  touch "$root"/etc/{hosts,resolv.conf,hostname} "$root/run/.containerenv"
  echo 'from the image' > "$root/etc/config"
  ln "$root/etc/config" "$root/etc/config-linked"
  cp "$root/bin/busybox" "$root/bin/setuid"; chmod 4755 "$root/bin/setuid"
  chmod 1777 "$root/tmp"; chmod 2750 "$root/home/user"; chown -R 1000:1000 "$root/home/user"
  local n
  for n in $(seq 200); do echo "$n" > "$root/var/lib/many/$n"; done
  mkdir -p "$root/usr/lib/deep/er"; echo deep > "$root/usr/lib/deep/er/file"
  setfattr -n user.from -v image "$root/etc/config" 2>/dev/null || true
  setcap cap_net_raw=ep "$root/bin/setuid" 2>/dev/null || true
  chmod 4755 "$root/bin/setuid"
  find "$root" -depth -exec touch -h -d '2020-02-02 02:02:02 UTC' {} +
}

# What a container does to its tree: every kind of change.
CHANGES='set -e
echo changed >> /etc/config
chmod 600 /etc/passwd
chown 7:8 /usr/lib/deep/er/file
rm -r /var/lib/many/1 /var/lib/many/2
mv /usr/lib/deep /usr/lib/moved
mkdir -p /new/dir; echo new > /new/dir/file; chmod 2711 /new/dir
ln /new/dir/file /new/linked; ln -s dir/file /new/symlink; mkfifo /new/fifo
rm -r /home/user; mkdir /home/user; echo replaced > /home/user/file
dd if=/dev/zero of=/new/sparse bs=1 count=1 seek=1000000 2>/dev/null
touch /new/empty; echo x > /new/setuid; chmod 4755 /new/setuid
mv /var/lib/many/3 /var/lib/three; touch -d "2001-01-01 01:01:01" /var/lib/three
sync'

# Everything that can be seen of the tree at $1, a line each. Left out: what the engine mounts over.
listing() {
  ( cd "$1" && find . -mindepth 1 \( -path ./dev -o -path ./proc -o -path ./sys -o -path ./run -o -path ./etc/hosts \
      -o -path ./etc/resolv.conf -o -path ./etc/hostname -o -path ./etc/mtab \) -prune -o \
      \( -type d -printf '%P %y %m %U:%G - %Ts\n' -o -printf '%P %y %m %U:%G %s %Ts %n %l\n' \) | sort
    find etc home new usr var bin -type f ! -path etc/hosts ! -path etc/resolv.conf ! -path etc/hostname -print0 2>/dev/null |
      sort -z | xargs -0 sha256sum
    getfattr -R -h -d -m '^(user\.|security\.capability)' etc home new usr var bin 2>/dev/null )
}

# Nothing of ours may stay: no mount below $1, no daemon with $1 in its arguments.
nothing_left() {
  local n
  for n in $(seq 600); do
    ! grep -q " $1[^ ]*merged" /proc/self/mounts && ! pgrep -f "upperdir=$1" > /dev/null && return
    sleep 0.1
  done
  grep " $1" /proc/self/mounts; pgrep -af "$1"; echo "left mounted or running"; return 1
}

# ground POOL: a directory in a pool, whose files the library in $DIR/library reads and opens.
ground() {
  export VELLUM_POOLS=$DIR/pools; mkdir -p data data-low data-up data-work
  vellum pool create "$1"
  vellum mount -o "pool=$1,profile=passthrough,lowerdir=$DIR/data-low,upperdir=$DIR/data-up,workdir=$DIR/data-work" data
}
no_ground() { vellum umount data; pool_goes "$1"; }
# served COMMAND...: what the program says goes on without anything wrong, and more is read from memory.
served() {
  local n before now; before=$("$@" 2> /dev/null | tail -n1 | cut -d' ' -f2) || true
  for n in $(seq 300); do
    ! "$@" 2> /dev/null | grep BAD || return 1
    now=$("$@" 2> /dev/null | tail -n1 | cut -d' ' -f2) || true; [ "${now:-0}" -le "${before:-0}" ] || return 0; sleep 0.05
  done
  echo "no more than $before is read from memory"; return 1
}
# needs_library CHECKPOINT: the very file has to be there.
needs_library() {
  mv library/libvellum.so library/away; refused "is not there" restore "$1"
  echo other > library/libvellum.so; refused "another one" restore "$1"; mv library/away library/libvellum.so
}
# Puts something else in the middle of a file, where an object has images.
damage() { dd if=/dev/urandom of="$1" bs=4096 count=4 seek=$(($(stat -c %s "$1") / 8192)) conv=notrunc 2> /dev/null; }
# restore_and_look CHECKPOINT DIRECTORY: restores, with a CRIU that first copies the files /srv/busy? below the directory to moment/: of the layer as it was.
restore_and_look() {
  mkdir -p look moment
  printf '#!/bin/sh\n[ "$1" != swrk ] || find %s -path "*/srv/busy?" -exec cp {} %s \\;\nexec %s "$@"\n' "$2" "$DIR/moment" "$(command -v criu)" > look/criu
  chmod 755 look/criu
  PATH=$DIR/look:$PATH restore "$1"
}
