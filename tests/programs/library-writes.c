/* Writes at an offset and syncs, which may go past the mount, among everything else that is done with a descriptor: each step is done
 * on the mount and in another directory, and must come to the same there. The arguments are the two directories, and a number by which
 * the steps are chosen; where it is odd, every file is opened through the mount, and read from mappings. */
#include "library.h"
#include <sys/file.h>

#define SLOTS 4
#define NAMES 6
#define SIZE 65536
#define STEPS 2000

static const char *dirs[2];
static unsigned long state;

static unsigned below(unsigned n) {
    state = mix(state + 0x9e3779b97f4a7c15UL);
    return (unsigned)(state >> 33) % n;
}

static const char *path(int side, int name) {
    static char text[2][4096];
    snprintf(text[side], sizeof text[side], "%s/w%d", dirs[side], name);
    return text[side];
}

static int fds[2][SLOTS];
static int names[SLOTS];

/* Both sides of something, with the error numbers. */
#define BOTH(what, expression) do { long of[2]; int error[2]; \
    for (int side = 0; side < 2; side++) { errno = 0; of[side] = (long)(expression); error[side] = of[side] < 0 ? errno : 0; } \
    ENSURE(of[0] == of[1] && error[0] == error[1], "step %d, %s: %ld (%d), on the host %ld (%d)", \
        step, what, of[0], error[0], of[1], error[1]); } while (0)

static int step;
static unsigned char buffer[2][SIZE + 4096];

/* Past the library if all files are to be opened through the mount. */
static int open_as_told(const char *name, int flags) {
    static int is_told = -1;
    if (is_told < 0) is_told = (int)(state & 1);
    return is_told ? (int)syscall(SYS_openat, AT_FDCWD, name, flags, 0644) : open(name, flags, 0644);
}

static void open_slot(int slot, int flags) {
    names[slot] = (int)below(NAMES);
    BOTH("open", (fds[side][slot] = open_as_told(path(side, names[slot]), O_RDWR | O_CREAT | flags)) < 0 ? -1 : 0);
}

static void write_some(int slot, int times) {
    for (int n = 0; n < times; n++) {
        size_t len = below(700), at = below(SIZE - 700);
        memset(buffer[0], (int)below(256), len);
        BOTH("pwrite", pwrite(fds[side][slot], buffer[0], len, (off_t)at));
    }
}

static void same_contents(int slot) {
    struct stat one, named;
    long size[2];
    for (int side = 0; side < 2; side++) {
        ENSURE(fstat(fds[side][slot], &one) == 0, "fstat");
        size[side] = one.st_size;
        if (side == 0 && one.st_nlink > 0 && stat(path(side, names[slot]), &named) == 0 && named.st_ino == one.st_ino) {
            ENSURE(one.st_dev == named.st_dev && one.st_size == named.st_size && one.st_mode == named.st_mode, "step %d: other attributes by name: "
                "size %ld and %ld", step, (long)one.st_size, (long)named.st_size);
        }
    }
    ENSURE(size[0] == size[1], "step %d: sizes %ld, on the host %ld", step, size[0], size[1]);
    /* By many small reads, so that they come from a mapping, and one that does not. */
    for (int whole = 0; whole < 2; whole++) {
        size_t part = whole ? sizeof buffer[0] : 8192;
        for (size_t at = 0; at < sizeof buffer[0]; at += part)
            BOTH("pread", whole ? (side ? pread(fds[1][slot], buffer[1], part, 0) : syscall(SYS_pread64, fds[0][slot], buffer[0], part, 0))
                                : pread(fds[side][slot], buffer[side] + at, part <= sizeof buffer[0] - at ? part : sizeof buffer[0] - at, (off_t)at));
        size_t seen = (size_t)size[0] < sizeof buffer[0] ? (size_t)size[0] : sizeof buffer[0];
        ENSURE(memcmp(buffer[0], buffer[1], seen) == 0, "step %d: other contents, whole %d", step, whole);
    }
}

static void by_child(int slot) {
    for (int side = 0; side < 2; side++) {
        pid_t child = fork();
        ENSURE(child >= 0, "fork");
        if (child == 0) {
            unsigned char mine[300];
            memset(mine, step, sizeof mine);
            for (int n = 0; n < 50; n++)
                if (pwrite(fds[side][slot], mine, sizeof mine, n * 300) != sizeof mine) _exit(1);
            _exit(fdatasync(fds[side][slot]) ? 1 : 0);
        }
        int status;
        ENSURE(waitpid(child, &status, 0) == child && status == 0, "step %d: a child: %d", step, status);
    }
}

