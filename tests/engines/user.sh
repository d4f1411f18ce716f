# An ordinary user, vellum-user, with subordinate ids, who exists in this mount namespace only: it binds changed copies over /etc/passwd
# and its like. Sourced with the variable dir, a directory for those copies.
command -v newuidmap > /dev/null || { echo "newuidmap is missing (package uidmap)"; echo "SKIPPED: newuidmap is missing"; exit 77; }
[ -u "$(command -v newuidmap)" ] || getcap "$(command -v newuidmap)" | grep -q setuid || { echo "SKIPPED: newuidmap has no privilege"; exit 77; }
mkdir -p "$dir/etc"
add() { cp "/etc/$1" "$dir/etc/$1" 2>/dev/null || : > "$dir/etc/$1"; echo "$2" >> "$dir/etc/$1"; [ -e "/etc/$1" ] || : > "/etc/$1"; mount --bind "$dir/etc/$1" "/etc/$1"; }
add passwd "vellum-user:x:4711:4711::$dir/home:/bin/bash"
add group "vellum-user:x:4711:"
add subuid vellum-user:200000:65536
add subgid vellum-user:200000:65536
# Without udev, /dev/fuse is root's.
mknod "$dir/fuse" c 10 229; chmod 666 "$dir/fuse"; mount --bind "$dir/fuse" /dev/fuse
