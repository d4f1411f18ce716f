// Threads read a tree of files of blocks that name themselves, while others cut, extend, rewrite and replace them, and move
// descriptors about: whatever is read is what pread(2) could have given.
#include "library.h"

static const char *dir;
static volatile int stop;
static unsigned long operations, torn;
#define BLOCKS 200
#define RUN(x) ((void *(*)(void *))(x))

static const char *path(char *to, int file) { sprintf(to, "%s/f%d", dir, file); return to; }

static uint64_t next(uint64_t *state) { *state += 0x9e3779b97f4a7c15ULL; return mix(*state); }

// File 1: its contents change with each round. Block n was last written, or is just being written, in round `rounds[n]`.
// `changes` is odd while the file is cut and rewritten.
static int changing;
static uint64_t rounds[BLOCKS], changes, first_round;
#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, to) __atomic_store_n(&(x), to, __ATOMIC_SEQ_CST)
static uint64_t name_in(uint64_t round) { return round << 8 | 1; }

// Whether each byte is zero, or what one of the rounds has written there.
static int is_mixed_of(const unsigned char *block, uint64_t number, uint64_t first, uint64_t last) {
    uint64_t right[BLOCK / 8];
    unsigned char fits[BLOCK];
    for (int i = 0; i < BLOCK; i++) fits[i] = block[i] == 0;
    for (uint64_t round = first; round <= last; round++) {
        fill(right, name_in(round), number);
        for (int i = 0; i < BLOCK; i++) fits[i] |= block[i] == ((unsigned char *)right)[i];
    }
    return !memchr(fits, 0, BLOCK);
}

// A read gives what was last written, unless the file is cut or rewritten meanwhile. Then it may have parts of several moments:
// the kernel copies from its page cache without a lock (findings/read-torn-by-truncate.sh).
static void *reader(uint64_t seed) {
    uint64_t block[BLOCK / 8];
    while (!stop) {
        uint64_t number = next(&seed) % BLOCKS, before = LOAD(changes), first = LOAD(rounds[number]);
        ssize_t got = pread(changing, block, BLOCK, (off_t)(number * BLOCK));
        uint64_t last = LOAD(rounds[number]), after = LOAD(changes);
        if (before == after && before % 2 == 0) {
            ENSURE(got == BLOCK && file_of(block, number) == (int64_t)name_in(first), "block %lu of round %lu: %zd bytes of %lx",
                (unsigned long)number, (unsigned long)first, got, (unsigned long)block[0]);
        } else {
            ENSURE(got == 0 || (got == BLOCK && is_mixed_of((unsigned char *)block, number, first, last)),
                "block %lu of rounds %lu to %lu: %zd bytes of %lx", (unsigned long)number, (unsigned long)first, (unsigned long)last, got,
                (unsigned long)block[0]);
            if (got == BLOCK && file_of(block, number) == -1) __atomic_fetch_add(&torn, 1, __ATOMIC_RELAXED);
        }
        __atomic_fetch_add(&operations, 1, __ATOMIC_RELAXED);
    }
    return 0;
}

// File 1 becomes shorter and longer. After a cut nothing beyond it is read by who has cut it.
static void *cutter(uint64_t seed) {
    char name[300]; int fd = open(path(name, 1), O_RDWR);
    uint64_t block[BLOCK / 8];
    for (uint64_t round = first_round; !stop; round++) {
        uint64_t blocks = next(&seed) % BLOCKS;
        STORE(changes, changes + 1);
        if (next(&seed) % 5 == 0) {
            int cut = open(name, O_RDWR | O_TRUNC);
            ENSURE(cut >= 0, "%s", name);
            close(cut); blocks = 0;
        } else ENSURE(ftruncate(fd, (off_t)(blocks * BLOCK)) == 0, "ftruncate");
        for (int i = 0; i < 8; i++) {
            ssize_t got = pread(fd, block, BLOCK, (off_t)((blocks + (next(&seed) & 3)) * BLOCK));
            ENSURE(got == 0, "%zd bytes are read beyond the end", got);
        }
        for (uint64_t n = blocks; n < BLOCKS; n++) {
            fill(block, name_in(round), n);
            STORE(rounds[n], round);
            ENSURE(pwrite(fd, block, BLOCK, (off_t)(n * BLOCK)) == BLOCK, "pwrite");
        }
        STORE(changes, changes + 1);
        for (int i = 0; i < 200; i++) {
            uint64_t n = next(&seed) % BLOCKS;
            ENSURE(pread(fd, block, BLOCK, (off_t)(n * BLOCK)) == BLOCK && file_of(block, n) == (int64_t)name_in(rounds[n]),
                "what was just written");
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
        ENSURE(pread(fd, block, BLOCK, (off_t)(n * BLOCK)) == BLOCK && file_of(block, n) == file, "what was there before");
        close(fd); usleep(2000);
    }
    return 0;
}

int main(int argc, char **argv) {
    ENSURE(argc == 3, "DIRECTORY SECONDS");
    dir = argv[1];
    char name[300];
    // In `passthrough` a descriptor from before the first change of a lower file stays with that file.
    uint64_t same[BLOCK / 8];
    int writing = open(path(name, 1), O_RDWR);
    ENSURE(pread(writing, same, BLOCK, 0) == BLOCK && pwrite(writing, same, BLOCK, 0) == BLOCK && close(writing) == 0, "%s", name);
    changing = open(path(name, 1), O_RDONLY);
    contested = open(path(name, 2), O_RDONLY);
    ENSURE(changing >= 0 && contested >= 0, "%s", name);
    // Another program may have left it in any round.
    for (uint64_t n = 0, block[BLOCK / 8]; n < BLOCKS; n++) {
        ENSURE(pread(changing, block, BLOCK, (off_t)(n * BLOCK)) == BLOCK && file_of(block, n) % 256 == 1, "block %lu", (unsigned long)n);
        rounds[n] = block[0] >> 8;
        if (first_round <= rounds[n]) first_round = rounds[n] + 1;
    }
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
    fprintf(stderr, "torn %lu\n", torn);
    printf("%lu\n", operations);
    return 0;
}
