#!/bin/bash
# podman as an ordinary user, who exists in this mount namespace only; see lib.sh for the arguments.
# To be run in a mount namespace of its own, as user.sh says.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$1 program=$2 profile=${3-}
. "$here/user.sh"
# crun refuses a v2 cgroup mount beside v1 ones. This mount namespace is ours.
umount /sys/fs/cgroup/unified 2> /dev/null || true
mkdir -p "$dir/home/work"; chown -R 4711:4711 "$dir/home"
[ -z "${VELLUM_TEST_RESULTS-}" ] || { touch "$dir/home/results"; chown 4711:4711 "$dir/home/results"; }
rc=0
ROOTLESS=1 HOME=$dir/home USER=vellum-user VELLUM_TEST_RESULTS=${VELLUM_TEST_RESULTS:+$dir/home/results} \
  env -u XDG_CACHE_HOME -u XDG_CONFIG_HOME -u XDG_DATA_HOME -u XDG_RUNTIME_DIR \
  setpriv --reuid=4711 --regid=4711 --init-groups "$here/podman.sh" "$dir/home/work" "$program" "$profile" || rc=$?
[ -z "${VELLUM_TEST_RESULTS-}" ] || cat "$dir/home/results" >> "$VELLUM_TEST_RESULTS"
exit $rc
