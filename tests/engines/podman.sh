#!/bin/bash
# podman and its store on a mount program; see lib.sh for the arguments. Works for root and, with ROOTLESS=1, for an
# ordinary user.
. "$(dirname "$0")/lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
cd "$DIR" || exit 1
. "$here/podman-setup.sh"
trap 'podman rm -fa -t0 > /dev/null 2>&1; podman unshare true > /dev/null 2>&1' EXIT

run() { podman run --network=none "${ARGS[@]}" "$@"; }
# In the user namespace of the store, where there is one.
inside() { if [ -n "${ROOTLESS-}" ]; then podman unshare bash -c "$(declare -f listing); $1"; else bash -c "$(declare -f listing); $1"; fi; }

import() {
  if [ -n "${ROOTLESS-}" ]; then podman unshare bash -c "$(declare -f make_root); make_root tree; tar -C tree --xattrs --xattrs-include='*' -cf image.tar ."
  else make_root tree; tar -C tree --xattrs --xattrs-include='*' -cf image.tar .; fi
  podman import image.tar base
  podman info --format '{{.Store.GraphOptions}}' | grep -F "$PROGRAM"
}
run_echo() { same "what a container says" "hello from the image" "$(run --rm base sh -c 'echo hello $(cat /etc/config)')"; }
run_as_user() { same "owner in the container" "1000 1000" "$(run --rm --user 1000:1000 base sh -c 'touch /tmp/x; stat -c "%u %g" /tmp/x')"; }
exec_into() {
  run -d --name sleeper base sleep 600
  podman exec sleeper sh -c 'echo written > /root/file'
  same "what exec reads" written "$(podman exec sleeper cat /root/file)"
  podman restart -t0 sleeper
  same "what exec reads after a restart" written "$(podman exec sleeper cat /root/file)"
  podman rm -f -t0 sleeper
}
change() { run -d --name changed base sh -c "$CHANGES; touch /tmp/done; sleep 600"
  eventually podman exec changed test -e /tmp/done || { podman logs changed; echo "the changes were not made"; return 1; }; }
