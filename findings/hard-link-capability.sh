#!/bin/bash
# A program with a file capability and a second name loses the capability when containerd unpacks GNU tar's archive of it as a layer.
#
# Guess: tar --xattrs keeps file capabilities, and container engines restore them from SCHILY.xattr.security.capability. A second name
#   (a hard link) changes nothing: it is the same file.
# What happens: GNU tar writes the attribute with the first name, and none with the entry of the second, as it is only a link. containerd's
#   unpacker, and the library that Docker's has become (moby/go-archive), make the link and then set owner and mode of it, too. The kernel
#   takes a file's capability away at any chown, also to the same owner, and it is not set again. So a "ping" with a link "ping4" cannot
#   ping. GNU tar itself keeps the capability. There is no message.
# Seen with: GNU tar 1.34 of Debian 12, containerd/v2 2.4.2, moby/go-archive 0.3.3 (fetched here, as Go modules).
# Needs: root, Go 1.25 or later, setcap and getcap (apt-get install libcap2-bin), a temporary folder on ext4, XFS, btrfs or tmpfs.
set -euo pipefail
for tool in go setcap getcap tar; do command -v $tool > /dev/null || { echo "$tool is missing" >&2; exit 77; }; done
[ "$(id -u)" = 0 ] || { echo "run it as root" >&2; exit 77; }
top=$(mktemp -d /var/tmp/finding.XXXXXX)
export GOPATH=$top/go GOCACHE=$top/cache GOFLAGS="-mod=mod -modcacherw" GOTOOLCHAIN=local
trap 'rm -rf "$top"' EXIT
cd "$top"
go version; tar --version | head -n1

mkdir probe; cd probe
go mod init probe 2> /dev/null
go get github.com/containerd/containerd/v2@v2.4.2 github.com/moby/go-archive@v0.3.3 > /dev/null 2>&1 ||
  { echo "the modules cannot be fetched here" >&2; exit 77; }
cat > main.go <<'GO'
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/pkg/archive"
	moby "github.com/moby/go-archive"
)

// main unpacks os.Args[2] into os.Args[3] as the engine os.Args[1] does.
func main() {
	layer, err := os.Open(os.Args[2])
	if err == nil && os.Args[1] == "containerd" {
		_, err = archive.Apply(context.Background(), os.Args[3], layer)
	} else if err == nil {
		_, err = moby.UnpackLayer(os.Args[3], layer, &moby.TarOptions{})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
GO
go build -o ../unpack . ; grep -E 'containerd/v2 |go-archive ' go.mod; cd ..

mkdir root; cp /bin/true root/ping; ln root/ping root/ping4; setcap cap_net_raw+ep root/ping
tar --xattrs --xattrs-include='*' -C root -cf layer.tar .
shown() { getcap "$1/ping" | grep -o 'cap_.*' || true; }
echo "packed:      $(shown root), names: $(stat -c %h root/ping)"
differs=0
for engine in "GNU tar" containerd moby; do
  mkdir "$engine"
  case $engine in
    GNU*) tar --xattrs --xattrs-include='*' -C "$engine" -xpf layer.tar; wanted=cap_net_raw=ep ;;
    *) ./unpack "$engine" layer.tar "$engine"; wanted= ;;
  esac
  is=$(shown "$engine"); printf '%-12s %s, names: %s\n' "$engine:" "${is:-no capability}" "$(stat -c %h "$engine/ping")"
  [ "$is" = "$wanted" ] || { echo "$engine behaves otherwise here"; differs=1; }
done
[ $differs = 0 ] || exit 1
echo "as stated"
