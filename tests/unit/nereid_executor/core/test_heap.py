"""Freed memory goes back to the system, rarely or at once."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading

import pytest

from nereid_executor.core.heap import HeapTrim, trim_heap
from nereid_executor.core.load_memory import process_bytes

glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc's malloc"
)


@glibc
def test_what_c_code_has_freed_goes_back_to_the_system() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    size, count = 64 << 10, 1024
    chunks = [libc.malloc(size) for _ in range(count)]
    for each in chunks:
        ctypes.memset(each, 1, size)
    # The last one keeps the heap from shrinking by itself.
    for each in chunks[:-1]:
        libc.free(each)
    before = process_bytes()
    trim_heap()
    assert before - process_bytes() > count * size // 2
    libc.free(chunks[-1])


def test_much_freed_memory_goes_back_at_once() -> None:
    trims: list[str] = []
    heap = HeapTrim(lambda: trims.append(threading.current_thread().name), interval_s=60)
    heap.on_freed(60 << 20)
    assert not trims
    heap.on_freed(4 << 20)
    assert trims == [threading.current_thread().name]
    # Counted from zero again.
    heap.on_freed(60 << 20)
    assert len(trims) == 1


def test_little_freed_memory_goes_back_in_the_end_all_of_it_together() -> None:
    trims: list[str] = []
    trimmed = threading.Event()

    def trim() -> None:
        trims.append("")
        trimmed.set()

    heap = HeapTrim(trim, interval_s=0.5)
    for _ in range(10):
        # Of a load that failed, nobody knows how much.
        heap.on_freed(0)
    assert trimmed.wait(30)
    assert len(trims) == 1
    trimmed.clear()
    heap.on_freed(1)
    assert trimmed.wait(30)


@glibc
def test_arenas_are_limited() -> None:
    code = """
import ctypes, sys, threading
from nereid_executor.core.heap import limit_arenas
limit_arenas(1)
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
found = []
for _ in range(8):
    thread = threading.Thread(target=lambda: found.append(libc.malloc(4096)))
    thread.start()
    thread.join()
heap = next(line for line in open("/proc/self/maps") if "[heap]" in line).split()[0]
first, last = (int(each, 16) for each in heap.split("-"))
assert all(first <= each < last for each in found), (heap, found)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
