// Threads read a tree of files of blocks that name themselves, while others cut, extend, rewrite and replace them, and move
// descriptors about: whatever is read is what pread(2) could have given.
#include "library.h"

static const char *dir;
static volatile int stop;
static unsigned long operations;
#define BLOCKS 200
#define RUN(x) ((void *(*)(void *))(x))

static const char *path(char *to, int file) { sprintf(to, "%s/f%d", dir, file); return to; }

static uint64_t next(uint64_t *state) { *state += 0x9e3779b97f4a7c15ULL; return mix(*state); }

// A block of a file whose size changes: whole, or zeros, or short.
static void look(int fd, int file, uint64_t number) {
    uint64_t block[BLOCK / 8];
    ssize_t got = pread(fd, block, BLOCK, (off_t)(number * BLOCK));
    ENSURE(got >= 0 && got % BLOCK == 0, "block %lu of file %d: %zd", (unsigned long)number, file, got);
    if (got == BLOCK) {
        int64_t is = file_of(block, number);
        ENSURE(is == file || is == 0, "block %lu of file %d is of %ld", (unsigned long)number, file, (long)is);
    }
    __atomic_fetch_add(&operations, 1, __ATOMIC_RELAXED);
}

static int changing;
static void *reader(uint64_t seed) {
    while (!stop) look(changing, 1, next(&seed) % BLOCKS);
    return 0;
}

// File 1 becomes shorter and longer. After a cut nothing beyond it is read by who has cut it.
static void *cutter(uint64_t seed) {
    char name[300]; int fd = open(path(name, 1), O_RDWR);
    uint64_t block[BLOCK / 8];
    while (!stop) {
        uint64_t blocks = next(&seed) % BLOCKS;
        if (next(&seed) % 5 == 0) { int cut = open(name, O_RDWR | O_TRUNC); close(cut); blocks = 0; }
        else ENSURE(ftruncate(fd, (off_t)(blocks * BLOCK)) == 0, "ftruncate");
        for (int i = 0; i < 8; i++) {
            ssize_t got = pread(fd, block, BLOCK, (off_t)((blocks + (next(&seed) & 3)) * BLOCK));
            ENSURE(got == 0, "%zd bytes are read beyond the end", got);
        }
        for (uint64_t n = blocks; n < BLOCKS; n++) { fill(block, 1, n); pwrite(fd, block, BLOCK, (off_t)(n * BLOCK)); }
        for (int i = 0; i < 200; i++) {
            uint64_t n = next(&seed) % BLOCKS;
            ENSURE(pread(fd, block, BLOCK, (off_t)(n * BLOCK)) == BLOCK && file_of(block, n) == 1, "what was just written");
        }
        if (next(&seed) % 4 == 0) fsync(fd);
    }
    return 0;
}

// Opens, moves and closes descriptors: what it reads is the file that it has just put there.
static void *mover(uint64_t seed) {
    char name[300]; int fd = -1, now = 0;
    while (!stop) {
        int file = 2 + (int)(next(&seed) % 4), fresh = open(path(name, file), O_RDWR);
        ENSURE(fresh >= 0, "%s", name);
        if (fd >= 0 && next(&seed) % 2) { ENSURE(dup2(fresh, fd) == fd, "dup2"); close(fresh); }
        else { if (fd >= 0) close(fd); fd = fresh; }
        now = file;
        uint64_t block[BLOCK / 8];
        for (int i = 0; i < 30; i++) {
            uint64_t n = next(&seed) % BLOCKS;
            ssize_t got = pread(fd, block, BLOCK, (off_t)(n * BLOCK));
            ENSURE(got == BLOCK && file_of(block, n) == now, "file %d reads as %ld", now, (long)file_of(block, n));
            __atomic_fetch_add(&operations, 1, __ATOMIC_RELAXED);
        }
    }
    return 0;
}

// One number that threads fight over: it is one of the files, or none.
static int contested;
static void *contender(uint64_t seed) {
    char name[300]; uint64_t block[BLOCK / 8];
    while (!stop) {
        if (next(&seed) % 20 == 0) { int fresh = open(path(name, 2 + (int)(next(&seed) % 4)), O_RDONLY); dup2(fresh, contested); close(fresh); }
        uint64_t n = next(&seed) % BLOCKS;
        ssize_t got = pread(contested, block, BLOCK, (off_t)(n * BLOCK));
        int64_t is = file_of(block, n);
        ENSURE(got == BLOCK && is >= 2 && is <= 5, "%zd bytes, of file %ld", got, (long)is);
    }
    return 0;
}

// Rewrites blocks as they are: the first one copies the file up.
static void *writer(uint64_t seed) {
    char name[300]; uint64_t block[BLOCK / 8];
    while (!stop) {
        int file = 2 + (int)(next(&seed) % 4), fd = open(path(name, file), O_RDWR);
        ENSURE(fd >= 0, "%s", name);
        uint64_t n = next(&seed) % BLOCKS; fill(block, (uint64_t)file, n);
        ENSURE(pwrite(fd, block, BLOCK, (off_t)(n * BLOCK)) == BLOCK, "pwrite");
        look(fd, file, n);
        close(fd); usleep(2000);
    }
    return 0;
}

int main(int argc, char **argv) {
    ENSURE(argc == 3, "DIRECTORY SECONDS");
    dir = argv[1];
    char name[300];
    changing = open(path(name, 1), O_RDONLY);
    contested = open(path(name, 2), O_RDONLY);
    ENSURE(changing >= 0 && contested >= 0, "%s", name);
    // Numbers that only this program's threads use.
    contested = dup2(contested, 900);
    pthread_t threads[9]; int n = 0;
    for (uintptr_t i = 0; i < 3; i++) pthread_create(&threads[n++], 0, RUN(reader), (void *)(i + 1));
    pthread_create(&threads[n++], 0, RUN(cutter), (void *)11);
    for (uintptr_t i = 0; i < 2; i++) pthread_create(&threads[n++], 0, RUN(mover), (void *)(i + 21));
    for (uintptr_t i = 0; i < 2; i++) pthread_create(&threads[n++], 0, RUN(contender), (void *)(i + 31));
    pthread_create(&threads[n++], 0, RUN(writer), (void *)41);
    sleep((unsigned)atoi(argv[2]));
    stop = 1;
    while (n) pthread_join(threads[--n], 0);
    printf("%lu\n", operations);
    return 0;
}
