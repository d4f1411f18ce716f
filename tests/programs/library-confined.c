/* Does all that a ring is for in a directory, and says what came of it. Arguments: the directory, and the domain of Landlock in which to
 * do it, which is entered before the program executes itself:
 *   free     none
 *   nothing  all rights, and none there
 *   reading  all rights, and those to read there
 *   moving   all rights, and all but those to read files there
 *   sockets  the right to make sockets, which nothing here asks for */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CREATE_RULESET 444
#define ADD_RULE 445
#define RESTRICT_SELF 446

/* As in linux/landlock.h. */
#define EXECUTE 1ULL
#define READ_FILE 4ULL
#define READ_DIR 8ULL
#define MAKE_SOCK (1ULL << 9)
#define READING (EXECUTE | READ_FILE | READ_DIR)

struct __attribute__((packed)) beneath {
    uint64_t allowed;
    int32_t parent;
};

static int allow(int rules, const char *path, uint64_t rights) {
    struct stat found;
    struct beneath rule = {rights, open(path, O_PATH | O_CLOEXEC)};
    if (rule.parent < 0 || fstat(rule.parent, &found) != 0)
        return errno != ENOENT;
    /* What is for files alone. */
    if (!S_ISDIR(found.st_mode))
        rule.allowed &= READ_FILE | EXECUTE;
    return syscall(ADD_RULE, rules, 1, &rule, 0) != 0;
}

static int confine(const char *program, const char *dir, const char *how) {
    int version = syscall(CREATE_RULESET, 0, 0, 1);
    if (version < 0)
        return 77;
    /* Up to moving files, which came with the second version, and up to making them shorter, with the third. */
    uint64_t all = version < 2 ? (1ULL << 13) - 1 : version < 3 ? (1ULL << 14) - 1 : (1ULL << 15) - 1;
    uint64_t handled = strcmp(how, "sockets") == 0 ? MAKE_SOCK : all;
    int rules = syscall(CREATE_RULESET, &handled, sizeof handled, 0);
    if (rules < 0)
        return 1;
    if (handled == all) {
        const char *needed[] = {"/usr", "/lib", "/lib64", "/etc", "/dev", "/proc", program, getenv("LIBRARY")};
        for (unsigned i = 0; i < sizeof needed / sizeof *needed; i++)
            if (needed[i] != NULL && allow(rules, needed[i], READING))
                return 1;
        if (strcmp(how, "reading") == 0 && allow(rules, dir, READING))
            return 1;
        if (strcmp(how, "moving") == 0 && allow(rules, dir, all & ~READ_FILE))
            return 1;
    }
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || syscall(RESTRICT_SELF, rules, 0) != 0;
}

static const char *dir;

static const char *at(const char *name, int number) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s-%d", dir, name, number);
    return path;
}

static void say(const char *what, int number, int result) {
    printf("%s %d: %s\n", what, number, result < 0 ? strerror(errno) : "done");
    if (result > 2)
        close(result);
}

int main(int argc, char **argv) {
    dir = argv[1];
    if (argc == 3) {
        int failed = strcmp(argv[2], "free") == 0 ? 0 : confine(argv[0], dir, argv[2]);
        if (failed) {
            perror("a domain");
            return failed;
        }
        setenv("LD_PRELOAD", getenv("LIBRARY"), 1);
        execl(argv[0], argv[0], dir, argv[2], "confined", (char *)0);
        perror("exec");
        return 1;
    }
    for (int i = 0; i < 20; i++) {
        say("create", i, open(at("new", i), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644));
        say("write", i, open(at("old", i), O_WRONLY | O_CLOEXEC));
        say("read and write", i, open(at("old", i), O_RDWR | O_CLOEXEC));
        say("cut", i, open(at("cut", i), O_WRONLY | O_TRUNC | O_CLOEXEC));
        say("make", i, mkdir(at("dir", i), 0755));
        say("link", i, symlink("target", at("link", i)));
        say("remove", i, unlink(at("gone", i)));
    }
    return 0;
}
