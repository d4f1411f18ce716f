// Every way by which a descriptor becomes another file, or none. A and B are files 1 and 2.
#include "library.h"

static const char *a, *b;
extern char **environ;

static int opened(const char *path, int64_t file) {
    int fd = open(path, O_RDONLY);
    ENSURE(fd >= 0, "%s", path);
    ENSURE(reads(fd) == file, "a fresh descriptor");
    return fd;
}

static void is_closed(int fd) { int64_t is = reads(fd); ENSURE(is == -1000 - EBADF, "it reads %ld", (long)is); }

// The number is free; the next open takes it.
static void is_other(int fd) {
    is_closed(fd);
    int now = open(b, O_RDONLY);
    ENSURE(now == fd, "%d, not %d", now, fd);
    ENSURE(reads(fd) == 2, "another file by the same number");
    close(fd);
}

#ifdef SYS_io_uring_setup
// Closes through a ring, without any call that says so. False: there are no rings here.
static int ring_close(int fd) {
    uint32_t params[30] = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, params);
    if (ring < 0) return 0;
    // sq_off begins at word 10: head, tail, ring_mask, ring_entries, flags, dropped, array.
    char *queue = mmap(0, params[16] + 64, PROT_READ | PROT_WRITE, MAP_SHARED, ring, 0);
    uint64_t *entries = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, 0x10000000);
    if (queue == MAP_FAILED || (void *)entries == MAP_FAILED) return 0;
    memset(entries, 0, 64);
    ((uint8_t *)entries)[0] = 19; ((int32_t *)entries)[1] = fd;
    *(uint32_t *)(queue + params[16]) = 0;
    __atomic_store_n((uint32_t *)(queue + params[11]), 1, __ATOMIC_RELEASE);
    int done = syscall(SYS_io_uring_enter, ring, 1, 1, 1, 0, 0) == 1;
    return done;
}
#endif