diff_all() {
  local expected='A /home/user/file
A /new
A /new/dir
A /new/dir/file
A /new/empty
A /new/fifo
A /new/linked
A /new/setuid
A /new/sparse
A /new/symlink
A /tmp/done
A /usr/lib/moved
A /usr/lib/moved/er
A /usr/lib/moved/er/file
A /var/lib/three
C /etc
C /etc/config
C /etc/config-linked
C /etc/passwd
C /home
C /home/user
C /tmp
C /usr
C /usr/lib
C /var
C /var/lib
C /var/lib/many
D /usr/lib/deep
D /var/lib/many/1
D /var/lib/many/2
D /var/lib/many/3'
  same "podman diff" "$expected" "$(podman diff changed | grep -vE ' /(dev|proc|sys|run)?(/.*)?$' | sort)"
}
# The committed image shows what the running container saw.
commit() {
  inside 'listing "$(podman mount changed)"' > seen
  podman commit changed committed
  run -d --name other committed sleep 600
  inside 'listing "$(podman mount other)"' > kept
  podman rm -f -t0 other
  grep -q 'new/dir/file f' seen && grep -q 'user.from' seen || { echo "the listing of the container lacks something"; return 1; }
  same "container against its commit" "$(cat seen)" "$(cat kept)"
}
export_tar() {
  podman export -o exported.tar changed
  inside 'rm -rf exported; mkdir exported; tar -C exported -xpf exported.tar; listing exported' | grep -vE '^(# file|user\.|security\.|$)' > kept
  grep -vE '^(# file|user\.|security\.|$)' seen > without
  same "container against its export" "$(cat without)" "$(cat kept)"
  inside 'rm -rf exported'
}
save_load() {
  podman save --format oci-archive -o saved.tar committed
  podman rmi -f committed
  podman load -i saved.tar
  run -d --name loaded committed sleep 600 || run -d --name loaded localhost/committed sleep 600
  inside 'listing "$(podman mount loaded)"' > kept
  podman rm -f -t0 loaded
  same "container against the image saved and loaded" "$(cat seen)" "$(cat kept)"
}
build() {
  local n
  mkdir -p context; echo copied > context/copied
  { echo FROM base; echo COPY copied /copied
    for n in $(seq 42); do echo "RUN echo $n > /layer-$n && echo $n >> /etc/config && rm /var/lib/many/$((n + 10))"; done
    echo RUN mv /usr/lib/deep /usr/lib/built; } > context/Containerfile
  podman build --layers "${BUILD[@]}" -t built context > build.log 2>&1 || { tail -n 20 build.log; return 1; }
  same "layers" 45 "$(podman image inspect -f '{{len .RootFS.Layers}}' built)"
  same "what the image holds" "43 42 158 deep" "$(run --rm built sh -c 'echo $(cat /etc/config | wc -l) $(ls -d /layer-* | wc -l) $(ls /var/lib/many | wc -l) $(cat /usr/lib/built/er/file)')"
}
# Unions that engines make beside containers' own: of volumes, of images, of a root filesystem.
volume_overlay() {
  mkdir -p volume/sub; echo below > volume/sub/file
  same "what the container sees" "below changed" "$(run --rm -v "$DIR/volume:/d:O" base sh -c 'a=$(cat /d/sub/file); echo changed > /d/sub/file; mv /d/sub /d/moved; echo $a $(cat /d/moved/file)')"
  same "the volume" "below" "$(cat volume/sub/file)"
  mkdir -p upper work
  run --rm -v "$DIR/volume:/d:O,upperdir=$DIR/upper,workdir=$DIR/work" base sh -c 'echo kept > /d/sub/file'
  same "a named upper" "kept below" "$(cat upper/sub/file volume/sub/file | xargs)"
}
image_mount() {
  same "the mounted image" "from the image refused" "$(run --rm --mount type=image,source=base,destination=/i base sh -c 'echo $(cat /i/etc/config) $(touch /i/x 2>/dev/null || echo refused)')"
  same "writable" "x" "$(run --rm --mount type=image,source=base,destination=/i,rw=true base sh -c 'echo x > /i/etc/config; cat /i/etc/config')"
}
rootfs_overlay() {
  local root=$DIR/rootfs
  inside "$(declare -f make_root); make_root $root"
  same "the container" "from the image changed" "$(run --rm --rootfs "$root:O" sh -c 'a=$(cat /etc/config); echo changed > /etc/config; echo $a $(cat /etc/config)')"
  same "the root filesystem" "from the image" "$(cat "$root/etc/config")"
}
build_overlay() {
  mkdir -p context-2 volume-2; echo below > volume-2/file
  printf 'FROM base\nRUN echo changed > /d/file && cat /d/file > /seen\n' > context-2/Containerfile
  podman build "${BUILD[@]}" -v "$DIR/volume-2:/d:O" -t with-volume context-2 > build-2.log 2>&1 || { tail -n 20 build-2.log; return 1; }
  same "what the build saw" "changed" "$(run --rm with-volume cat /seen)"
  same "the volume" "below" "$(cat volume-2/file)"
}
uidmap() {
  local maps=(--uidmap 0:100000:65536 --gidmap 0:100000:65536)
  [ -z "${ROOTLESS-}" ] || maps=(--uidmap 0:1:60000 --gidmap 0:1:60000)
  same "owners" "0:0 1000:1000 0 5:6" "$(run --rm "${maps[@]}" base sh -c 'touch /new; chown 5:6 /new; echo $(stat -c %u:%g /etc/config /home/user) $(id -u) $(stat -c %u:%g /new)')"
}
# A volume on a mount of Vellum, mounted once more with mapped ids. runc can do that from 1.2 on, and crun refuses control
# groups of both versions beside each other, so that it is shown those of version 2.
idmapped_volume() {
  [ -n "$PROFILE" ] || { echo "for volumes on Vellum"; return 77; }
  command -v crun > /dev/null || { echo "crun is missing"; return 77; }
  mkdir -p idmapped/{lower,upper,work,merged}; echo below > idmapped/lower/file; chown 1000:1000 idmapped/lower/file
  "$PROGRAM" -o "lowerdir=idmapped/lower,upperdir=idmapped/upper,workdir=idmapped/work,profile=$PROFILE" idmapped/merged
  local said=0
  unshare --mount bash -s "$DIR/idmapped" > idmapped/said 2>&1 <<'S' || said=$?
set -e
v2=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts)
if [ -n "$v2" ] && [ "$v2" != /sys/fs/cgroup ]; then
  mkdir "$1/v2"; mount --bind "$v2" "$1/v2"
  umount --lazy --recursive /sys/fs/cgroup; mount --bind "$1/v2" /sys/fs/cgroup
