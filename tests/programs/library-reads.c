// Reads at an offset in every form, one after the other: prints what each has given, to be compared with and without the library.
#include "library.h"

static uint64_t state;
static uint64_t below(uint64_t n) { state += 0x9e3779b97f4a7c15ULL; return mix(state) % n; }

static uint64_t hash;
static void note(const void *data, size_t len) {
    for (size_t i = 0; i < len; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * 1099511628211ULL;
}

int main(int argc, char **argv) {
    ENSURE(argc == 4, "FILE SEED COUNT");
    state = strtoull(argv[2], 0, 10);
    long count = strtol(argv[3], 0, 10);
    int fd = open(argv[1], O_RDWR);
    ENSURE(fd >= 0, "%s", argv[1]);
    static char buf[70000], more[3000];
    uint64_t size = 0;
    for (long i = 0; i < count; i++) {
        struct stat st;
        fstat(fd, &st);
        size = (uint64_t)st.st_size;
        uint64_t len = below(8) ? below(600) : below(sizeof buf), at = below(size + 2000);
        if (below(50) == 0) at = (uint64_t)-below(5) - 1;
        if (below(50) == 0) len = 0;
        ssize_t got;
        memset(buf, 0x55, sizeof buf); memset(more, 0x55, sizeof more);
        errno = 12345;
        struct iovec parts[3] = {{buf, len / 2}, {more, len < 3000 ? len : 3000}, {buf + 40000, 17}};
        int what = (int)below(120);
        if (what < 70) got = pread(fd, buf, len, (off_t)at);
        else if (what < 90) got = preadv(fd, parts, (int)below(4), (off_t)at);
#ifdef RWF_NOWAIT
        else if (what < 100) got = preadv2(fd, parts, 3, (off_t)at, 0);
#endif
        else if (what < 102) got = pread(fd, (void *)16, len, (off_t)at);
        else if (what < 104) { char *bad = (char *)8; struct iovec wrong[2] = {{buf, 5}, {bad, 5}}; got = preadv(fd, wrong, 2, 0); if (got >= 0) got = -2; }
        else if (what < 106) got = pread(fd + 1000, buf, len, (off_t)at);
        else if (what < 108) got = pwrite(fd, argv[2], 1, (off_t)below(size + 1));
        else if (what < 109) got = ftruncate(fd, (off_t)below(size + 1));
        else if (what < 111) { memset(buf, what + (int)i, 5000); got = pwrite(fd, buf, 5000, (off_t)size); memset(buf, 0x55, 5000); }
        else if (what < 112) got = ftruncate(fd, (off_t)(size + 4000));
        else if (what < 113) { int again = open(argv[1], O_RDWR); got = dup2(again, fd) >= 0; close(again); }
        else if (what < 116) { got = read(fd, buf, len); }
        else if (what < 117) { got = lseek(fd, (off_t)(at & 0xffff), SEEK_SET); }
        else { got = pread(fd, buf, len, (off_t)at); }
        int error = errno;
        note(&got, sizeof got);
        if (got < 0) note(&error, sizeof error);
        else { ENSURE(error == 12345, "errno changed by a success"); note(buf, sizeof buf); note(more, sizeof more); }
        if (argv[0][0] == 'v') printf("%ld %d %zd %d %016lx\n", i, what, got, got < 0 ? error : 0, (unsigned long)hash);
    }
    printf("%016lx\n", (unsigned long)hash);
    return 0;
}
