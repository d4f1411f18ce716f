/* library-checkpoint ROOT DATA: reads and writes by the library until it is killed, and checks all of it. ROOT: where it reads; DATA: a directory
 * whose files the service hands out. Two processes, the first with more threads that wait. Every tenth turn a line "TURN SERVED OPENS": reads
 * from mappings, and opens over a ring. What is wrong is said in a line that begins with BAD. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "../../crates/preload/include/vellum.h"

#define BLOCK 512
#define BLOCKS 200
#pragma weak vellum_stats
#pragma weak vellum_open

#define CHECK(is) do { if (!(is)) { printf("BAD %d: %s: %s\n", __LINE__, #is, strerror(errno)); fflush(stdout); _exit(1); } } while (0)

static char root[256], data[256];

static void fill(unsigned char *to, unsigned block, unsigned turn) {
  for (unsigned at = 0; at < BLOCK; at++) to[at] = (unsigned char)(block * 7 + at * 3 + turn);
}

static int make(const char *dir, const char *name, int flags) {
  char path[600];
  snprintf(path, sizeof path, "%s/%s-%d", dir, name, (int)getpid());
  int fd = open(path, flags | O_CREAT | O_CLOEXEC, 0644);
  CHECK(fd >= 0);
  return fd;
}

static void *reads(void *of) {
  int fd = *(int *)of;
  unsigned char block[BLOCK], expected[BLOCK];
  for (unsigned n = 0;; n++) {
    fill(expected, n % BLOCKS, 0);
    CHECK(pread(fd, block, BLOCK, (off_t)(n % BLOCKS) * BLOCK) == BLOCK);
    CHECK(memcmp(block, expected, BLOCK) == 0);
    struct timespec pause = { 0, 300000 };
    if (n % 50 == 0) CHECK(nanosleep(&pause, NULL) == 0 || errno == EINTR);
  }
  return of;
}

/* CRIU itself ends a wait of limited time with EINTR. */
static void *waits(void *of) {
  for (;;) {
    struct timespec pause = { 0, 40000000 };
    CHECK(nanosleep(&pause, NULL) == 0 || errno == EINTR);
    CHECK(poll(NULL, 0, 40) == 0 || errno == EINTR);
  }
  return of;
}

static void ends(int signal) { _exit(signal); }

static void turn(unsigned n, int held, int wide) {
  unsigned char block[BLOCK], back[BLOCK];
  char path[600], other[600];
  struct stat stat_;
  /* A position that goes on, of a file that is open all the time. */
  uint64_t number = n;
  CHECK(write(held, &number, sizeof number) == sizeof number);
  CHECK(lseek(held, 0, SEEK_CUR) == (off_t)((n + 1) * sizeof number));
  CHECK(fstat(held, &stat_) == 0 && stat_.st_size == (off_t)((n + 1) * sizeof number));
  uint64_t some = n / 2, found;
  CHECK(pread(held, &found, sizeof found, (off_t)(some * sizeof number)) == sizeof found && found == some);
  for (unsigned of = 0; of < 40; of++) {
    fill(block, of, n);
    CHECK(pwrite(wide, block, BLOCK, (off_t)of * BLOCK) == BLOCK);
  }
  CHECK(n % 16 != 0 || fdatasync(wide) == 0);
  for (unsigned of = 0; of < 40; of++) {
    fill(block, of, n);
    CHECK(pread(wide, back, BLOCK, (off_t)of * BLOCK) == BLOCK && memcmp(block, back, BLOCK) == 0);
  }
  /* A file and a directory that come and go. */
  snprintf(path, sizeof path, "%s/dir-%d", data, (int)getpid());
  CHECK(mkdir(path, 0755) == 0);
  snprintf(path, sizeof path, "%s/dir-%d/file", data, (int)getpid());
  snprintf(other, sizeof other, "%s/dir-%d/other", data, (int)getpid());
  int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
  CHECK(fd >= 0);
  CHECK(write(fd, block, BLOCK) == BLOCK && fchmod(fd, 0600) == 0 && close(fd) == 0);
  CHECK(rename(path, other) == 0 && stat(other, &stat_) == 0 && stat_.st_size == BLOCK);
  CHECK(unlink(other) == 0);
  snprintf(path, sizeof path, "%s/dir-%d", data, (int)getpid());
  CHECK(rmdir(path) == 0);
  /* A file that is cut while it is mapped. */
  CHECK(ftruncate(wide, 20 * BLOCK) == 0 && pread(wide, back, BLOCK, 20 * BLOCK) == 0);
}

int main(int count, char **words) {
  CHECK(count == 3 && signal(SIGTERM, ends) != SIG_ERR);
  strncpy(root, words[1], sizeof root - 1);
  strncpy(data, words[2], sizeof data - 1);
  int is_first = fork() != 0;
  if (vellum_open) {
    int fd = vellum_open(root, O_RDONLY | O_DIRECTORY, 0);
    CHECK(fd >= 0 && close(fd) == 0);
  }
  int all = make(root, "reads", O_RDWR);
  unsigned char block[BLOCK];
  for (unsigned of = 0; of < BLOCKS; of++) {
    fill(block, of, 0);
    CHECK(pwrite(all, block, BLOCK, (off_t)of * BLOCK) == BLOCK);
  }
  CHECK(fsync(all) == 0);
  int held = make(data, "held", O_RDWR), wide = make(data, "wide", O_RDWR);
  pthread_t thread;
  if (is_first)
    for (int of = 0; of < 2; of++) {
      CHECK(pthread_create(&thread, NULL, reads, &all) == 0);
      CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
    }
  for (unsigned n = 0;; n++) {
    turn(n, held, wide);
    struct timespec pause = { 0, 1000000 };
    CHECK(nanosleep(&pause, NULL) == 0 || errno == EINTR);
    if (n % 10 == 0 && is_first) {
      struct vellum_counts counts = { 0 };
      if (vellum_stats) vellum_stats(&counts);
      printf("%u %llu %llu\n", n, (unsigned long long)counts.served, (unsigned long long)counts.opens[0]);
      fflush(stdout);
    }
  }
}
