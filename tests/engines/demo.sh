#!/bin/bash
# The demo as an ordinary user, as the machine is; arguments: DIR PROGRAM. To be run in a mount namespace of its own, as user.sh says.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$1 program=$2
. "$here/user.sh"
mkdir -p "$dir/home/tmp" "$dir/home/scripts"; cp "$here"/../../scripts/demo* "$dir/home/scripts"
cp "$program" "$dir/vellum"; chmod 755 "$dir/vellum"; chown -R 4711:4711 "$dir/home"
out=$(cd "$dir/home" && env -i PATH="$PATH" HOME="$dir/home" USER=vellum-user TMPDIR="$dir/home/tmp" VELLUM="$dir/vellum" \
  setpriv --reuid=4711 --regid=4711 --init-groups bash scripts/demo 2>&1) || { echo "$out"; echo "the demo ended with $?"; exit 1; }
echo "$out"
for line in "a container of 0 on Vellum" "mounts of Vellum left: 0" "everything"; do
  grep -qF "$line" <<< "$out" || { echo "the demo did not say: $line"; exit 1; }
done
left=$(find "$dir/home" -mindepth 1 -not -path "$dir/home/scripts*" -not -path "$dir/home/tmp")
[ -z "$left" ] || { echo "left behind: $left"; exit 1; }
# Podman's helpers end a moment after it.
for n in $(seq 600); do pgrep -u 4711 podman > /dev/null || break; sleep 0.1; done
! pgrep -u 4711 -a podman || { echo "a process of podman is left"; exit 1; }
