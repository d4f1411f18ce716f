// Random reads of a cached file: nanoseconds each, for 512 bytes and 4 KiB; the best of five rounds.
#include "library.h"

int main(int argc, char **argv) {
    ENSURE(argc == 2, "FILE");
    static char buf[4096];
    int fd = open(argv[1], O_RDONLY);
    struct stat st;
    ENSURE(fd >= 0 && fstat(fd, &st) == 0 && st.st_size > (1 << 20), "%s", argv[1]);
    for (off_t at = 0; at + 4096 <= st.st_size; at += 4096) ENSURE(pread(fd, buf, 4096, at) == 4096, "warming");
    for (size_t len = 512; len <= 4096; len *= 8) {
        double best = 1e9;
        uint64_t state = 1;
        for (int round = 0; round < 5; round++) {
            struct timespec begin, end;
            clock_gettime(CLOCK_MONOTONIC, &begin);
            for (int i = 0; i < 200000; i++) {
                state += 0x9e3779b97f4a7c15ULL;
                off_t at = (off_t)(mix(state) % ((uint64_t)st.st_size / len) * len);
                if (pread(fd, buf, len, at) != (ssize_t)len) return 1;
            }
            clock_gettime(CLOCK_MONOTONIC, &end);
            double took = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
            if (took / 200000 < best) best = took / 200000;
        }
        printf("%zu bytes %.0f ns  ", len, best);
    }
    printf("\n");
    return 0;
}
