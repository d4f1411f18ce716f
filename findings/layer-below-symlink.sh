#!/bin/bash
# One image, one podman, two trees: what a layer's "lib/two" means where the layer below has "lib -> usr/lib".
#
# Guess: a layer is a change to the tree below it, so "lib/two" without an entry for "lib/" lands in usr/lib, as it would by tar.
# What happens: podman with its overlay driver unpacks each layer into a directory of its own, where "lib" becomes a new directory. It hides
#   the link: usr/lib/two does not exist, and lib/one, which a program may need, is gone. With the vfs driver the same podman
#   unpacks into a copy of the layer below, follows the link, and both files are in both places. umoci does that, too. (containerd 2.4.2 has
#   both ways, as well, by its snapshotter.) So whether a layer works that was made without "lib -> usr/lib" is up to the storage driver.
# Seen with: podman 4.3.1 and umoci 0.4.7 of Debian 12; the overlay driver's part with podman 5.4.2 of Debian 13, too.
# Needs: root, podman, umoci (apt-get install podman umoci).
set -euo pipefail
for tool in podman umoci tar sha256sum; do command -v $tool > /dev/null || { echo "$tool is missing" >&2; exit 77; }; done
[ "$(id -u)" = 0 ] || { echo "run it as root" >&2; exit 77; }
top=$(mktemp -d /var/tmp/finding.XXXXXX)
trap 'umount -q $top/*/overlay 2> /dev/null || true; rm -rf "$top"' EXIT
cd "$top"
podman --version; umoci --version; tar --version | head -n1

# The two layers.
mkdir -p below/usr/lib above/lib
echo 1 > below/usr/lib/one; ln -s usr/lib below/lib; echo 2 > above/lib/two
tar -C below -cf below.tar usr lib
tar -C above --no-recursion -cf above.tar lib/two

# An OCI image of them.
mkdir -p image/blobs/sha256
digest() { sha256sum "$1" | cut -d' ' -f1; }
descriptor() { # FILE KIND: puts it into the image
  cp "$1" image/blobs/sha256/"$(digest "$1")"
  printf '{"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%d' "$2" "$(digest "$1")" "$(stat -c %s "$1")"
}
layers="$(descriptor below.tar layer.v1.tar)},$(descriptor above.tar layer.v1.tar)}"
printf '{"architecture":"%s","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["sha256:%s","sha256:%s"]}}' \
  "$(case $(uname -m) in x86_64) echo amd64 ;; aarch64) echo arm64 ;; *) uname -m ;; esac)" "$(digest below.tar)" "$(digest above.tar)" > config
printf '{"schemaVersion":2,"config":%s},"layers":[%s]}' "$(descriptor config config.v1+json)" "$layers" > manifest
printf '{"schemaVersion":2,"manifests":[%s,"annotations":{"org.opencontainers.image.ref.name":"v1"}}]}' \
  "$(descriptor manifest manifest.v1+json)" > image/index.json
echo '{"imageLayoutVersion":"1.0.0"}' > image/oci-layout

tree() { (cd "$1"; find . -mindepth 1 -printf '%P%l %y\n' | sed 's/^lib\(usr.*\) l/lib -> \1 l/; s/ [dfl]$//' | sort | tr '\n' ' '); }
by_podman() { # DRIVER
  local p="podman --root $top/$1 --runroot $top/run-$1 --storage-driver $1" id
  id=$($p pull -q oci:image:v1); tree "$($p image mount "$id")"
  $p image umount "$id" > /dev/null; $p rmi -f "$id" > /dev/null
}
overlay=$(by_podman overlay); vfs=$(by_podman vfs)
umoci unpack --image image:v1 bundle > /dev/null 2>&1; umoci=$(tree bundle/rootfs)
printf '%-16s %s\n' "podman, overlay" "$overlay" "podman, vfs" "$vfs" umoci "$umoci"
[ "$overlay" = "lib lib/two usr usr/lib usr/lib/one " ] || { echo "podman's overlay driver behaves otherwise here"; exit 1; }
[ "$vfs" = "lib -> usr/lib usr usr/lib usr/lib/one usr/lib/two " ] || { echo "podman's vfs driver behaves otherwise here"; exit 1; }
[ "$umoci" = "$vfs" ] || { echo "umoci behaves otherwise here"; exit 1; }
echo "as stated"
