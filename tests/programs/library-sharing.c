/* What must hold of a descriptor that may be the layer's own file: locks that everybody sees, one file by whatever way it is looked at,
 * one position in all processes that share it. The argument is a directory. */
#include "library.h"
#include <sys/file.h>

static const char *dir;
static char path[4096];

static const char *in(const char *name) {
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* A new file, by whatever way the library makes it. */
static int fresh(const char *name, int flags) {
    unlink(in(name));
    int fd = open(in(name), O_CREAT | O_EXCL | O_RDWR | flags, 0640);
    CHECK(fd >= 0);
    return fd;
}

/* A program without the library. */
static int without(const char *line) {
    char command[8192];
    snprintf(command, sizeof command, "cd '%s' && env -u LD_PRELOAD sh -c '%s'", dir, line);
    return system(command);
}

static void same_file(int fd, const char *name) {
    struct stat one, other;
    CHECK(fstat(fd, &one) == 0 && stat(in(name), &other) == 0);
    CHECK(one.st_dev == other.st_dev && one.st_ino == other.st_ino && one.st_size == other.st_size);
    CHECK(one.st_mode == other.st_mode && one.st_nlink == other.st_nlink && one.st_uid == other.st_uid);
    char link[64], target[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, target, sizeof target - 1);
    CHECK(len > 0);
    target[len] = 0;
    CHECK(stat(target, &other) == 0 && one.st_ino == other.st_ino);
}

/* The mount by which a file was opened. */
static int mount_of(int fd) {
    char path[64], line[128];
    int id = -1;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *info = fopen(path, "r");
    while (info && fgets(line, sizeof line, info)) {
        sscanf(line, "mnt_id: %d", &id);
    }
    CHECK(info && fclose(info) == 0 && id >= 0);
    return id;
}

/* Copies from a file that was opened to read, which is the mount's, to a new one, which may have no name any more. */
static void copies(int has_name, ssize_t size) {
    static char data[300000], found[sizeof data];
    for (ssize_t at = 0; at < size; at++) {
        data[at] = at * 7 + at / 251;
    }
    int from = fresh("from", 0);
    CHECK(write(from, data, size) == size && close(from) == 0);
    from = open(in("from"), O_RDONLY);
    int to = fresh("to", 0);
    CHECK(from >= 0 && (has_name || unlink(in("to")) == 0));
    int is_handed_out = mount_of(to) != mount_of(from);
    for (ssize_t left = size, done; left > 0; left -= done) {
        done = copy_file_range(from, NULL, to, NULL, left, 0);
        CHECK(done > 0);
    }
    CHECK(copy_file_range(from, NULL, to, NULL, 1, 0) == 0);
    CHECK(lseek(from, 0, SEEK_CUR) == size && lseek(to, 0, SEEK_CUR) == size);
    CHECK(pread(to, found, size, 0) == size && memcmp(data, found, size) == 0);
    /* What is small is copied without the mount's descriptor. */
    CHECK(size > 128 << 10 || is_handed_out == (mount_of(to) != mount_of(from)));
    off_t from_at = 7000;
    CHECK(copy_file_range(from, &from_at, to, NULL, 100, 0) == 100 && from_at == 7100);
    CHECK(lseek(from, 0, SEEK_CUR) == size && lseek(to, 0, SEEK_CUR) == size + 100);
    CHECK(pread(to, found, 100, size) == 100 && memcmp(data + 7000, found, 100) == 0);
    CHECK(lseek(to, size, SEEK_SET) == size);
    from_at = 5000;
    off_t to_at = 3;
    CHECK(copy_file_range(from, &from_at, to, &to_at, 100, 0) == 100 && from_at == 5100 && to_at == 103);
    CHECK(pread(to, found, 100, 3) == 100 && memcmp(data + 5000, found, 100) == 0);
    CHECK(lseek(from, 0, SEEK_CUR) == size && lseek(to, 0, SEEK_CUR) == size);
    if (has_name) {
        /* Within one file, by two descriptors. */
        int again = open(in("to"), O_RDONLY);
        from_at = 0, to_at = size;
        CHECK(again >= 0 && copy_file_range(again, &from_at, to, &to_at, 100, 0) == 100);
        CHECK(pread(to, found, 100, size) == 100 && pread(to, found + 100, 100, 0) == 100);
        CHECK(memcmp(found, found + 100, 100) == 0);
        close(again);
    }
    close(from);
    close(to);
}

int main(int count, char **arguments) {
    (void)count;
    dir = arguments[1];
    /* The library has to find that it is worth it. */
    for (int i = 0; i < 10; i++) {
        close(fresh("warm", O_CLOEXEC));
    }
    int fd = fresh("seen", 0);
    CHECK(write(fd, "abc", 3) == 3);
    same_file(fd, "seen");
    CHECK(without("test \"$(cat seen)\" = abc") == 0);
    same_file(fd, "seen");
    close(fd);

    fd = fresh("flock", O_CLOEXEC);
    CHECK(write(fd, "abc", 3) == 3);
    CHECK(flock(fd, LOCK_EX | LOCK_NB) == 0);
    CHECK(without("! flock -n -x flock true") == 0);
    CHECK(flock(fd, LOCK_UN) == 0);
    CHECK(without("flock -n -x flock true") == 0);
    CHECK(lseek(fd, 0, SEEK_CUR) == 3 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    same_file(fd, "flock");
    close(fd);

    fd = fresh("fcntl", 0);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0);
    pid_t child = fork();
    if (child == 0) {
        int other = open(in("fcntl"), O_RDWR);
        CHECK(other >= 0);
        _exit(fcntl(other, F_SETLK, &lock) == 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(fcntl(fd, F_GETFD) == 0);
    close(fd);

    /* One position for all who share it: dup, fork, vfork and exec. */
    fd = fresh("shared", 0);
    CHECK(write(fd, "1", 1) == 1);
    int again = dup(fd), higher = fcntl(fd, F_DUPFD_CLOEXEC, 200);
    CHECK(higher >= 200 && dup2(fd, 150) == 150);
    CHECK(write(again, "2", 1) == 1 && write(higher, "3", 1) == 1 && write(150, "4", 1) == 1);
    if ((child = fork()) == 0) {
        _exit(write(fd, "5", 1) != 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(again);
    close(higher);
    close(150);
    close(fd);
    fd = fresh("given", 0);
    CHECK(write(fd, "6", 1) == 1);
    char line[64];
    snprintf(line, sizeof line, "printf 7 >&%d", fd);
    if ((child = vfork()) == 0) {
        execlp("env", "env", "-u", "LD_PRELOAD", "sh", "-c", line, (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(write(fd, "8", 1) == 1);
    CHECK(lseek(fd, 0, SEEK_CUR) == 3);
    close(fd);
    CHECK(without("test \"$(cat shared given)\" = 12345678") == 0);

    for (int has_name = 0; has_name < 2; has_name++) {
        copies(has_name, 10000);
        copies(has_name, 300000);
    }

    /* A file without a name stays one file. */
    fd = fresh("gone", 0);
    CHECK(unlink(in("gone")) == 0 && write(fd, "x", 1) == 1);
    if ((child = fork()) == 0) {
        _exit(write(fd, "y", 1) != 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    struct stat stat_now;
    CHECK(fstat(fd, &stat_now) == 0 && stat_now.st_nlink == 0 && stat_now.st_size == 2);
    puts("all as it must be");
    return 0;
}
