#!/bin/bash
# podman refuses a layer that has one name twice, as "tar -r" leaves it.
#
# Guess: an archive to which a newer version of a file was appended (tar -r, tar -u) is a valid one; the last entry counts, as POSIX and every
#   tar have it. The specification of OCI layers excludes it nowhere, and umoci unpacks such a layer.
# What happens: podman (containers/storage) unpacks the layer and then refuses the image with "duplicates of file paths not supported": it
#   keeps a list of the archive's headers, so as to be able to make the same archive again, and that list takes each name once. Even
#   two entries of one directory are too many.
# Seen with: podman 4.3.1 and umoci 0.4.7 of Debian 12, podman 5.4.2 of Debian 13.
# Needs: root, podman, umoci (apt-get install podman umoci).
set -euo pipefail
for tool in podman umoci tar sha256sum; do command -v $tool > /dev/null || { echo "$tool is missing" >&2; exit 77; }; done
[ "$(id -u)" = 0 ] || { echo "run it as root" >&2; exit 77; }
top=$(mktemp -d /var/tmp/finding.XXXXXX)
trap 'rm -rf "$top"' EXIT
cd "$top"
podman --version; umoci --version; tar --version | head -n1

echo old > file; tar -cf layer.tar file; echo new > file; tar -rf layer.tar file
echo "the layer: $(tar -tf layer.tar | tr '\n' ' ')"

mkdir -p image/blobs/sha256
digest() { sha256sum "$1" | cut -d' ' -f1; }
descriptor() { # FILE KIND: puts it into the image
  cp "$1" image/blobs/sha256/"$(digest "$1")"
  printf '{"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%d' "$2" "$(digest "$1")" "$(stat -c %s "$1")"
}
layer=$(descriptor layer.tar layer.v1.tar)
printf '{"architecture":"%s","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
  "$(case $(uname -m) in x86_64) echo amd64 ;; aarch64) echo arm64 ;; *) uname -m ;; esac)" "$(digest layer.tar)" > config
printf '{"schemaVersion":2,"config":%s},"layers":[%s}]}' "$(descriptor config config.v1+json)" "$layer" > manifest
printf '{"schemaVersion":2,"manifests":[%s,"annotations":{"org.opencontainers.image.ref.name":"v1"}}]}' \
  "$(descriptor manifest manifest.v1+json)" > image/index.json
echo '{"imageLayoutVersion":"1.0.0"}' > image/oci-layout

umoci unpack --image image:v1 bundle > /dev/null 2>&1
echo "umoci:  $(cat bundle/rootfs/file)"
said=$(podman --root "$top/storage" --runroot "$top/run" --storage-driver vfs pull -q oci:image:v1 2>&1) && status=0 || status=$?
echo "podman: exit status $status, $(tail -n1 <<< "$said")"
[ "$(cat bundle/rootfs/file)" = new ] || { echo "umoci behaves otherwise here"; exit 1; }
[ $status != 0 ] && grep -q "duplicates of file paths" <<< "$said" || { echo "podman behaves otherwise here"; exit 1; }
echo "as stated"
