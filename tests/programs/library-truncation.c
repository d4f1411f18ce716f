// A thread is stopped in the middle of a read from a mapping; the file is truncated meanwhile, and mostly rewritten. The read gives
// what the file is afterwards, and no half of it from before.
#include "library.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>

#define PAGE 4096
#define ROUNDS 40
#define NUMBER 10
struct counts { uint64_t served, bytes, not_vellum, few, beyond, changed, rest[10]; };
void vellum_stats(struct counts *) __attribute__((weak));

static int fd;
// A block's first half is to be put at the end of a page that is there, its second half into one that is missing.
static char *buffer;
static ssize_t got;

static void *reader(void *none) {
    got = pread(fd, buffer + PAGE - BLOCK / 2, BLOCK, NUMBER * BLOCK);
    return none;
}

static struct counts counts(void) { struct counts now; vellum_stats(&now); return now; }

int main(int argc, char **argv) {
    ENSURE(argc == 2 && vellum_stats, "FILE, with libvellum.so preloaded");
    int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (faults < 0) { fprintf(stderr, "userfaultfd: %s\n", strerror(errno)); return 77; }
    buffer = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(buffer != MAP_FAILED);
    struct uffdio_api api = { .api = UFFD_API };
    struct uffdio_register missing = { .range = { (uintptr_t)buffer + PAGE, PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
    CHECK(ioctl(faults, UFFDIO_API, &api) == 0 && ioctl(faults, UFFDIO_REGISTER, &missing) == 0);
    int writer = open(argv[1], O_RDWR);
    fd = open(argv[1], O_RDONLY);
    CHECK(writer >= 0 && fd >= 0);
    uint64_t block[BLOCK / 8];
    int stopped = 0;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        // Whole again, and mapped.
        for (uint64_t n = 0; n < 2 * NUMBER; n++) { fill(block, round, n); CHECK(pwrite(writer, block, BLOCK, (off_t)(n * BLOCK)) == BLOCK); }
        CHECK(fsync(writer) == 0);
        uint64_t served = counts().served;
        for (int n = 0; counts().served == served; n++) {
            ENSURE(n < 100000, "no read comes from a mapping");
            CHECK(pread(fd, block, BLOCK, 0) == BLOCK);
        }
        memset(buffer, 'x', PAGE);
        CHECK(madvise(buffer + PAGE, PAGE, MADV_DONTNEED) == 0);
        struct counts before = counts();
        pthread_t thread;
        CHECK(pthread_create(&thread, 0, reader, 0) == 0);
        struct uffd_msg fault;
        CHECK(poll(&(struct pollfd){ faults, POLLIN, 0 }, 1, 60000) == 1 && read(faults, &fault, sizeof fault) == sizeof fault);
        CHECK(round % 2 ? ftruncate(writer, (NUMBER - 1) * BLOCK) == 0 : close(open(argv[1], O_WRONLY | O_TRUNC)) == 0);
        int is_rewritten = round % 4 != 3;
        for (uint64_t n = 0; is_rewritten && n < 2 * NUMBER; n++) {
            fill(block, ROUNDS + round, n);
            CHECK(pwrite(writer, block, BLOCK, (off_t)(n * BLOCK)) == BLOCK);
        }
        struct uffdio_zeropage zeros = { .range = missing.range };
        CHECK(ioctl(faults, UFFDIO_ZEROPAGE, &zeros) == 0);
        CHECK(pthread_join(thread, 0) == 0);
        // One that the kernel has carried out alone may have halves of two moments.
        if (counts().changed == before.changed && counts().served == before.served) continue;
        stopped++;
        ENSURE(got == (is_rewritten ? BLOCK : 0), "round %d: %zd bytes", (int)round, got);
        memcpy(block, buffer + PAGE - BLOCK / 2, BLOCK);
        ENSURE(!is_rewritten || file_of(block, NUMBER) == (int64_t)(ROUNDS + round), "round %d: a block of %ld", (int)round,
            (long)file_of(block, NUMBER));
    }
    ENSURE(stopped > ROUNDS / 2, "only %d reads were stopped in the copy", stopped);
    return 0;
}
