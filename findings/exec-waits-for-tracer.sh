#!/bin/bash
# execve(2) in a program with several threads that all have a tracer.
#
# One would guess: the kernel ends the other threads, and the tracer gets the stop for the exec (PTRACE_O_TRACEEXEC) of the thread that it
# waits for. Threads of a program never become zombies that somebody has to wait for.
# What happens: threads that have a tracer do. The exec waits in the kernel until the tracer has waited for each of them; a tracer that waits only for the
# thread which calls execve waits for ever. It gets the stop as soon as it has waited for the others.
# Versions: Linux 6.18, and python3 and gcc of Debian 12 to show it. The kernel is the machine's own, so it is printed.
# Needs apt, or gcc and python3, and to be allowed to trace its own children. Exit status 1: it is not as stated; 77: tracing is not allowed here.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
{ command -v gcc && command -v python3; } > /dev/null || "$here/../scripts/apt" gcc libc6-dev python3 > /dev/null || exit 77
uname -r
gcc --version | head -1
python3 --version
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat > "$work/threads.c" <<'C'
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *sleeper(void *unused) { pause(); return unused; }
int main(void) {
    pthread_t thread;
    char byte;
    if (pthread_create(&thread, NULL, sleeper, NULL)) return 1;
    puts("ready");
    fflush(stdout);
    if (read(0, &byte, 1) != 1) return 1;
    execl("/bin/true", "true", NULL);
    return 1;
}
C
gcc -o "$work/threads" "$work/threads.c" -pthread
timeout 60 python3 - "$work/threads" <<'PYTHON'
import ctypes, errno, os, subprocess, sys, time
SEIZE, TRACEEXEC, EVENT_EXEC, WALL = 0x4206, 1 << 4, 4, 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
child = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
threads = sorted(int(name) for name in os.listdir("/proc/%d/task" % child.pid))
other = next(thread for thread in threads if thread != child.pid)
for thread in threads:
    if libc.ptrace(SEIZE, thread, None, TRACEEXEC) != 0:
        sys.exit(77 if ctypes.get_errno() == errno.EPERM else 1)
child.stdin.write(b"x")
child.stdin.flush()
def news(thread):
    return os.waitpid(thread, WALL | os.WNOHANG)
end = time.monotonic() + 3
early = False
while time.monotonic() < end:
    early = early or news(child.pid)[0] != 0
    time.sleep(0.01)
print("3 s, waiting for the thread that calls execve: %s" % ("it has stopped" if early else "nothing"))
ended, status = news(other)
print("the other thread:", "ended, and was not waited for before" if ended == other and not os.WIFSTOPPED(status) else "nothing")
began = time.monotonic()
stopped, status = os.waitpid(child.pid, WALL)
event = status >> 16
print("then the stop for the exec came after %.3f s" % (time.monotonic() - began))
child.kill()
assert not early and ended == other and event == EVENT_EXEC, "not as stated"
PYTHON
echo "as stated"
