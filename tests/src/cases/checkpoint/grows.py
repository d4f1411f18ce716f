"""Has much memory and a large file, and looks whether all of it is as it was left. Part of an eighth changes at each turn: however long it runs, no more
has changed in the end. While /srv/hold is there nothing changes."""
import hashlib
import mmap
import os
import signal
import time

signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
PAGE, PAGES, BLOCKS = 4096, 12288, 2048
memory = mmap.mmap(-1, PAGE * PAGES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(PAGES):
    memory[page * PAGE:page * PAGE + 16] = b"%016d" % page
    # Half of it does not pack.
    if page % 32 == 0:
        memory[page * PAGE + 16:page * PAGE + 2064] = os.urandom(2048)
file = open("/srv/big", "r+b")
file.seek(0)
for block in range(BLOCKS):
    file.write(b"%016d" % block + bytes([block % 251]) * (PAGE - 16))
file.flush()


def digest(*_):
    whole = hashlib.sha256(memory)
    file.seek(0)
    whole.update(file.read())
    print("digest", whole.hexdigest(), flush=True)


signal.signal(signal.SIGUSR1, digest)
number = 0
pages = list(range(PAGES))
while True:
    number += 1
    for at in range(50):
        page = (number * 7919 + at * 104729) % (PAGES // 8)
        pages[page] = page + number * PAGES
        memory[page * PAGE:page * PAGE + 16] = b"%016d" % pages[page]
    block = number * 31 % (BLOCKS // 8)
    file.seek(block * PAGE + 100)
    file.write(b"%08d" % number)
    file.flush()
    file.seek(block * PAGE)
    assert file.read(16) == b"%016d" % block
    for page in range(number % 64, PAGES, 64):
        assert memory[page * PAGE:page * PAGE + 16] == b"%016d" % pages[page], page
    print(number, flush=True)
    time.sleep(0.05)
    while os.path.exists("/srv/hold"):
        print("holds", flush=True)
        time.sleep(0.05)