fi
podman --runtime crun run --rm --cgroups=disabled --network=none --uidmap 0:100000:65536 --gidmap 0:100000:65536 \
  -v "$1/merged:/d:idmap" base sh -c \
  'echo new > /d/new; chown 5:6 /d/new; echo more >> /d/file; cp /d/file /d/copy; echo $(stat -c %u:%g /d /d/file /d/new /d/copy) $(cat /d/file)'
S
  umount idmapped/merged
  [ $said = 0 ] || { cat idmapped/said; return $said; }
  same "what the container sees" "0:0 1000:1000 5:6 0:0 below more" "$(tail -n1 idmapped/said)"
  same "what the layer holds" "1000:1000 5:6 0:0" "$(cd idmapped/upper; stat -c %u:%g file new copy | xargs)"
}
keep_id() {
  same "owners" "$(id -u) 0:0 $(id -u)" "$(run --rm --userns=keep-id base sh -c 'touch /tmp/new; echo $(id -u) $(stat -c %u:%g /etc/config) $(stat -c %u /tmp/new)')"
}
# Containers of a tenant whose service is killed again and again notice nothing.
pool() {
  [ -n "$PROFILE" ] || { echo "only Vellum has pools"; return 77; }
  export VELLUM_POOLS=$DIR/pools VELLUM_LOG_TO=$DIR/service.log
  "$PROGRAM" pool create engine --storage "$DIR/root" || return 77
  local work='i=0; while [ $i -lt 600 ]; do mkdir /d$i && echo $i > /d$i/f && mv /d$i/f /d$i/g && test "$(cat /d$i/g)" = $i && rm -r /d$i || exit 7; i=$((i + 1)); done; echo all'
  local n service kills=0
  for n in 1 2 3; do run -d --name "busy$n" base sh -c "$work"; done
  while [ -n "$(podman ps -q --filter name=busy)" ] && [ $kills -lt 60 ]; do
    service=$("$PROGRAM" pool show engine | sed -n 's/^service *process \([0-9]*\),.*/\1/p')
    [ -z "$service" ] || { kill -9 "$service" && kills=$((kills + 1)); }
    sleep 0.05
  done
  echo "$kills services killed"
  for n in 1 2 3; do same "exit status of a container" 0 "$(podman wait "busy$n")"; same "its output" all "$(podman logs "busy$n")"; done
  [ $kills -gt 3 ] || { echo "only $kills services were killed"; return 1; }
  podman rm -fa -t0
  pool_goes engine || { cat "$DIR/service.log"; return 1; }
}
remove() {
  podman rm -fa -t0; podman rmi -fa
  nothing_left "$DIR/root"
}
try import import
try run run_echo
try run-as-user run_as_user
try exec-and-restart exec_into
try changes change
try diff diff_all
try commit commit
try export export_tar
try save-and-load save_load
try volume-overlay volume_overlay
try image-mount image_mount
try rootfs-overlay rootfs_overlay
try build-volume-overlay build_overlay
try uidmap uidmap
[ -z "${ROOTLESS-}" ] || try keep-id keep_id
[ -n "${ROOTLESS-}" ] || try idmapped-volume idmapped_volume
[ -n "${NO_BUILD-}" ] || try build-45-layers build
[ -n "${ROOTLESS-}" ] || try pool pool
try remove remove
exit $FAILED
