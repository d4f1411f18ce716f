#!/bin/bash
# podman is switched from the kernel's overlayfs to the mount program and back, by the settings and commands of docs/src/start; see lib.sh for the
# arguments. As root.
. "$(dirname "$0")/lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
pages=$here/../../docs/src/start
cd "$DIR" || exit 1
. "$here/podman-setup.sh"
trap 'podman rm -fa -t0 > /dev/null 2>&1' EXIT

# The page's first block of settings, for a store in $DIR. Files stay unfinished when a mount has ended.
settings() {
  awk '/```toml/ { inside = 1; next } /```/ && inside { exit } inside' "$pages/podman.md" | sed -e 's/^ *//' -e "s|/usr/local/bin/vellum|$PROGRAM|" \
    -e "/^\[storage\]/a graphroot = \"$DIR/root\"\nrunroot = \"$DIR/run\"" > storage.conf
  echo 'mountopt = "fill_at_end=off"' >> storage.conf
  grep -qF "mount_program = \"$PROGRAM\"" storage.conf
}
root_of() { podman run --rm --network=none base sh -c 'grep " / " /proc/mounts' | cut -d' ' -f3; }

native() {
  printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "%s"\n' "$DIR/root" "$DIR/run" > storage.conf
  make_root tree; dd if=/dev/zero of=tree/usr/lib/large bs=1M count=4 status=none
  tar -C tree --xattrs --xattrs-include='*' -cf image.tar .
  podman import image.tar base
  local kind; kind=$(root_of)
  [ "$kind" = overlay ] || { echo "podman mounts $kind here, and not the kernel's overlayfs"; return 77; }
  podman run --network=none --name old base sh -c '[ -e /root/file ] || echo old > /root/file; cat /root/file'
  touch is-native
}
on() {
  settings
  podman info | grep -A1 mount_program | grep -F "$PROGRAM"
  same "kind of mount" fuse.vellum "$(root_of)"
  same "a container from before" old "$(podman start -a old)"
  podman run --network=none --name large base sh -c '[ -e /usr/lib/moved ] || { mv /usr/lib/deep /usr/lib/moved; printf x | dd of=/usr/lib/large conv=notrunc 2> /dev/null; }
    cat /usr/lib/moved/er/file; sha256sum /usr/lib/large' > large
  nothing_left "$DIR/root"
}
back() {
  local flatten remove
  flatten=$(sed -n 's/^ *# vellum \(flatten\) .var.lib.containers.storage$/\1/p' "$pages/back.md")
  remove=$(sed -n 's|^ *# rm /var/lib/containers/storage/||p' "$pages/back.md")
  same "what the page says" "flatten overlay/.has-mount-program" "$flatten $remove"
  "$PROGRAM" "$flatten" "$DIR/root" | tee said
  grep -q 'completed' said
  sed -i -e '/^mount_program/d' -e '/^mountopt/d' storage.conf
  rm "$DIR/root/$remove"
  same "kind of mount" overlay "$(root_of)"
  same "a container from before" old "$(podman start -a old)"
  same "a container that had changed a large file" "$(cat large)" "$(podman start -a large)"
}
remove() { podman rm -fa -t0; podman rmi -fa; nothing_left "$DIR/root"; }
try native native
[ -e is-native ] || exit $FAILED
try on on
try back back
try remove remove
exit $FAILED
