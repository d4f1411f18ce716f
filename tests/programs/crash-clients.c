/* Clients that are killed in the middle of a call, and what fsync says of their file to somebody else afterwards.
 *
 * crash-clients DIRECTORY TRIES
 *
 * Prints how often it was EINTR. Any other error, an error that comes twice, or data that are not there, are failures. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static char name[4096], other[4096];

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* The calls, over and over until killed. */
static void allocate(int file)
{
	for (off_t size = 1 << 16;; size += 4096)
		fallocate(file, 0, 0, size);
}

static void punch(int file)
{
	for (;;)
		fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096);
}

static void move(int file)
{
	(void)file;
	for (;;) {
		rename(name, other);
		rename(other, name);
	}
}

static void attribute(int file)
{
	for (unsigned n = 0;; n++)
		fsetxattr(file, "user.own", &n, sizeof n, 0);
}

static const struct {
	const char *name;
	void (*call)(int file);
} CALLS[] = { { "fallocate", allocate }, { "punch", punch }, { "rename", move }, { "fsetxattr", attribute } };

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	int tries = atoi(argv[2]), sum = 0;
	snprintf(name, sizeof name, "%s/file", argv[1]);
	snprintf(other, sizeof other, "%s/other", argv[1]);
	for (unsigned call = 0; call < sizeof CALLS / sizeof *CALLS; call++) {
		int interrupted = 0;
		for (int try = 0; try < tries; try++) {
			int file = open(name, O_RDWR | O_CREAT, 0644);
			if (file < 0)
				file = open(other, O_RDWR);
			char text[32], found[32] = "";
			int len = snprintf(text, sizeof text, "%u %d", call, try);
			if (file < 0 || pwrite(file, text, len, 0) != len)
				fail("write");
			pid_t child = fork();
			if (child == 0)
				CALLS[call].call(file);
			usleep(500 + rand() % 1000);
			kill(child, SIGKILL);
			waitpid(child, NULL, 0);
			if (fsync(file) != 0) {
				if (errno != EINTR)
					fail("fsync");
				interrupted++;
				if (fsync(file) != 0)
					fail("the second fsync");
			}
			if (pread(file, found, len, 0) != len || strcmp(text, found))
				fail("read");
			close(file);
		}
		printf("%s: %d of %d\n", CALLS[call].name, interrupted, tries);
		sum += interrupted;
	}
	printf("sum %d\n", sum);
	return 0;
}
