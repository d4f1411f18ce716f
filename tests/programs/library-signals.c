// The program's own handlers of SIGBUS and SIGSEGV are as without the library.
#include "library.h"

static sigjmp_buf back;
static volatile int seen, value;
static void own(int signal, siginfo_t *info, void *context) {
    (void)context; seen = signal; value = info->si_code; siglongjmp(back, 1);
}
static void simple(int signal) { seen = signal; siglongjmp(back, 1); }
static void counting(int signal) { seen += signal; }

static int fault(volatile char *at) { seen = 0; if (sigsetjmp(back, 1) == 0) { *at; } return seen; }

static void is(int signal, void *handler, int flags) {
    struct sigaction now;
    ENSURE(sigaction(signal, 0, &now) == 0, "sigaction");
    ENSURE((void *)now.sa_sigaction == handler, "another handler of signal %d is told", signal);
    ENSURE((now.sa_flags & (SA_SIGINFO | SA_NODEFER | SA_RESTART)) == flags, "other flags of signal %d: %x", signal, now.sa_flags);
}

static int killed_by(void (*what)(void)) {
    pid_t child = fork();
    if (child == 0) { what(); _exit(0); }
    int status; waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

static char *beyond, *nothing = (char *)16;
static void touch_beyond(void) { *(volatile char *)beyond; }
static void touch_nothing(void) { *(volatile char *)nothing; }
static void raise_bus(void) { raise(SIGBUS); }

int main(int argc, char **argv) {
    ENSURE(argc == 2, "FILE");
    make(argv[1], 1, 64); sync();
    struct sigaction set = {0};
    set.sa_sigaction = own; set.sa_flags = SA_SIGINFO | SA_NODEFER;
    // Set before the library's first mapping.
    ENSURE(sigaction(SIGBUS, &set, 0) == 0, "sigaction");
    is(SIGSEGV, SIG_DFL, 0);
    int fd = open(argv[1], O_RDWR);
    ENSURE(reads(fd) == 1, "reads");
    is(SIGBUS, (void *)own, SA_SIGINFO | SA_NODEFER); is(SIGSEGV, SIG_DFL, 0);
    // A mapping of the program's own, beyond the end of a file.
    FILE *f = tmpfile(); ENSURE(f, "tmpfile"); ENSURE(ftruncate(fileno(f), 100) == 0, "ftruncate");
    beyond = mmap(0, 8192, PROT_READ, MAP_SHARED, fileno(f), 0); ENSURE(beyond != MAP_FAILED, "mmap"); beyond += 4096;
    ENSURE(fault(beyond) == SIGBUS && value == BUS_ADRERR, "SIGBUS: %d", seen);
    ENSURE(pread(fd, nothing, BLOCK, 0) == -1 && errno == EFAULT, "a buffer that is not there");
    ENSURE(pread(fd, beyond, BLOCK, 0) == -1 && errno == EFAULT, "a buffer beyond a file's end");
    ENSURE(killed_by(touch_nothing) == SIGSEGV, "SIGSEGV without a handler");
    // Set while the library has mappings.
    set.sa_flags = SA_SIGINFO;
    struct sigaction old;
    ENSURE(sigaction(SIGSEGV, &set, &old) == 0 && old.sa_handler == SIG_DFL, "sigaction");
    is(SIGSEGV, (void *)own, SA_SIGINFO);
    ENSURE(fault(nothing) == SIGSEGV && value == SEGV_MAPERR, "SIGSEGV: %d", seen);
    ENSURE(pread(fd, nothing, BLOCK, 0) == -1 && errno == EFAULT, "a buffer that is not there");
    ENSURE(signal(SIGBUS, simple) == (void (*)(int))own, "signal");
    is(SIGBUS, (void *)simple, SA_RESTART);
    ENSURE(fault(beyond) == SIGBUS, "SIGBUS to a simple handler");
    ENSURE(signal(SIGBUS, counting) == simple, "signal");
    seen = 0; raise(SIGBUS); raise(SIGBUS); ENSURE(seen == 2 * SIGBUS, "raised");
    ENSURE(signal(SIGBUS, SIG_IGN) == counting, "signal");
    raise(SIGBUS);
    ENSURE(killed_by(touch_beyond) == SIGBUS, "a fault is not ignored");
    ENSURE(signal(SIGBUS, SIG_DFL) == SIG_IGN, "signal");
    ENSURE(killed_by(touch_beyond) == SIGBUS && killed_by(raise_bus) == SIGBUS, "the default");
    // Only once.
    set.sa_handler = counting; set.sa_flags = SA_RESETHAND; seen = 0;
    sigaction(SIGBUS, &set, 0); raise(SIGBUS); ENSURE(seen == SIGBUS, "raised");
    is(SIGBUS, SIG_DFL, 0);
    // Blocked, a fault would be the end: reads go to the kernel then.
    sigset_t all; sigfillset(&all); pthread_sigmask(SIG_SETMASK, &all, 0);
    ENSURE(reads(fd) == 1, "with all signals blocked");
    ENSURE(pread(fd, nothing, BLOCK, 0) == -1 && errno == EFAULT, "a buffer that is not there, with all signals blocked");
    return 0;
}
