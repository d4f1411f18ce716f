"""Acts on a tree through an idmapped mount of it, and prints what comes out, below and through the mount.

Arguments: the tree, a directory to mount on. In the tree, ids begin at 0; through the mount, at 100000.
"""

import ctypes
import os
import subprocess
import sys

tree, at = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)


def call(number, *args):
    result = libc.syscall(number, *args)
    if result < 0:
        sys.exit(f"system call {number}: {os.strerror(ctypes.get_errno())}")
    return result


def idmapped():
    holder = subprocess.Popen(["unshare", "--user", "sh", "-c", "echo; read x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    holder.stdout.readline()
    for which in "uid", "gid":
        with open(f"/proc/{holder.pid}/{which}_map", "w") as ids:
            ids.write("0 100000 65536")
    namespace = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY)
    clone = call(428, -100, tree.encode(), 1)
    attributes = (ctypes.c_uint64 * 4)(0x100000, 0, 0, namespace)
    call(442, clone, b"", 0x1000, attributes, 32)
    call(429, clone, b"", -100, at.encode(), 4)
    os.close(clone)
    return holder


def run(who, line):
    """Runs a line as `who`: user and group, or root of the namespace; prints how it ended."""
    if who == "inside":
        words = ["nsenter", f"--user=/proc/{holder.pid}/ns/user", "-S", "0", "-G", "0"]
    elif who == "root":
        words = []
    else:
        user, group, *others = who.split(":")
        groups = ["--groups=" + others[0]] if others else ["--clear-groups"]
        words = ["setpriv", "--reuid=" + user, "--regid=" + group] + groups
    done = subprocess.run(words + ["bash", "-c", "umask 022; " + line], cwd=at, capture_output=True, text=True)
    # The last part of a message is the errno's.
    said = done.stderr.strip().splitlines()
    print(f"{who}: {line}: {done.returncode} {said[-1].split(': ')[-1] if said else ''} {done.stdout.strip()}")


holder = idmapped()
run("root", "touch by-root")
run("100000:100000", "touch a; mkdir d; mkfifo p; ln -s a l; mkdir -m 1777 open; mkdir -m 777 all")
run("100005:100006", "touch denied")
run("100005:100006", "touch all/mine; echo x >> lower/of-user; cat lower/secret")
run("101000:101000", "cat lower/secret; echo more >> lower/of-user; chmod 600 lower/of-user; touch -d @77 lower/of-user")
run("100005:100006", "rm -f open/none; mkdir all/deep; ln all/mine all/deep/link; mv all/deep all/moved")
run("root", "chown 100007:100008 a; chown 100007 lower/of-root; chown -h 100003:100003 l; chown 7 a")
run("root", "stat -c '%u:%g %a' a lower/of-root l lower/outside; chown 100001 lower/outside")
run("inside", "touch within; chown 5:6 within; chown 1000:1000 all; mkdir -m 2775 team; chgrp 50 team; chmod g+s team; chmod 4755 within")
run("inside", "stat -c '%u:%g %a' within all team lower/outside; chmod 600 lower/outside; rm -f lower/outside")
run("100005:100006:100050", "mkdir team/d; touch team/f; install -m 2755 /dev/null team/p")
run("100005:100006", "touch team/none")
run("inside", "chmod o+w team")
run("100005:100006", "python3 -c 'import os; os.close(os.open(\"team/strip\", os.O_CREAT|os.O_WRONLY, 0o2755))'; mkdir team/e")
run("inside", "touch set; chmod 6777 set")
run("100005:100006", "echo x >> set")
run("inside", "touch keep; chmod 4777 keep; echo x >> keep")
run("inside", "setfacl -m u:9:rw,g:10:r lower/of-root; setfacl -d -m u:11:rwx,g:12:rx all; getfacl -cpn lower/of-root all")
run("100009:100009", "echo acl >> lower/of-root; head -c 3 lower/of-root")
run("100005:100006", "mkdir all/acl; touch all/acl/f; getfacl -cpn all/acl/f")
run("100011:100011", "touch all/acl/by-acl")
run("100005:100006", "setfattr -n user.x -v 1 all/mine; getfattr --only-values -n user.x all/mine")
run("inside", "setfattr -n trusted.x -v 1 all/mine")
run("100005:100006", "python3 -c 'import os; f = os.open(\"all\", os.O_TMPFILE | os.O_RDWR, 0o640); os.write(f, b\"t\"); os.link(f\"/proc/self/fd/{f}\", \"all/tmp\", src_dir_fd=os.open(\"/\", 0))'")
run("inside", "truncate -s 3 lower/of-user; fallocate -l 9 lower/of-user; touch -d @5 lower; mknod dev c 1 3; mknod pipe p")
run("root", "setcap cap_net_raw+ep within 2>/dev/null; getcap -n within")

for root in tree, at:
    print(root == at and "through the mount" or "below")
    for path, dirs, files in os.walk(root):
        dirs.sort()
        for name in sorted(dirs + files):
            found = os.path.join(path, name)
            seen = os.lstat(found)
            acls = [f"{a}={os.getxattr(found, a, follow_symlinks=False).hex()}" for a in sorted(os.listxattr(found, follow_symlinks=False)) if a.startswith("system.")]
            size = seen.st_size if not os.path.isdir(found) else 0
            print(os.path.relpath(found, root), oct(seen.st_mode), seen.st_uid, seen.st_gid, size, *acls)
holder.communicate(b"end")
subprocess.run(["umount", at], check=True)
