/* checkpoint-memory MIB HOT: fills so many MiB of memory, writes to HOT of them at random again and again, and checks all of it: each page has to be what
 * was written to it last. So does a second process, with memory that others could share. Some memory goes and comes, and so do processes. After each look
 * at all of it a line "memory TURN", or "shared TURN"; what is wrong is said in a line that begins with BAD. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define WORDS (PAGE / 8)
#define AT_ONCE 512
#define WRITES 32
#define GOES 256

struct part {
  const char *name;
  uint64_t *pages;
  uint32_t *versions;
  uint64_t all, hot, state;
};

static uint64_t seed(uint64_t page, uint32_t version) {
  uint64_t x = (page + 1) * 0x9e3779b97f4a7c15u ^ version * 0xbf58476d1ce4e5b9u;
  return x ^ x >> 29;
}

static void put(struct part *part, uint64_t page, uint32_t version) {
  uint64_t *words = part->pages + page * WORDS, first = seed(page, version);
  part->versions[page] = version;
  for (uint64_t word = 0; word < WORDS; word++) words[word] = first + word * first;
}

static void look(struct part *part, uint64_t page) {
  uint64_t *words = part->pages + page * WORDS, first = seed(page, part->versions[page]);
  for (uint64_t word = 0; word < WORDS; word++) {
    if (words[word] == first + word * first) continue;
    printf("BAD %s: page %lu of version %u, word %lu\n", part->name, page, part->versions[page], word);
    fflush(stdout);
    _exit(1);
  }
}

static struct part new(const char *name, uint64_t pages, uint64_t hot, int flags) {
  struct part part = { name, NULL, calloc(pages, sizeof(uint32_t)), pages, hot, 88172645463325252u };
  part.pages = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  // Processes that come and go have none of it.
  if (part.pages == MAP_FAILED || !part.versions || madvise(part.pages, pages * PAGE, MADV_DONTFORK)) exit(2);
  for (uint64_t page = 0; page < pages; page++) put(&part, page, 0);
  return part;
}

static uint64_t any(struct part *part) {
  part->state ^= part->state << 13;
  part->state ^= part->state >> 7;
  return part->state ^= part->state << 17;
}

static void turns(struct part *part) {
  for (uint32_t turn = 1;; turn++) {
    // No neighbour of the rest: the kernel takes all of a mapping that grows for written.
    struct part goes = new("what goes", GOES, GOES, MAP_PRIVATE | MAP_NORESERVE);
    for (uint64_t page = 0; page < GOES; page++) put(&goes, page, turn);
    pid_t other = fork();
    if (other == 0) {
      usleep(300000);
      _exit(0);
    }
    for (uint64_t page = 0; page < part->all; page++) {
      look(part, page);
      if (page % AT_ONCE) continue;
      for (int write = 0; write < WRITES; write++) {
        uint64_t hot = any(part) % part->hot;
        put(part, hot, part->versions[hot] + 1);
      }
      usleep(2000);
    }
    for (uint64_t page = 0; page < GOES; page++) look(&goes, page);
    munmap(goes.pages, GOES * PAGE);
    free(goes.versions);
    waitpid(other, NULL, 0);
    printf("%s %u\n", part->name, turn);
    fflush(stdout);
  }
}

static void ends(int signal) {
  (void)signal;
  _exit(0);
}

int main(int count, char **words) {
  if (count != 3) return 2;
  // As a container's first process it would not end otherwise.
  signal(SIGTERM, ends);
  uint64_t pages = strtoull(words[1], NULL, 10) << 8, hot = strtoull(words[2], NULL, 10) << 8;
  pid_t other = fork();
  struct part part = other == 0 ? new("shared", pages / 16, hot / 16, MAP_SHARED) : new("memory", pages, hot, MAP_PRIVATE);
  turns(&part);
}
