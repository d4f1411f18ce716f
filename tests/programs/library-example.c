// A program that is linked with libvellum.so. See include/vellum.h.
#include "vellum.h"
#include <fcntl.h>
#include <stdio.h>

int main(int argc, char **argv) {
    char buf[100];
    struct vellum_counts counts;
    int fd = vellum_open(argc > 1 ? argv[1] : "", O_RDONLY, 0);
    if (fd < 0) { perror("vellum_open"); return 1; }
    for (int i = 0; i < 50; i++)
        if (vellum_pread(fd, buf, sizeof buf, i) != (ssize_t)sizeof buf) { perror("vellum_pread"); return 1; }
    if (vellum_close(fd) != 0) { perror("vellum_close"); return 1; }
    vellum_stats(&counts);
    printf("version %d, served %lu, few %lu\n", VELLUM_VERSION, (unsigned long)counts.served, (unsigned long)counts.few);
    return 0;
}
