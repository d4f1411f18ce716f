/* Attributes by libc's functions are those that the kernel gives when it is asked for all of them, whatever has happened to the file; run
 * with the mount as the root directory. The arguments are a file, how often it is read (0: it is changed in all ways instead), and whether
 * access times are looked at (1) or not (0). The last line says whether reading has set one. */
#include "library.h"
#include <sys/xattr.h>

static const char *path;
static int with_times;

static int same(struct stat *ours, struct stat *kernel) {
    if (!with_times)
        ours->st_atim = kernel->st_atim;
    return memcmp(ours, kernel, sizeof *ours) == 0;
}

/* By each function, before the kernel is asked for everything. */
static void check(int fd) {
    struct stat by[4], all;
    struct statx extended;
    memset(by, 0, sizeof by);
    memset(&all, 0, sizeof all);
    CHECK(fstat(fd, &by[0]) == 0 && stat(path, &by[1]) == 0 && lstat(path, &by[2]) == 0);
    CHECK(fstatat(fd, "", &by[3], AT_EMPTY_PATH) == 0);
    CHECK(statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &extended) == 0);
    CHECK(syscall(SYS_statx, AT_FDCWD, path, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &(struct statx){0}) == 0);
    CHECK(syscall(SYS_newfstatat, AT_FDCWD, path, &all, 0) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(same(&by[i], &all));
    CHECK(extended.stx_size == (unsigned long long)all.st_size && extended.stx_mode == all.st_mode);
    CHECK(extended.stx_mtime.tv_sec == all.st_mtim.tv_sec && extended.stx_mtime.tv_nsec == all.st_mtim.tv_nsec);
    CHECK(!with_times || extended.stx_atime.tv_sec == all.st_atim.tv_sec);
    CHECK(extended.stx_mask & STATX_ATIME && extended.stx_ino == all.st_ino);
}

/* Names of extended attributes, by libc and by the kernel. */
static void check_names(int fd) {
    char ours[4096], kernel[4096];
    for (int i = 0; i < 4; i++) {
        long len = flistxattr(fd, ours, sizeof ours), expected = syscall(SYS_flistxattr, fd, kernel, sizeof kernel);
        CHECK(len == expected && len >= 0 && memcmp(ours, kernel, len) == 0);
        CHECK(flistxattr(fd, 0, 0) == expected);
    }
}

static void check_names_at(const char *at) {
    char ours[4096], kernel[4096];
    for (int i = 0; i < 4; i++) {
        errno = 0;
        long len = llistxattr(at, ours, sizeof ours);
        int error = errno;
        errno = 0;
        long expected = syscall(SYS_llistxattr, at, kernel, sizeof kernel);
        CHECK(len == expected && error == errno && (len < 0 || memcmp(ours, kernel, len) == 0));
        CHECK(llistxattr(at, 0, 0) == expected);
    }
}

/* Of directories, by their paths. What is below has been there for a while, so that its names are remembered. */
static void check_directories(void) {
    check_names_at("/quiet");
    check_names_at("/named");
    check_names_at("/quiet");
    CHECK(rename("/quiet", "/other") == 0 && rename("/named", "/quiet") == 0 && rename("/other", "/named") == 0);
    check_names_at("/quiet");
    check_names_at("/named");
    CHECK(rename("/quiet", "/other") == 0 && rename("/named", "/quiet") == 0 && rename("/other", "/named") == 0);
    check_names_at("/quiet");
    CHECK(setxattr("/quiet", "user.one", "1", 1, 0) == 0);
    check_names_at("/quiet");
    CHECK(llistxattr("/quiet", (char[4]){0}, 4) == -1 && errno == ERANGE);
    CHECK(removexattr("/quiet", "user.one") == 0);
    check_names_at("/quiet");
    CHECK(symlink("/quiet", "/link") == 0);
    check_names_at("/link");
    check_names_at(path);
    check_names_at("/no/such");
    check_names_at("");
    check_names_at("/proc");
    CHECK(unlink("/link") == 0);
}

static void read_all(int fd) {
    char bytes[4096];
    CHECK(pread(fd, bytes, sizeof bytes, 0) > 0);
}

int main(int count, char **arguments) {
    CHECK(count == 4);
    path = arguments[1];
    with_times = atoi(arguments[3]);
    struct stat at_first, at_last;
    CHECK(stat(path, &at_first) == 0);
    for (int i = atoi(arguments[2]); i > 0; i--) {
        struct stat now;
        struct statx extended;
        int fd = open(path, O_RDONLY);
        CHECK(fd >= 0 && fstat(fd, &now) == 0 && statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &extended) == 0);
        read_all(fd);
        for (int names = 0; names < 4; names++)
            CHECK(flistxattr(fd, 0, 0) == 0);
        CHECK(stat(path, &at_last) == 0 && now.st_ino == at_first.st_ino && extended.stx_ino == now.st_ino);
        close(fd);
    }
    for (int i = atoi(arguments[2]); i > 0; i--)
        CHECK(llistxattr("/quiet", 0, 0) == 0);
    /* To be changed at the end: whoever counts requests has counted them. */
    if (atoi(arguments[2]) == 0) {
        int fd = open(path, O_RDONLY);
        CHECK(fd >= 0);
        check(fd);
        read_all(fd);
        check(fd);
        check_names(fd);
        CHECK(fsetxattr(fd, "user.one", "1", 1, 0) == 0);
        check_names(fd);
        CHECK(removexattr(path, "user.one") == 0);
        check_names(fd);
        CHECK(setxattr(path, "trusted.two", "2", 1, 0) == 0 && seteuid(1000) == 0);
        check_names(fd);
        CHECK(seteuid(0) == 0);
        check_names(fd);
        CHECK(fremovexattr(fd, "trusted.two") == 0);
        check_names(fd);
        CHECK(fchmod(fd, 0604) == 0);
        check(fd);
        struct timespec times[2] = {{12345, 678}, {23456, 789}};
        read_all(fd);
        CHECK(futimens(fd, times) == 0);
        check(fd);
        read_all(fd);
        times[0].tv_sec = 99;
        CHECK(utimensat(AT_FDCWD, path, times, 0) == 0);
        check(fd);
        int writer = open(path, O_WRONLY | O_APPEND);
        CHECK(writer >= 0 && write(writer, "more", 4) == 4);
        check(fd);
        CHECK(write(writer, "still more", 10) == 10);
        read_all(fd);
        check(fd);
        CHECK(close(writer) == 0);
        check(fd);
        CHECK(truncate(path, 3) == 0);
        read_all(fd);
        check(fd);
        CHECK(stat("/no/such", &at_last) == -1 && errno == ENOENT);
        char inside[4096];
        snprintf(inside, sizeof inside, "%s/inside", path);
        CHECK(stat(inside, &at_last) == -1 && errno == ENOTDIR);
        CHECK(stat("/proc/self/stat", &at_last) == 0 || errno == ENOENT);
        CHECK(stat(path, &at_last) == 0);
        check_directories();
    }
    printf("access time %s\n", memcmp(&at_first.st_atim, &at_last.st_atim, sizeof at_first.st_atim) ? "set" : "kept");
    return 0;
}
