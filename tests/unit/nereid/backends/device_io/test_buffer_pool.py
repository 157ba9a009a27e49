"""Buffers are used again, in size classes, within a bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.backends.device_io.buffer_pool import Buffer, BufferPool, size_class


class Memory:
    """Counts what is allocated; no address is given twice."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.allocations = 0

    def allocate(self, size_bytes: int) -> int:
        self.allocations += 1
        self.live[self.allocations] = size_bytes
        return self.allocations

    def free(self, address: int) -> None:
        del self.live[address]

    def pool(self, max_idle_bytes: int) -> BufferPool:
        return BufferPool(self.allocate, self.free, max_idle_bytes)


@given(st.integers(0, 1 << 40))
def test_a_size_class_wastes_at_most_a_quarter(size_bytes: int) -> None:
    chosen = size_class(size_bytes)
    assert chosen >= max(256, size_bytes)
    assert chosen == 256 or chosen * 4 <= size_bytes * 5
    assert size_class(chosen) == chosen


def test_a_released_buffer_serves_the_next_of_its_class() -> None:
    memory = Memory()
    pool = memory.pool(1 << 20)
    first = pool.acquire(1000)
    second = pool.acquire(1000)
    assert first is not second
    pool.release(first)
    assert pool.acquire(1024) is first
    assert pool.acquire(2000) not in (first, second)
    assert memory.allocations == 3
    assert (pool.used_bytes, pool.idle_bytes) == (1024 + 1024 + 2048, 0)


def test_what_is_idle_is_bounded_and_the_oldest_class_goes_first() -> None:
    memory = Memory()
    pool = memory.pool(3000)
    small, large, larger = pool.acquire(1024), pool.acquire(1500), pool.acquire(9000)
    for buffer in (small, large, larger):
        pool.release(buffer)
    # The last is larger than the bound, and is not kept.
    assert sorted(memory.live.values()) == [1024, 1536]
    second = pool.acquire(1024)
    third = pool.acquire(1024)
    assert second is small
    pool.release(second)
    pool.release(third)
    assert sorted(memory.live.values()) == [1024, 1024]
    assert pool.idle_bytes == 2048


def test_a_buffer_is_released_once() -> None:
    pool = Memory().pool(1 << 20)
    buffer = pool.acquire(1)
    pool.release(buffer)
    with pytest.raises(KeyError):
        pool.release(buffer)


@given(
    st.integers(0, 1 << 14),
    st.lists(st.tuples(st.booleans(), st.integers(0, 1 << 13)), max_size=60),
)
def test_no_buffer_has_two_owners_and_all_memory_is_freed(
    max_idle_bytes: int, steps: list[tuple[bool, int]]
) -> None:
    memory = Memory()
    pool = memory.pool(max_idle_bytes)
    held: list[Buffer] = []
    for acquires, number in steps:
        if acquires:
            buffer = pool.acquire(number)
            assert buffer not in held
            assert buffer.size_bytes >= number
            assert memory.live[buffer.address] == buffer.size_bytes
            held.append(buffer)
        elif held:
            pool.release(held.pop(number % len(held)))
        assert pool.idle_bytes <= max_idle_bytes
        assert pool.used_bytes == sum(each.size_bytes for each in held)
        assert sum(memory.live.values()) == pool.idle_bytes + pool.used_bytes
    pool.close()
    assert not memory.live