static void do_step(void) {
    int slot = (int)below(SLOTS), other = (int)below(SLOTS), name = (int)below(NAMES);
    struct iovec parts[2] = {{buffer[0], below(500)}, {buffer[1], below(500)}};
    long offset = below(SIZE);
    switch (below(20)) {
    case 0: case 1: case 2: case 3: write_some(slot, 40); break;
    case 4:
        memset(buffer[0], step, 500); memset(buffer[1], step + 1, 500);
        BOTH("pwritev", pwritev(fds[side][slot], parts, 2, offset / 2));
        break;
    case 5: BOTH("write", write(fds[side][slot], "position", 8)); break;
    case 6: {
        int whence = (int)below(3);
        BOTH("lseek", lseek(fds[side][slot], offset / 4, whence));
        break;
    }
    case 7: BOTH("ftruncate", ftruncate(fds[side][slot], offset)); break;
    case 8: BOTH("sync", offset % 2 ? fsync(fds[side][slot]) : fdatasync(fds[side][slot])); break;
    case 9: {
        int append = below(2) ? O_APPEND : 0;
        BOTH("F_SETFL", fcntl(fds[side][slot], F_SETFL, append));
        write_some(slot, 2);
        if (append) { BOTH("ftruncate", ftruncate(fds[side][slot], offset)); }
        break;
    }
    case 10:
        if (slot != other) {
            BOTH("dup2", dup2(fds[side][slot], fds[side][other]) == fds[side][other] ? 0 : -1);
            names[other] = names[slot];
        }
        break;
    case 11: case 12: {
        /* Not O_APPEND: a passthrough that was opened with it keeps it, whatever F_SETFL says later. */
        int flags = below(4) ? 0 : O_TRUNC;
        BOTH("close", close(fds[side][slot]));
        open_slot(slot, flags);
        break;
    }
    case 13: by_child(slot); break;
    case 14:
        memset(buffer[0], step, 600);
        BOTH("a write through the mount", side ? pwrite(fds[1][slot], buffer[0], 600, offset)
                                               : syscall(SYS_pwrite64, fds[0][slot], buffer[0], 600, offset));
        break;
    case 15: BOTH("truncate by name", syscall(SYS_truncate, path(side, name), offset)); break;
    case 16: BOTH("unlink", unlink(path(side, name))); break;
    case 17: {
        /* Numbers that the library may use for its own. */
        int high = 40 + (int)below(6);
        if (below(2)) {
            BOTH("dup2 to a high number", dup2(fds[side][slot], high + 6 * side) == high + 6 * side ? 0 : -1);
            BOTH("a write by it", pwrite(high + 6 * side, "high", 4, offset));
            BOTH("close of it", close(high + 6 * side));
        } else {
            BOTH("close_range", syscall(SYS_close_range, 40, ~0U, 0));
        }
        break;
    }
    case 18: {
        char to[2][4096];
        for (int side = 0; side < 2; side++) snprintf(to[side], sizeof to[side], "%s/w%d", dirs[side], (int)(offset % NAMES));
        BOTH("rename", rename(path(side, name), to[side]));
        break;
    }
    default: BOTH("chmod", fchmod(fds[side][slot], 0600 | (offset & 077))); break;
    }
    same_contents(slot);
}

/* Threads write to descriptors that are closed and opened again all the time: no block comes into a file that it is not for. */
#define FILES 12
#define PAIRS 6
static struct { pthread_rwlock_t lock; int fd; uint64_t file; } pairs[PAIRS];
static int is_over;

static int open_file(uint64_t file) {
    char name[4096];
    snprintf(name, sizeof name, "%s/f%d", dirs[0], (int)file);
    int fd = open_as_told(name, O_RDWR | O_CREAT);
    ENSURE(fd >= 0, "%s", name);
    return fd;
}

