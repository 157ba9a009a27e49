"""Inputs on the device: which are kept, found, dropped."""

from __future__ import annotations

import random

import pytest

from nereid.backends.device_io.buffer_pool import Buffer, size_class
from nereid.backends.device_io.input_cache import CachedInput, InputCache

SIZE = 4096


class Memory:
    def __init__(self) -> None:
        self.held: list[Buffer] = []

    def acquire(self, size_bytes: int) -> Buffer:
        self.held.append(Buffer(len(self.held) + 1, size_class(size_bytes)))
        return self.held[-1]

    def release(self, buffer: Buffer) -> None:
        self.held.remove(buffer)


def content(number: int, size_bytes: int = SIZE) -> bytes:
    return random.Random(number).randbytes(size_bytes)


def make(entries: int = 2, min_bytes: int = 2048) -> tuple[InputCache, Memory]:
    memory = Memory()
    return InputCache(entries * SIZE, min_bytes, memory.acquire, memory.release), memory


def add(cache: InputCache, raw: bytes) -> CachedInput:
    """Have an input kept, and use it no more."""
    assert cache.find_or_add(raw) == (None, False)
    entry, is_new = cache.find_or_add(raw)
    assert entry is not None
    assert is_new
    cache.unpin(entry)
    return entry


def test_an_input_is_kept_from_its_second_time_on() -> None:
    cache, memory = make()
    entry = add(cache, content(1))
    assert entry.buffer in memory.held
    assert cache.find_or_add(content(1)) == (entry, False)
    # From other memory, as a view.
    assert cache.find_or_add(memoryview(bytearray(content(1)))) == (entry, False)
    assert (cache.hits, cache.misses, entry.users) == (2, 2, 2)


def test_what_is_kept_does_not_change_with_the_memory_that_it_came_in() -> None:
    cache, _ = make()
    raw = bytearray(content(1))
    cache.find_or_add(memoryview(raw))
    entry, _ = cache.find_or_add(memoryview(raw))
    raw[:] = content(2)
    assert entry is not None
    assert entry.content == content(1)
    assert cache.find_or_add(memoryview(raw)) == (None, False)


def test_small_and_too_large_inputs_are_not_accepted() -> None:
    cache, _ = make(min_bytes=2048)
    assert [cache.accepts(size) for size in (2047, 2048, 2 * SIZE, 2 * SIZE + 1)] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("changed", [0, 700, SIZE // 2 + 3, SIZE - 1])
def test_inputs_that_differ_in_one_byte_are_two(changed: int) -> None:
    cache, _ = make()
    first = bytearray(content(1))
    entry = add(cache, bytes(first))
    first[changed] ^= 1
    found, _ = cache.find_or_add(bytes(first))
    assert found is None or found is not entry
    assert cache.hits == 0


def test_an_input_with_the_digest_of_another_takes_its_place() -> None:
    cache, memory = make(min_bytes=0)
    # Between two samples.
    first, second = bytearray(SIZE), bytearray(SIZE)
    second[100] = 1
    old = add(cache, bytes(first))
    # The digest has been seen, so it is new at once.
    new, is_new = cache.find_or_add(bytes(second))
    assert new is not None
    assert is_new
    assert new is not old
    assert new.content == second
    assert memory.held == [new.buffer]
    # While it is in use, the first one is not kept again, and does not get the second's bytes.
    assert cache.find_or_add(bytes(first)) == (None, False)
    cache.unpin(new)
    again, is_new = cache.find_or_add(bytes(first))
    assert again is not None
    assert is_new
    assert again.content == first


def test_the_least_recently_used_is_dropped() -> None:
    cache, memory = make(entries=2)
    one, two = add(cache, content(1)), add(cache, content(2))
    entry, _ = cache.find_or_add(content(1))
    assert entry is one
    cache.unpin(one)
    three = add(cache, content(3))
    assert memory.held == [one.buffer, three.buffer]
    assert cache.size_bytes == 2 * SIZE
    assert two.buffer not in memory.held


def test_what_is_in_use_is_not_dropped() -> None:
    cache, memory = make(entries=2)
    one, two = add(cache, content(1)), add(cache, content(2))
    for raw in (content(1), content(2)):
        cache.find_or_add(raw)
    cache.find_or_add(content(3))
    assert cache.find_or_add(content(3)) == (None, False)
    assert memory.held == [one.buffer, two.buffer]
    cache.unpin(two)
    entry, is_new = cache.find_or_add(content(3))
    assert entry is not None
    assert is_new
    assert memory.held == [one.buffer, entry.buffer]


def test_an_entry_that_was_not_filled_is_forgotten() -> None:
    cache, memory = make()
    cache.find_or_add(content(1))
    entry, _ = cache.find_or_add(content(1))
    assert entry is not None
    cache.unpin(entry)
    cache.discard(entry)
    assert memory.held == []
    assert cache.size_bytes == 0
    again, is_new = cache.find_or_add(content(1))
    assert again is not entry
    assert is_new


def test_the_digests_seen_are_bounded() -> None:
    cache, _ = make()
    for number in range(1100):
        cache.find_or_add(content(number, 2048))
    # Long forgotten; the last one is not.
    assert cache.find_or_add(content(0, 2048)) == (None, False)
    assert cache.find_or_add(content(1099, 2048))[1]
