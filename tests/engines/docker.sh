#!/bin/bash
# Docker's fuse-overlayfs driver, with the mount program under that name in PATH; see lib.sh for the arguments.
. "$(dirname "$0")/lib.sh"
cd "$DIR" || exit 1
for need in dockerd containerd runc /usr/bin/docker; do
  command -v "$need" > /dev/null || { echo "SKIPPED: $need is missing (package docker.io)"; exit 77; }
done
mkdir -p bin data exec
ln -s "$PROGRAM" bin/fuse-overlayfs
if [ -n "$PROFILE" ]; then
  # The driver has no option for it.
  rm bin/fuse-overlayfs
  cat > bin/fuse-overlayfs <<W
#!/bin/bash
if [ "\${1-}" = -o ]; then shift; options=\$1; shift; exec "$PROGRAM" -o "\$options,profile=$PROFILE" "\$@"; fi
exec "$PROGRAM" "\$@"
W
  chmod +x bin/fuse-overlayfs
fi
SOCKET=$DIR/docker.sock
docker() { DOCKER_BUILDKIT=0 DOCKER_CONFIG=$DIR/config /usr/bin/docker -H "unix://$SOCKET" "$@"; }
PATH=$DIR/bin:$PATH dockerd --data-root "$DIR/data" --exec-root "$DIR/exec" -p "$DIR/pid" -H "unix://$SOCKET" -s fuse-overlayfs \
  --iptables=false --ip6tables=false --bridge=none --ip-forward=false --ip-masq=false > dockerd.log 2>&1 &
DAEMON=$!
finish() {
  docker ps -aq 2> /dev/null | xargs -r /usr/bin/docker -H "unix://$SOCKET" rm -f > /dev/null 2>&1
  kill $DAEMON 2> /dev/null; wait $DAEMON 2> /dev/null
}
trap finish EXIT
answers() { docker info > /dev/null 2>&1 || ! kill -0 $DAEMON 2> /dev/null; }
eventually answers
docker info > /dev/null 2>&1 || { tail -n 20 dockerd.log; echo "SKIPPED: dockerd does not start here: $(grep -m1 'failed to start' dockerd.log)"; exit 77; }

driver() { same "storage driver" fuse-overlayfs "$(docker info --format '{{.Driver}}')"; docker version; }
import() { make_root tree; tar -C tree --xattrs --xattrs-include='*' -cf image.tar .; docker import image.tar base; }
run_echo() { same "what a container says" "hello from the image" "$(docker run --rm --network=none base sh -c 'echo hello $(cat /etc/config)')"; }
change() {
  docker run -d --network=none --name changed base sh -c "$CHANGES; touch /tmp/done; sleep 600"
  eventually docker exec changed test -e /tmp/done || { docker logs changed; echo "the changes were not made"; return 1; }
}
diff_some() {
  docker diff changed | sort > diff
  local line
  for line in 'C /etc/config' 'D /var/lib/many/1' 'A /new/dir/file' 'A /usr/lib/moved' 'D /usr/lib/deep' 'A /home/user/file' 'C /etc/passwd'; do
    grep -qx "$line" diff || { cat diff; echo "docker diff lacks: $line"; return 1; }
  done
  ! grep -q '\.wh\.' diff || { grep '\.wh\.' diff; echo "docker diff shows whiteouts"; return 1; }
}
merged() { docker inspect -f '{{.GraphDriver.Data.MergedDir}}' "$1"; }
# Docker 20.10 itself writes /.dockerenv and into /etc when a container starts, and puts no user.* attributes into
# images, whatever the storage driver: these are left out.
tree_of() {
  listing "/proc/$(docker inspect -f '{{.State.Pid}}' "$1")/root" | grep -vE '^(# file|user\.|$)|^\.dockerenv |^etc d '
}
commit() {
  tree_of changed > seen
  docker commit changed committed
  docker run -d --network=none --name other committed sleep 600
  tree_of other > kept
  docker rm -f other
  grep -q 'new/dir/file f' seen || { echo "the listing of the container lacks its files"; return 1; }
  same "container against its commit" "$(cat seen)" "$(cat kept)"
}
build() {
  mkdir -p context; echo copied > context/copied
  printf '%s\n' 'FROM base' 'COPY copied /copied' 'RUN rm /var/lib/many/1 && echo built >> /etc/config' \
    'RUN mv /usr/lib/deep /usr/lib/built && rm -r /home/user' 'RUN mkdir /home/user && echo new > /home/user/file' > context/Dockerfile
  docker build --network=none -t built context
  same "what the image holds" "2 199 deep file copied" \
    "$(docker run --rm --network=none built sh -c 'echo $(cat /etc/config | wc -l) $(ls /var/lib/many | wc -l) $(cat /usr/lib/built/er/file) $(ls /home/user) $(cat /copied)')"
}
save() { docker save -o saved.tar built; docker rmi built; docker load -i saved.tar; same "text" new "$(docker run --rm --network=none built cat /home/user/file)"; }
export_tar() { docker export -o exported.tar changed; tar -tf exported.tar > names; grep -qx new/dir/file names && ! grep -qx usr/lib/deep/ names && ! grep -q '\.wh\.' names; }
remove() { docker rm -f changed; nothing_left "$DIR/data"; }
try driver driver
try import import
try run run_echo
try changes change
try diff diff_some
try commit commit
try export export_tar
try build build
try save-and-load save
try remove remove
exit $FAILED
