/* Executes itself under a filter that ends whoever makes a system call that the filter does not know, and then makes files. The argument
 * is a directory. With a second one, "no-sync", the filter ends whoever syncs a file, and all files are synced. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The last one of Linux 6.1; what is called here has a lower number. */
#define LAST_KNOWN 450

static int filter(int no_sync) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, no_sync ? SYS_fsync : LAST_KNOWN + 1, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, no_sync ? SYS_fdatasync : LAST_KNOWN + 1, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, LAST_KNOWN, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0;
}

int main(int argc, char **argv) {
    int no_sync = argc > 2 && strcmp(argv[2], "no-sync") == 0;
    if (argc == 2 || (no_sync && argc == 3)) {
        if (filter(no_sync) != 0) {
            perror("the filter");
            return 1;
        }
        execl(argv[0], argv[0], argv[1], no_sync ? "no-sync" : "filtered", "filtered", (char *)0);
        perror("exec");
        return 1;
    }
    for (int i = 0; i < 20; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/filtered-%d", argv[1], i);
        int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
        /* The first three are opened through the mount. */
        int synced = no_sync && i > 4 ? fsync(fd) + fdatasync(fd) : 0;
        if (fd < 0 || synced != 0 || write(fd, "x", 1) != 1 || close(fd) != 0) {
            perror(path);
            return 1;
        }
    }
    return 0;
}
