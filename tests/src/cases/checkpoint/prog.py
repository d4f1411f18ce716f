"""Counts by all that a process may hold: each number passes through a socket, a shared mapping, and files."""
import mmap
import os
import signal
import socket
import time

signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
SIZE, LAST = 300000, 9 * 299999
nameless = open("/srv/gone", "w+b")
nameless.write(b"unlinked " * SIZE)
nameless.flush()
os.unlink("/srv/gone")
shared = open("/srv/shared", "w+b")
shared.truncate(1 << 20)
mapped = mmap.mmap(shared.fileno(), 1 << 20)
between = mmap.mmap(-1, 1 << 16)
here, there = socket.socketpair()
partial = open("/srv/big", "r+b")
if os.fork() == 0:
    while text := there.recv(100):
        between[0:8] = (int.from_bytes(between[0:8], "little") + 1).to_bytes(8, "little")
        there.send(text)
    os._exit(0)
number = 0
while True:
    number += 1
    text = b"%08d" % number
    here.send(text)
    assert here.recv(100) == text
    assert int.from_bytes(between[0:8], "little") == number
    assert mapped[0] == (number - 1) % 256
    mapped[0] = number % 256
    if number > 1:
        partial.seek(8192 * ((number - 1) % 256))
        assert partial.read(8) == b"%08d" % (number - 1)
    partial.seek(8192 * (number % 256))
    partial.write(text)
    partial.flush()
    nameless.seek(0)
    nameless.write(text)
    nameless.seek(LAST)
    assert nameless.read(9) == b"unlinked "
    print(number, flush=True)
    time.sleep(0.05)
