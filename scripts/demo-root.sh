# The demo as root. Sourced by scripts/demo.
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/vellum/demo
RELEASE=bookworm
MIRROR=${VELLUM_DEMO_MIRROR:-$(awk '/^URIs:/{print $2; exit}' /etc/apt/sources.list.d/debian.sources 2> /dev/null)}
MIRROR=${MIRROR:-http://deb.debian.org/debian}

# Everything below runs in a mount and a process namespace of its own: whatever happens, nothing stays mounted and
# no daemon stays behind.
if [ -z "${VELLUM_DEMO_INSIDE-}" ]; then
  step "1. What is needed" slowly scripts/apt debootstrap podman runc fuse3 procps util-linux
  [ -z "${PROFILE-}" ] ||
    step "2. Vellum, $PROFILE build" build_vellum
  [ -x "$VELLUM" ] || die "$VELLUM is missing"
  WORK=$(mktemp -d "${TMPDIR:-/var/tmp}/vellum-demo.XXXXXX")
  # With the namespace's first process all others end too; only then nobody writes here any more.
  trap 'rm -rf --one-file-system "$WORK" "$CACHE/store.run"' EXIT
  trap 'exit 130' INT TERM
  export VELLUM WORK VELLUM_DEMO_INSIDE=1 VELLUM_DEMO_BEGUN=$BEGUN
  VELLUM_DEMO_TIMES=$(printf '%s\n' "${TIMES[@]}") unshare --mount --pid --fork --kill-child --mount-proc --propagation private "$HERE/scripts/demo"
  exit
fi
BEGUN=$VELLUM_DEMO_BEGUN
mapfile -t TIMES <<< "$VELLUM_DEMO_TIMES"
ROOT=$WORK/merged
mkdir -p "$WORK"/{upper,work,merged} "$CACHE"

finish() {
  local at
  for at in $(awk -v w="$WORK" 'index($2, w) == 1 { print $2 }' /proc/self/mounts | tac); do umount -l "$at" 2> /dev/null; done
}
trap finish EXIT
trap 'exit 130' INT TERM

union() { # LOWERS UPPER WORK MERGED
  "$VELLUM" -o "lowerdir=$1,upperdir=$2,workdir=$3" "$4"
}
# A command with the tree as its root.
within() { # ROOT COMMAND...
  local root=$1; shift
  unshare --mount --propagation private bash -c '
    root=$1; shift; mount -t proc proc "$root/proc"; mount --bind /dev "$root/dev"
    exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"' bash "$root" "$@"
}

# A layer is made as a container engine makes it: a union over the layers so far, a command in it, and what its upper
# then holds is the layer.
layer() { # NAME LOWERS SCRIPT
  local name=$1 lowers=$2 script=$3 dir=$CACHE/$1
  if [ -e "$dir.complete" ] && [ "$(cat "$dir.complete")" = "$script" ]; then say "$name: kept from an earlier run"; return; fi
  rm -rf --one-file-system "$dir" "$dir.work" "$dir.complete"; mkdir -p "$dir" "$dir.work"
  union "$lowers" "$dir" "$dir.work" "$ROOT" || return
  cp /etc/resolv.conf "$ROOT/etc/resolv.conf" 2> /dev/null
  local rc=0; slowly within "$ROOT" sh -ec "$script" || rc=$?
  umount "$ROOT" || return
  rm -rf --one-file-system "$dir.work"
  [ $rc = 0 ] || return $rc
  printf '%s' "$script" > "$dir.complete"
  say "$name: made, $(du -sh "$dir" | cut -f1)"
}

APT='apt-get -o Acquire::Retries=3 -o Dpkg::Use-Pty=0'
layers() {
  local base=$CACHE/base
  if [ ! -e "$base.complete" ]; then
    local attempt
    for attempt in 1 2 3; do
      rm -rf --one-file-system "$base"; mkdir -p "$base"
      slowly debootstrap --variant=minbase "$RELEASE" "$base" "$MIRROR" && break
      [ $attempt != 3 ] || return 1
      say "debootstrap failed; once more"; sleep $((attempt * 5))
    done
    rm -rf "$base"/var/cache/apt/archives/*.deb "$base"/usr/share/{doc,man,locale}/*
    touch "$base.complete"
    say "base: Debian $RELEASE, made, $(du -sh "$base" | cut -f1)"
  else say "base: Debian $RELEASE, kept from an earlier run"; fi
  layer python "$base" "$APT -qq update; $APT -qq install -y --no-install-recommends python3-minimal; $APT clean" || return
  layer compiler "$CACHE/python:$base" "$APT -qq update; $APT -qq install -y --no-install-recommends gcc libc6-dev make
cd /root; $APT -qq download hello; $APT clean; rm -rf /var/lib/apt/lists/*" || return
}
LOWERS=$CACHE/compiler:$CACHE/python:$CACHE/base

mount_it() {
  run "$VELLUM" -o "lowerdir=$LOWERS,upperdir=$WORK/upper,workdir=$WORK/work" "$ROOT" || return
  findmnt -n -o FSTYPE,OPTIONS "$ROOT" | show
  "$VELLUM" inspect "$ROOT" 2> /dev/null | head -n 12 | show
  return 0
}

PROGRAM='#include <stdio.h>
#include <string.h>
int main(void) {
    static char composite[2000001];
    int count = 0;
    for (int n = 2; n <= 2000000; n++)
        if (!composite[n]) { count++; for (long m = (long)n * n; m <= 2000000; m += n) composite[m] = 1; }
    printf("%d primes below 2000000\n", count);
    return count == 148933 ? 0 : 1;
}'
INSIDE='set -e
echo "root of: $(. /etc/os-release; echo $PRETTY_NAME), $(dpkg-query -f x -W | wc -c) packages"
python3 -c "import sys, os; print(\"python\", sys.version.split()[0], \"counts\", sum(len(f) for _, _, f in os.walk(\"/usr\")), \"files in /usr\")"
mkdir -p /root/sieve; cd /root/sieve
printf "%s" "$1" > sieve.c
printf "all: sieve\n\t./sieve\n" > Makefile
make --no-print-directory CFLAGS=-O2
apt-get -qq -o Dpkg::Use-Pty=0 install -y /root/hello_*.deb > /dev/null 2>&1; hello
apt-get -qq -o Dpkg::Use-Pty=0 purge -y make > /dev/null
dpkg --audit; ! command -v make > /dev/null; echo "hello installed, make removed, dpkg content"'
inside() { within "$ROOT" sh -c "$INSIDE" sh "$PROGRAM" 2>&1 | show; }

rename() {
  local count start
  count=$(find "$ROOT/usr/lib/gcc" "$ROOT/usr/lib/python3.11" -type f | wc -l)
  start=$EPOCHREALTIME
  mv -T "$ROOT/usr/lib/python3.11" "$ROOT/usr/lib/python-renamed" && mv -T "$ROOT/usr/lib/gcc" "$ROOT/usr/lib/gcc-renamed" || return
  say "two directories of the lower layers with $count files renamed in $(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", (b - a) * 1000 }') ms, nothing copied"
  mv -T "$ROOT/usr/lib/python-renamed" "$ROOT/usr/lib/python3.11" && mv -T "$ROOT/usr/lib/gcc-renamed" "$ROOT/usr/lib/gcc"
}

upper() {
  say "$(find "$WORK/upper" -type f | wc -l) files, $(find "$WORK/upper" -type c | wc -l) whiteouts, $(du -sh "$WORK/upper" | cut -f1) in the upper, of $(find "$ROOT" -xdev | wc -l) in the tree:"
  (cd "$WORK/upper" && find root usr/bin usr/share -maxdepth 2 \( -type f -o -type c \) -printf '%M %9s %TH:%TM  %p\n' | sort -k4 | head -n 14) | show
  ls -la "$WORK/upper/usr/bin/make" "$WORK/upper/usr/bin/hello" 2> /dev/null | show
  say "and the layers below are as they were: $(find "$CACHE/base" "$CACHE/python" "$CACHE/compiler" -newer "$WORK/work" | wc -l) of their files have changed"
}

# podman remembers where its run directory was, so that cannot be in $WORK; what is in it is of no use afterwards.
STORE=$CACHE/store
podman_setup() {
  # The daemon's program lies with the store: what the store was made with is what it is used with.
  cat > "$WORK/storage.conf" <<C
[storage]
driver = "overlay"
graphroot = "$STORE"
runroot = "$STORE.run"
[storage.options.overlay]
mount_program = "$VELLUM"
C
  cat > "$WORK/containers.conf" <<C
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
C
  export CONTAINERS_STORAGE_CONF=$WORK/storage.conf CONTAINERS_CONF=$WORK/containers.conf PODMAN_IGNORE_CGROUPSV1_WARNING=1 TMPDIR=$WORK
  say "storage.conf: mount_program = \"$VELLUM\""
  if podman image exists vellum-demo && [ "$(cat "$STORE.complete" 2> /dev/null)" = "$(cat "$CACHE/compiler.complete")" ]; then
    say "image vellum-demo: kept from an earlier run"; return
  fi
  podman system reset -f > /dev/null 2>&1
  union "$LOWERS" "$WORK/upper2" "$WORK/work2" "$WORK/image" || return
  slowly bash -c "set -o pipefail; tar -C '$WORK/image' --xattrs --exclude=./dev/* -cf - . | podman import - vellum-demo" || return
  umount "$WORK/image"
  cp "$CACHE/compiler.complete" "$STORE.complete"
  say "image vellum-demo: made of the three layers"
}
under_podman() {
  podman rm -fa -t0 > /dev/null 2>&1
  run podman run --rm --network=none vellum-demo cat /etc/debian_version || return
  say "\$ podman run --name demo vellum-demo sh -c '(the same as above)'"
  podman run --network=none --name demo vellum-demo sh -c "$INSIDE" sh "$PROGRAM" 2>&1 | show
  [ "${PIPESTATUS[0]}" = 0 ] || return 1
  podman diff demo | sort | awk 'length($2) < 24' | head -n 8 | show
  run podman commit -q demo vellum-demo-2 > "$WORK/commit" || return
  say "committed; a container of the new image says: $(podman run --rm --network=none vellum-demo-2 hello)"
  podman rm -fa -t0 > /dev/null && podman rmi -f vellum-demo-2 > /dev/null
}

unmount_it() {
  run umount "$ROOT" || return
  local n
  for n in $(seq 50); do pgrep -f "upperdir=$WORK" > /dev/null || break; sleep 0.1; done
  ! pgrep -fa "upperdir=$WORK" || return
  say "mounts of Vellum left: $(grep -c 'fuse.vellum' /proc/self/mounts)"
}

step "3. Three layers: Debian, python, a compiler (the first run downloads them)" layers
step "4. Mount" mount_it
step "5. Programs with that mount as their root: python, make, gcc, apt" inside
step "6. A directory of a lower layer is renamed" rename
step "7. What the upper layer now holds" upper
mkdir -p "$WORK"/{upper2,work2,image}
step "8. podman $(podman --version | awk '{print $3}') with Vellum as its mount program" podman_setup
step "9. The same in a container" under_podman
step "10. Unmount" unmount_it
summary
