"""What is freed goes back to the machine, and threads keep none of it apart."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="it is the allocator of glibc that is held"
)

HOLED = """\
import ctypes
from agents.host import malloc_tuning

library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

blocks = [library.malloc(1000) for _ in range(100_000)]
for block in blocks:
    ctypes.memset(block, 1, 1000)
for number, block in enumerate(blocks):
    if number % 1000:
        library.free(block)  # what stays keeps the heap from being cut at its end
before = rss()
malloc_tuning.give_back()
print(before - rss())
"""

THREADS = """\
import sys, threading
from agents.host import malloc_tuning

if sys.argv[1] == "restrained":
    assert malloc_tuning.restrain()
together = threading.Barrier(8)

def work():
    held = bytes(5000)
    together.wait()

threads = [threading.Thread(target=work) for _ in range(8)]
for one in threads:
    one.start()
for one in threads:
    one.join()
sizes = []
for line in open("/proc/self/maps"):
    first, last = (int(word, 16) for word in line.split()[0].split("-"))
    if "---p" in line and not line.split()[5:]:
        sizes.append(last - first)
print(sum(size > 50 * 2**20 for size in sizes))
"""


def said(script: str, *words: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return int(done.stdout)


def test_what_is_free_between_what_is_kept_is_given_back() -> None:
    assert said(HOLED) > 30 * 2**20


def test_threads_have_no_arenas_of_their_own() -> None:
    assert said(THREADS, "restrained") == 0