int main(int argc, char **argv) {
    ENSURE(argc == 3, "A B");
    a = argv[1]; b = argv[2];
    make(a, 1, 64); make(b, 2, 64);
    sync();
    int other = opened(b, 2), fd;

    fd = opened(a, 1); close(fd); is_other(fd);
    fd = opened(a, 1); syscall(SYS_close, fd); is_other(fd);
    fd = opened(a, 1); dup2(other, fd); ENSURE(reads(fd) == 2, "dup2"); close(fd); is_other(fd);
    fd = opened(a, 1); dup2(fd, fd); ENSURE(reads(fd) == 1, "dup2 to itself"); close(fd);
    fd = opened(a, 1); dup3(other, fd, O_CLOEXEC); ENSURE(reads(fd) == 2, "dup3"); close(fd);
    fd = opened(a, 1); syscall(SYS_dup3, other, fd, 0); ENSURE(reads(fd) == 2, "SYS_dup3"); close(fd);
#ifdef SYS_close_range
    fd = opened(a, 1); if (syscall(SYS_close_range, fd, fd + 5, 0) == 0) is_other(fd); else close(fd);
#endif
#ifdef __GLIBC__
    fd = opened(a, 1); if (close_range((unsigned)fd, ~0U, 0) == 0) is_other(fd); else close(fd);
    fd = opened(a, 1); closefrom(fd); is_other(fd);
#endif
    FILE *f = fopen(a, "r"); fd = fileno(f); ENSURE(reads(fd) == 1, "a stream"); fclose(f); is_other(fd);
    f = fopen(a, "r"); fd = fileno(f); ENSURE(reads(fd) == 1, "a stream"); f = freopen(b, "r", f);
    ENSURE(f && reads(fileno(f)) == 2, "freopen"); fclose(f);
    f = fdopen(opened(a, 1), "r"); fd = fileno(f); fclose(f); is_other(fd);

    // A dup is its own: closing one leaves the other.
    fd = opened(a, 1); int twin = dup(fd); ENSURE(reads(twin) == 1, "dup"); close(fd); ENSURE(reads(twin) == 1, "dup"); close(twin);

    // fork: the child has both; what it does to its descriptors is not the parent's, nor the other way round.
    fd = opened(a, 1);
    for (int level = 0; level < 2; level++) {
        pid_t child = fork();
        if (child == 0) {
            ENSURE(reads(fd) == 1, "in the child");
            dup2(other, fd); ENSURE(reads(fd) == 2, "in the child, after dup2");
            close(fd); is_closed(fd);
            ENSURE(open(a, O_RDONLY) == fd && reads(fd) == 1, "in the child, opened again");
            _exit(0);
        }
        int status; waitpid(child, &status, 0); ENSURE(status == 0, "the child: %x", status);
        ENSURE(reads(fd) == 1, "in the parent");
    }
    // vfork: the child runs in the parent's memory with descriptors of its own.
    pid_t child = vfork();
    if (child == 0) { close(fd); dup2(other, fd); execl("/bin/true", "true", (char *)0); _exit(1); }
    int status; waitpid(child, &status, 0); ENSURE(status == 0, "the vfork child: %x", status);
    ENSURE(reads(fd) == 1, "after a vfork child has closed it");
    // The same out of a child made by fork, whose memory is a copy that nobody has looked at yet; and out of one made without libc.
    for (int how = 0; how < 2; how++) {
        pid_t copy = how ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
        if (copy == 0) {
            pid_t spawned = vfork();
            if (spawned == 0) { close(fd); dup2(other, fd); execl("/bin/true", "true", (char *)0); _exit(1); }
            int ended; waitpid(spawned, &ended, 0);
            ENSURE(reads(fd) == 1, "after a vfork grandchild has closed it");
            dup2(other, fd); ENSURE(reads(fd) == 2, "after a vfork grandchild and dup2");
            _exit(ended != 0);
        }
        waitpid(copy, &status, 0); ENSURE(status == 0, "the copy: %x", status);
        ENSURE(reads(fd) == 1, "in the parent");
    }
    // posix_spawn with actions on the descriptor; the new program reads what it was given.
    posix_spawn_file_actions_t actions; posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addclose(&actions, fd);
    posix_spawn_file_actions_adddup2(&actions, other, 0);
    char *words[] = {"sh", "-c", "head -c 1 | od -An -tu1 | grep -q 2", 0};
    ENSURE(posix_spawn(&child, "/bin/sh", &actions, 0, words, environ) == 0, "posix_spawn");
    waitpid(child, &status, 0); ENSURE(status == 0, "the spawned program: %x", status);
    ENSURE(reads(fd) == 1, "after posix_spawn");

    // exec keeps the number, and nothing else.
    char text[200]; snprintf(text, sizeof text, "head -c 1 <&%d | od -An -tu1 | grep -q 1", fd);
    if ((child = fork()) == 0) { execl("/bin/sh", "sh", "-c", text, (char *)0); _exit(1); }
    waitpid(child, &status, 0); ENSURE(status == 0, "the executed program: %x", status);

    // A program that closes everything.
    for (int i = 3; i < 1024; i++) close(i);
    fd = opened(a, 1);
    ENSURE(fd == 3, "the library has a descriptor open: the next one is %d", fd);
    close(0); close(1); close(fd);
    ENSURE(open(b, O_RDONLY) == 0 && reads(0) == 2, "as standard input");

    // daemon(3) replaces the standard descriptors, in a child.
    ENSURE(opened(a, 1) == 1, "standard output");
    child = fork();
    if (child == 0) {
        int pipes[2]; ENSURE(pipe(pipes) == 0, "pipe");
        if (fork() == 0) {
            int64_t before = reads(0);
            if (daemon(1, 0) != 0) _exit(1);
            char c = before == 2 && pread(0, &c, 1, 0) <= 0 && pread(1, &c, 1, 0) <= 0 ? 'y' : 'n';
            _exit(write(pipes[1], &c, 1) != 1);
        }
        char c = 0; close(pipes[1]);
        ENSURE(read(pipes[0], &c, 1) == 1 && c == 'y', "daemon: %c", c);
        _exit(0);
    }
    waitpid(child, &status, 0); ENSURE(status == 0, "the daemon: %x", status);
    ENSURE(reads(0) == 2 && reads(1) == 1, "after a daemon"); close(1);

    // A write-only descriptor and a path are none to read.
    fd = open(a, O_WRONLY); ENSURE(reads(fd) == -1000 - EBADF, "write-only"); close(fd);
    fd = open(a, O_PATH); ENSURE(reads(fd) == -1000 - EBADF, "O_PATH"); close(fd);

#ifdef SYS_io_uring_setup
    // A ring closes unseen: the library stops when one is made.
    fd = opened(a, 1);
    if ((child = fork()) == 0) {
        if (!ring_close(fd)) _exit(0);
        is_closed(fd); ENSURE(open(b, O_RDONLY) == fd && reads(fd) == 2, "closed by a ring");
        _exit(0);
    }
    waitpid(child, &status, 0); ENSURE(status == 0, "the child with a ring: %x", status);
    close(fd);
#endif

    // Descriptors of the thread's own: the library has to stop, and it does.
    fd = opened(a, 1);
#ifdef CLONE_FILES
    unshare(CLONE_FILES);
#else
    syscall(SYS_unshare, 0x400);
#endif
    ENSURE(reads(fd) == 1, "after unshare"); dup2(0, fd); ENSURE(reads(fd) == 2, "after unshare and dup2");
    return 0;
}
