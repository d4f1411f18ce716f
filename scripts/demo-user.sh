# The demo as an ordinary user: a union in a user namespace. Nothing is installed; what is missing is named. Sourced
# by scripts/demo.

needs() {
  local missing=() program
  for program in unshare mount umount chroot ldd find getfattr; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$program" > /dev/null || missing+=("$program")
  done
  [ ${#missing[@]} -eq 0 ] || die "missing programs: ${missing[*]}; as root: apt-get install util-linux mount attr libc-bin"
  [ -e /dev/fuse ] || die "/dev/fuse is missing: the kernel has no FUSE"
  { : <> /dev/fuse; } 2> /dev/null || die "/dev/fuse is closed to $(id -un); as root: chmod 666 /dev/fuse"
  unshare --user --map-root-user --mount true 2> /dev/null ||
    die "user namespaces are closed to ordinary users; as root: sysctl kernel.unprivileged_userns_clone=1"
  say "unshare, /dev/fuse and user namespaces are there; no privilege is used"
}
build() {
  if command -v cargo > /dev/null && [ -w target -o ! -e target ]; then build_vellum
  elif [ -x "$VELLUM" ]; then say "$VELLUM is there already"
  else die "no cargo in PATH (rustup.rs), and no $VELLUM built by somebody else"; fi
}
step "1. What is needed" needs
[ -z "${PROFILE-}" ] || step "2. Vellum, ${PROFILE-} build" build
[ -x "$VELLUM" ] || die "$VELLUM is missing"

WORK=$(mktemp -d "${TMPDIR:-/var/tmp}/vellum-demo.XXXXXX")
# Files that another id in the namespace owns can only be removed there.
clean() {
  local n
  for n in 1 2 3 4 5; do
    # It keeps a process for the user namespace.
    [ ! -e "$WORK/podman" ] || { podman unshare rm -rf "$WORK/podman/root" "$WORK/podman/home"
      kill "$(cat "$WORK/podman/libpod/tmp/pause.pid")"; } 2> /dev/null
    rm -rf "$WORK" 2> /dev/null || unshare --user --map-root-user rm -rf "$WORK" 2> /dev/null
    [ -e "$WORK" ] || return
    # What podman has started may not have ended.
    sleep 0.2
  done
  echo "demo: $WORK is left" >&2
}
trap clean EXIT
trap 'exit 130' INT TERM
mkdir -p "$WORK"/{programs,settings,upper,work,merged}

# Two layers of this machine's own programs: enough for a shell.
PROGRAMS="bash ls cat mkdir rm mv cp chmod chown find id sed sort wc head ln touch sleep stat date seq"
layers() {
  local program file root=$WORK/programs
  mkdir -p "$root"/{usr/bin,usr/lib,lib64,proc,dev,tmp,root}
  ln -s usr/bin "$root/bin"; [ -d /lib ] && ln -s usr/lib "$root/lib"
  for program in $PROGRAMS $(command -v python3 > /dev/null && [ -d /usr/lib/python3 ] && echo python3); do
    file=$(readlink -f "$(command -v "$program")") || continue
    cp "$file" "$root/usr/bin/$program"
    ldd "$file" 2> /dev/null | grep -o '/[^ )]*' | while read -r library; do
      mkdir -p "$root$(dirname "$library")"; [ -e "$root$library" ] || cp -L "$library" "$root$library"
    done
  done
  ln -s bash "$root/usr/bin/sh"
  if [ -e "$root/usr/bin/python3" ]; then
    local lib; lib=$(python3 -c 'import os; print(os.path.dirname(os.__file__))')
    mkdir -p "$root$lib"; cp -rL "$lib"/{encodings,collections,re,json,*.py} "$root$lib/" 2> /dev/null
  fi
  mkdir -p "$WORK/settings/etc" "$WORK/settings/root"
  echo 'root:x:0:0:root:/root:/bin/bash' > "$WORK/settings/etc/passwd"
  echo 'a line of the lower layer' > "$WORK/settings/root/notes"
  say "programs: $(find "$root" -type f | wc -l) files, $(du -sh "$root" | cut -f1); settings: $(find "$WORK/settings" -type f | wc -l) files"
}
step "3. Two layers, from programs of this machine" layers

INSIDE='set -e
echo "I am uid $(id -u) in here; $(find / -xdev | wc -l) names in the tree"
echo "a line of the container" >> /root/notes; cat /root/notes
rm /usr/bin/touch; ln -s cat /usr/bin/kitten
mv /usr/bin /usr/programs; /usr/programs/ln -s programs /usr/bin
mkdir /srv; for n in $(seq 100); do echo $n > /srv/$n; done; chmod 600 /srv/1
[ ! -e /usr/bin/python3 ] || python3 -c "print(\"python says\", sum(range(101)))" 2> /dev/null || true
echo "a directory of a lower layer was renamed, a program removed, 100 files made"'
# $1 vellum, $2 work, $3 script
NAMESPACE='set -e
cd "$2"
echo "\$ vellum -o lowerdir=settings:programs,upperdir=upper,workdir=work merged"
"$1" -o "lowerdir=settings:programs,upperdir=upper,workdir=work" merged
trap "umount merged 2> /dev/null || umount -l merged" EXIT
grep " $2/merged " /proc/self/mounts
mount -t proc proc merged/proc 2> /dev/null || true
mount --rbind /dev merged/dev 2> /dev/null || true
env -i PATH=/usr/bin:/bin HOME=/root PYTHONDONTWRITEBYTECODE=1 "$(PATH=$PATH:/usr/sbin:/sbin command -v chroot)" merged /bin/bash -c "$3"
umount merged/proc 2> /dev/null || true
umount -l merged/dev 2> /dev/null || true
umount merged; trap - EXIT'
rootless() {
  unshare --user --map-root-user --mount --pid --fork --kill-child bash -c "$NAMESPACE" bash "$VELLUM" "$WORK" "$INSIDE" 2>&1 | show
  return "${PIPESTATUS[0]}"
}
step "4. Mount in a user namespace, and programs with the mount as their root" rootless

upper() {
  say "$(find "$WORK/upper" -type f | wc -l) files, $(find "$WORK/upper" -type c | wc -l) device whiteouts, $(du -sh "$WORK/upper" | cut -f1), all owned by $(find "$WORK/upper" -printf '%u\n' | sort -u | tr '\n' ' ')"
  (cd "$WORK/upper" && find . -maxdepth 2 -printf '%M %9s  %P\n' | sort -k3 | head -n 12) | show
  getfattr -d -m - "$WORK/upper/usr/programs" "$WORK/upper/root/notes" --absolute-names 2> /dev/null | grep -v '^$' | head -n 8 | show
  say "the lower layers are as they were: $(cat "$WORK/settings/root/notes")"
}
step "5. What the upper layer now holds" upper

# Options for a runtime that can run containers here. crun refuses a version 2 of control groups with controllers beside version 1; runc
# cannot do without control groups, which ordinary users have in version 2 by delegation only.
runtime_options() {
  if [ -n "$(cat /sys/fs/cgroup/unified/cgroup.controllers 2> /dev/null)" ]; then
    PATH=$PATH:/usr/sbin:/sbin command -v runc > /dev/null && echo "--runtime=runc"
  elif command -v crun > /dev/null; then echo "--runtime=crun --cgroups=disabled"
  else PATH=$PATH:/usr/sbin:/sbin command -v runc > /dev/null && echo "--runtime=runc"
  fi
}
podman_too() {
  local reason= options
  command -v podman > /dev/null || reason="podman is missing (as root: apt-get install podman uidmap)"
  [ -n "$reason" ] || command -v newuidmap > /dev/null || reason="newuidmap is missing (as root: apt-get install uidmap)"
  [ -n "$reason" ] || grep -q "^$(id -un):" /etc/subuid 2> /dev/null || reason="no subordinate ids (as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $(id -un))"
  options=$(runtime_options) || [ -n "$reason" ] || reason="no OCI runtime that works with the control groups of this machine (as root: apt-get install runc)"
  if [ -n "$reason" ]; then say "not shown: $reason"; return; fi
  mkdir -p "$WORK/podman/home"
  printf '%s\n' '[storage]' 'driver = "overlay"' "graphroot = \"$WORK/podman/root\"" "runroot = \"$WORK/podman/run\"" \
    '[storage.options.overlay]' "mount_program = \"$VELLUM\"" > "$WORK/podman/storage.conf"
  # What podman notes in a home directory is nothing of the user's own.
  unset XDG_DATA_HOME XDG_CONFIG_HOME XDG_CACHE_HOME
  export HOME=$WORK/podman/home XDG_RUNTIME_DIR=$WORK/podman
  export CONTAINERS_STORAGE_CONF=$WORK/podman/storage.conf PODMAN_IGNORE_CGROUPSV1_WARNING=1
  tar -C "$WORK/programs" -cf - . | podman import -q - shell > /dev/null || return
  # shellcheck disable=SC2086
  podman run --rm --network=none $options --ulimit=host shell /bin/bash -c 'echo "a container of $(id -u) on Vellum"; rm /usr/bin/touch; ls /usr/bin | wc -l' 2>&1 | show
  [ "${PIPESTATUS[0]}" = 0 ] || return 1
}
step "6. The same under rootless podman" podman_too
left() { say "mounts of Vellum left: $(grep -c "$WORK" /proc/self/mounts)"; ! grep -q "$WORK" /proc/self/mounts; }
step "7. What is left" left
summary
