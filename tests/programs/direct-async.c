/* Writes past the page cache and asynchronously, as databases and virtual machines do, while others read the same file through
 * the page cache. A read that begins after a write has been reported as done must find it.
 *
 * direct-async aio|uring FILE WRITES */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 4

static const char *path;
static atomic_int end;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Somebody who reads all the time, so that pages come back to the cache while they are being written. */
static void *reads(void *unused)
{
	char page[PAGE];
	int file = open(path, O_RDONLY);
	if (file < 0)
		fail("open to read");
	while (!atomic_load(&end))
		for (int i = 0; i < PAGES; i++)
			if (pread(file, page, PAGE, i * PAGE) != PAGE)
				fail("read");
	close(file);
	return unused;
}

static aio_context_t context;

static void aio_write(int file, void *data, off_t offset)
{
	struct iocb one = {
		.aio_lio_opcode = IOCB_CMD_PWRITE,
		.aio_fildes = file,
		.aio_buf = (uintptr_t)data,
		.aio_nbytes = PAGE,
		.aio_offset = offset,
	};
	struct iocb *all[] = { &one };
	struct io_event done;
	if (syscall(SYS_io_submit, context, 1, all) != 1)
		fail("io_submit");
	if (syscall(SYS_io_getevents, context, 1, 1, &done, NULL) != 1)
		fail("io_getevents");
	if (done.res != PAGE)
		errno = (int)-done.res, fail("asynchronous write");
}

static struct {
	int fd;
	unsigned *tail, *mask, *array, *done_head, *done_tail, *done_mask;
	struct io_uring_sqe *entries;
	struct io_uring_cqe *done;
} ring;

static int ring_begin(void)
{
	struct io_uring_params params = { 0 };
	ring.fd = (int)syscall(SYS_io_uring_setup, 4, &params);
	if (ring.fd < 0)
		return 0;
	size_t len = params.sq_off.array + params.sq_entries * sizeof(unsigned);
	size_t done_len = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
	int prot = PROT_READ | PROT_WRITE;
	char *sq = mmap(NULL, len, prot, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQ_RING);
	char *cq = mmap(NULL, done_len, prot, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_CQ_RING);
	ring.entries = mmap(NULL, params.sq_entries * sizeof(struct io_uring_sqe), prot, MAP_SHARED | MAP_POPULATE,
			    ring.fd, IORING_OFF_SQES);
	if (sq == MAP_FAILED || cq == MAP_FAILED || ring.entries == MAP_FAILED)
		fail("mapping a ring");
	ring.tail = (unsigned *)(sq + params.sq_off.tail);
	ring.mask = (unsigned *)(sq + params.sq_off.ring_mask);
	ring.array = (unsigned *)(sq + params.sq_off.array);
	ring.done_head = (unsigned *)(cq + params.cq_off.head);
	ring.done_tail = (unsigned *)(cq + params.cq_off.tail);
	ring.done_mask = (unsigned *)(cq + params.cq_off.ring_mask);
	ring.done = (struct io_uring_cqe *)(cq + params.cq_off.cqes);
	return 1;
}

static void ring_write(int file, void *data, off_t offset)
{
	unsigned tail = *ring.tail, slot = tail & *ring.mask;
	ring.entries[slot] = (struct io_uring_sqe){
		.opcode = IORING_OP_WRITE, .fd = file, .addr = (uintptr_t)data, .len = PAGE, .off = (uint64_t)offset,
	};
	ring.array[slot] = slot;
	__atomic_store_n(ring.tail, tail + 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
		fail("io_uring_enter");
	unsigned head = *ring.done_head;
	if (head == __atomic_load_n(ring.done_tail, __ATOMIC_ACQUIRE))
		fail("no completion");
	int res = ring.done[head & *ring.done_mask].res;
	__atomic_store_n(ring.done_head, head + 1, __ATOMIC_RELEASE);
	if (res != PAGE)
		errno = -res, fail("asynchronous write");
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	path = argv[2];
	int uring = strcmp(argv[1], "uring") == 0, writes = atoi(argv[3]);
	if (uring ? !ring_begin() : syscall(SYS_io_setup, 4, &context) != 0) {
		puts("refused");
		return 77;
	}
	int direct = open(path, O_RDWR | O_DIRECT), file = open(path, O_RDONLY);
	if (direct < 0 || file < 0)
		fail(path);
	uint32_t *data, page[PAGE / 4];
	if (posix_memalign((void **)&data, PAGE, PAGE))
		fail("memory");
	pthread_t readers[2];
	for (int i = 0; i < 2; i++)
		pthread_create(&readers[i], NULL, reads, NULL);
	int stale = 0, first = 0;
	for (int i = 1; i <= writes; i++) {
		off_t offset = i % PAGES * PAGE;
		for (unsigned word = 0; word < PAGE / 4; word++)
			data[word] = (uint32_t)i;
		uring ? ring_write(direct, data, offset) : aio_write(direct, data, offset);
		if (pread(file, page, PAGE, offset) != PAGE)
			fail("read");
		if (memcmp(page, data, PAGE) && !stale++)
			first = i;
	}
	atomic_store(&end, 1);
	for (int i = 0; i < 2; i++)
		pthread_join(readers[i], NULL);
	printf("%d of %d writes were not seen, the first was %d\n", stale, writes, first);
	return stale ? 1 : 0;
}
