/* libvellum: reads of cached files on a Vellum mount without a system call. Link with -lvellum, or preload the library and change
 * nothing. The descriptors are the kernel's own: every call that takes one takes these. */
#ifndef VELLUM_H
#define VELLUM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VELLUM_VERSION 3

/* As open(2), pread(2) and close(2). What another call closes or changes is noticed as with these. */
int vellum_open(const char *path, int flags, mode_t mode);
ssize_t vellum_pread(int fd, void *buf, size_t len, off_t offset);
int vellum_close(int fd);

/* Reads at an offset by this process since its first vellum_open: from mappings, and by the kernel for each reason. */
struct vellum_counts {
    uint64_t served;     /* from mappings */
    uint64_t bytes;      /* bytes of these */
    uint64_t not_vellum; /* not a file of a Vellum mount in a pool */
    uint64_t few;        /* too few reads of the descriptor so far */
    uint64_t beyond;     /* not wholly within the file's size when it was mapped */
    uint64_t changed;    /* the file may have become shorter */
    uint64_t no_socket;  /* the pool's socket for programs is not there */
    uint64_t other;
    /* Calls that could go to the pool's service without the kernel: those that did, and those that were the kernel's after all.
     * Since the second version of this header. */
    uint64_t opens[2];
    uint64_t reserved[4]; /* 0; in the second version lookups and removals */
};
void vellum_stats(struct vellum_counts *counts);

#ifdef __cplusplus
}
#endif

#endif