static void *writer(void *argument) {
    uint64_t chosen = (uint64_t)argument, block[BLOCK / 8];
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
        chosen = mix(chosen + 1);
        int at = (int)(chosen % PAIRS);
        pthread_rwlock_rdlock(&pairs[at].lock);
        for (int n = 0; n < 20; n++) {
            uint64_t number = (chosen >> 20) % 64 + (uint64_t)n;
            fill(block, pairs[at].file, number);
            ENSURE(pwrite(pairs[at].fd, block, BLOCK, (off_t)(number * BLOCK)) == BLOCK, "a thread's write");
        }
        pthread_rwlock_unlock(&pairs[at].lock);
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[4];
    for (int i = 0; i < PAIRS; i++) {
        pthread_rwlock_init(&pairs[i].lock, NULL);
        pairs[i].file = (uint64_t)i + 1;
        pairs[i].fd = open_file(pairs[i].file);
    }
    for (size_t i = 0; i < 4; i++) ENSURE(pthread_create(&all[i], NULL, writer, (void *)(i + 77)) == 0, "thread");
    struct timespec pause = {0, 300000};
    for (int n = 0; n < 600; n++) {
        int at = (int)below(PAIRS);
        pthread_rwlock_wrlock(&pairs[at].lock);
        ENSURE(close(pairs[at].fd) == 0, "close");
        pairs[at].file = below(FILES) + 1;
        pairs[at].fd = open_file(pairs[at].file);
        pthread_rwlock_unlock(&pairs[at].lock);
        nanosleep(&pause, NULL);
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 4; i++) pthread_join(all[i], NULL);
    for (uint64_t file = 1; file <= FILES; file++) {
        int fd = open_file(file);
        uint64_t block[BLOCK / 8];
        for (uint64_t number = 0; pread(fd, block, BLOCK, (off_t)(number * BLOCK)) == BLOCK; number++) {
            int64_t of = file_of(block, number);
            ENSURE(of == 0 || of == (int64_t)file, "block %d of file %d is of file %d", (int)number, (int)file, (int)of);
        }
        close(fd);
    }
}

/* Threads make, open and remove files of their own in directories that they share: each finds its own, and no other. */
#define MAKERS 8
#define DIRS 24
#define OWN 96

static void *maker(void *argument) {
    uint64_t me = (uint64_t)argument, chosen = me;
    char name[4096], mine[64], found[64];
    unsigned char is_there[OWN] = {0};
    for (int n = 0; n < 4000; n++) {
        chosen = mix(chosen + 1);
        unsigned file = (unsigned)(chosen >> 8) % OWN;
        int len = snprintf(mine, sizeof mine, "%d of %d", (int)file, (int)me);
        snprintf(name, sizeof name, "%s/m%u/%d-%u", dirs[0], file % DIRS, (int)me, file);
        if (!is_there[file]) {
            int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0644);
            ENSURE(fd >= 0 && write(fd, mine, (size_t)len) == len && close(fd) == 0, "making %s", name);
        } else if (chosen % 3) {
            int fd = open(name, O_RDWR);
            ENSURE(fd >= 0, "%s", name);
            ENSURE(read(fd, found, sizeof found) == len && memcmp(found, mine, (size_t)len) == 0 && close(fd) == 0, "reading %s", name);
            continue;
        } else {
            ENSURE(unlink(name) == 0, "removing %s", name);
        }
        is_there[file] = !is_there[file];
    }
    return NULL;
}

static void makers(void) {
    pthread_t all[MAKERS];
    char name[4096];
    for (int i = 0; i < DIRS; i++) {
        snprintf(name, sizeof name, "%s/m%d", dirs[0], i);
        ENSURE(mkdir(name, 0755) == 0, "%s", name);
    }
    for (size_t i = 0; i < MAKERS; i++) ENSURE(pthread_create(&all[i], NULL, maker, (void *)(i + 1)) == 0, "thread");
    for (int i = 0; i < MAKERS; i++) pthread_join(all[i], NULL);
}

int main(int count, char **arguments) {
    ENSURE(count == 4, "two directories and a number");
    dirs[0] = arguments[1]; dirs[1] = arguments[2]; state = strtoul(arguments[3], NULL, 0);
    names[0] = open_as_told("/dev/null", O_RDWR);
    for (int slot = 0; slot < SLOTS; slot++) open_slot(slot, 0);
    for (step = 0; step < STEPS; step++) do_step();
    threads();
    makers();
    return 0;
}
