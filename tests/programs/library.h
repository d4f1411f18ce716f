// What the programs that test libvellum.so share: files of blocks that say which file and which block they are.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 512
#define ENSURE(x, ...) do { if (!(x)) { fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #x); \
    fprintf(stderr, __VA_ARGS__); fprintf(stderr, " (errno %d)\n", errno); _exit(1); } } while (0)
#define CHECK(x) ENSURE(x, "%s", strerror(errno))

static inline uint64_t mix(uint64_t x) {
    x ^= x >> 33; x *= 0xff51afd7ed558ccdULL; x ^= x >> 33; x *= 0xc4ceb9fe1a85ec53ULL; return x ^ x >> 33;
}

static inline void fill(uint64_t *block, uint64_t file, uint64_t number) {
    block[0] = file; block[1] = number;
    for (int i = 2; i < BLOCK / 8; i++) block[i] = mix(file * 1000003 + number * 64 + i);
}

// The file whose block it is; 0: all zeros; -1: neither.
static inline int64_t file_of(const uint64_t *block, uint64_t number) {
    uint64_t right[BLOCK / 8];
    if (block[0] == 0) {
        for (int i = 1; i < BLOCK / 8; i++) if (block[i]) return -1;
        return 0;
    }
    fill(right, block[0], number);
    return memcmp(right, block, BLOCK) ? -1 : (int64_t)block[0];
}

static inline void make(const char *path, uint64_t file, uint64_t blocks) {
    uint64_t block[BLOCK / 8];
    FILE *f = fopen(path, "w");
    ENSURE(f, "%s", path);
    for (uint64_t n = 0; n < blocks; n++) { fill(block, file, n); fwrite(block, BLOCK, 1, f); }
    ENSURE(fclose(f) == 0, "%s", path);
}

// Which file a descriptor reads, after enough reads that a mapping would have been made.
static inline int64_t reads(int fd) {
    uint64_t block[BLOCK / 8];
    int64_t file = -2;
    for (uint64_t n = 0; n < 12; n++) {
        ssize_t got = pread(fd, block, BLOCK, (off_t)(n * BLOCK));
        if (got < 0) return -errno - 1000;
        ENSURE(got == BLOCK, "a read of %zd bytes", got);
        int64_t now = file_of(block, n);
        ENSURE(file == -2 || now == file, "block %d is of file %ld, the last one of %ld", (int)n, (long)now, (long)file);
        file = now;
    }
    return file;
}
