#!/bin/bash
# A read of 512 bytes, while another thread truncates the file before them.
#
# Guess: ftruncate(2) is a change of the size, under the inode's lock. So a read of one block within a page gives the old block, or nothing,
#   because it is beyond the end; a file that never had a zero in it shows none.
# What happens: on ext4, btrfs, tmpfs and overlayfs a buffered read takes no lock that the truncation takes. It has looked at the size
#   before, and copies from the page while the truncation fills the rest of that page with zeros. The read returns 512 bytes: the first half
#   old data, the second half zeros. On XFS the truncation waits for the read. (FUSE is like ext4.)
# How it is shown: the second half of the reader's buffer is a page that userfaultfd(2) holds back until the file has been truncated. Two
#   busy processors show the same without that, once in some millions of reads, because the reader is preempted in the copy.
# Seen with: Linux 6.18.
# Needs: root, gcc, mkfs.ext4, mkfs.xfs, mkfs.btrfs, loop devices, userfaultfd.
set -euo pipefail
for tool in gcc mkfs.ext4 mkfs.xfs mkfs.btrfs; do command -v $tool > /dev/null || { echo "$tool is missing" >&2; exit 77; }; done
[ "$(id -u)" = 0 ] || { echo "run it as root" >&2; exit 77; }
top=$(mktemp -d /var/tmp/finding.XXXXXX)
trap 'umount -q "$top"/fs/{overlay,ext4,xfs,btrfs,tmpfs} 2> /dev/null || true; rm -rf "$top"' EXIT
cd "$top"
cat > torn.c <<'C'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#define CHECK(x) do { if (!(x)) { perror(#x); exit(77); } } while (0)
enum { PAGE = 4096, BLOCK = 512, HALF = BLOCK / 2 };
static int file, shorter[2];
static char *page;

static void *read_block(void *none) {
    CHECK(pread(file, page - HALF, BLOCK, 2 * BLOCK) == BLOCK);
    return none;
}

static void *cut_before_it(void *none) {
    CHECK(ftruncate(file, BLOCK) == 0 && write(shorter[1], "", 1) == 1);
    return none;
}

static int all(char byte, const char *from) {
    for (int i = 0; i < HALF; i++) if (from[i] != byte) return 0;
    return 1;
}

int main(int argc, char **argv) {
    char data[4 * BLOCK];
    CHECK(argc == 2 && (file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0 && pipe(shorter) == 0);
    memset(data, 'a', sizeof data);
    CHECK(write(file, data, sizeof data) == sizeof data);
    char *buffer = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(buffer != MAP_FAILED);
    memset(buffer, 'x', PAGE);
    page = buffer + PAGE;
    int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    CHECK(faults >= 0);
    struct uffdio_api api = { .api = UFFD_API };
    struct uffdio_register held = { .range = { (unsigned long)page, PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
    CHECK(ioctl(faults, UFFDIO_API, &api) == 0 && ioctl(faults, UFFDIO_REGISTER, &held) == 0);
    pthread_t reader, cutter;
    struct uffd_msg fault;
    CHECK(pthread_create(&reader, 0, read_block, 0) == 0);
    CHECK(read(faults, &fault, sizeof fault) == sizeof fault);
    CHECK(pthread_create(&cutter, 0, cut_before_it, 0) == 0);
    int waits = poll(&(struct pollfd){ shorter[0], POLLIN, 0 }, 1, 3000) == 0;
    struct uffdio_zeropage go = { .range = held.range };
    CHECK(ioctl(faults, UFFDIO_ZEROPAGE, &go) == 0);
    pthread_join(reader, 0);
    pthread_join(cutter, 0);
    const char *half[2] = { page - HALF, page };
    for (int i = 0; i < 2; i++) printf("%s ", all('a', half[i]) ? "old" : all(0, half[i]) ? "zeros" : "mixed");
    printf("%s\n", waits ? "truncation waits" : "truncation is done");
    return 0;
}
C
gcc -O1 -pthread -o torn torn.c
uname -sr
mkdir -p fs/{ext4,xfs,btrfs,tmpfs,overlay}
for type in ext4 xfs btrfs; do
  truncate -s 400M $type.img
  mkfs.$type -q $type.img > /dev/null
  mount -o loop $type.img fs/$type || exit 77
done
mount -t tmpfs tmpfs fs/tmpfs
mkdir fs/ext4/{lower,upper,work}
mount -t overlay overlay -o lowerdir=fs/ext4/lower,upperdir=fs/ext4/upper,workdir=fs/ext4/work fs/overlay
for type in ext4 btrfs tmpfs overlay xfs; do
  seen=$(./torn fs/$type/file)
  echo "$type: $seen"
  expected="old zeros truncation is done"
  [ $type != xfs ] || expected="old old truncation waits"
  [ "$seen" = "$expected" ] || { echo "not as stated" >&2; exit 1; }
done
echo "as stated"
