"""Inflation within bounds, and the turns that clients take."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.rpc.net.inflation import (
    InflatedTooLargeError,
    Inflation,
    InflationLimits,
)
from nereid.rpc.net.zlib_queue import ZlibQueue

GZIP, EITHER = 31, 47
MIB = 1 << 20


def inflation_of(data: bytes, max_bytes: int = 1 << 30, ratio: float | None = None) -> Inflation:
    return Inflation(data, GZIP, InflationLimits(max_bytes=max_bytes, max_ratio=ratio))


def inflated(inflation: Inflation, slice_bytes: int = MIB) -> bytes:
    while not inflation.done:
        before = inflation.inflated_bytes
        inflation.inflate(slice_bytes)
        assert inflation.inflated_bytes - before <= slice_bytes
    return inflation.content()


@pytest.mark.parametrize("size", [0, 1, 65_536, 300_000])
@pytest.mark.parametrize("slice_bytes", [1000, MIB])
def test_any_slice_gives_the_same(size: int, slice_bytes: int) -> None:
    for content in (bytes(size), os.urandom(size)):
        inflation = inflation_of(gzip.compress(content), size)
        assert inflated(inflation, slice_bytes) == content
        assert inflation.intact


def test_what_is_cut_off_or_followed_by_more_is_not_intact() -> None:
    packed = gzip.compress(bytes(200_000))
    for damaged in (packed[:-1], packed + b"more", packed + bytes(100_000)):
        inflation = inflation_of(damaged)
        assert inflated(inflation) == bytes(200_000)
        assert not inflation.intact
    with pytest.raises(zlib.error):
        inflation_of(b"rubbish").inflate()


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
@pytest.mark.parametrize("size", [1, 40_000, 200_000])
@pytest.mark.parametrize("behind", [b"", b"more"])
def test_all_before_a_wrong_checksum_is_kept(
    pack: Callable[[bytes], bytes], size: int, behind: bytes
) -> None:
    content = os.urandom(size)
    end = 8 if pack is gzip.compress else 4
    damaged = pack(content)[:-end] + bytes(end) + behind
    limits = InflationLimits(max_bytes=size)
    inflation = Inflation(damaged, EITHER, limits)
    with pytest.raises(zlib.error, match="incorrect data check"):
        inflated(inflation)
    assert inflation.content() == content
    assert inflation.done
    with pytest.raises(InflatedTooLargeError):
        inflated(Inflation(damaged, EITHER, InflationLimits(max_bytes=size - 1)))


@given(st.binary(min_size=1, max_size=2000), st.data())
def test_what_comes_before_any_damage_is_kept(content: bytes, data: st.DataObject) -> None:
    packed = bytearray(zlib.compress(content, data.draw(st.sampled_from([0, 1, 9]))))
    at = data.draw(st.integers(2, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    whole = b""
    stream = zlib.decompressobj()
    with contextlib.suppress(zlib.error):
        for each in packed:
            whole += stream.decompress(bytes([each]))
    inflation = Inflation(bytes(packed), EITHER, InflationLimits(max_bytes=1 << 20))
    with contextlib.suppress(zlib.error):
        inflated(inflation)
    assert inflation.content() == whole


def test_the_largest_size_stops_it_in_time() -> None:
    inflation = inflation_of(gzip.compress(bytes(50 * MIB)), 3 * MIB)
    with pytest.raises(InflatedTooLargeError):
        inflated(inflation)
    assert inflation.inflated_bytes <= 4 * MIB


def test_the_largest_ratio_holds_past_the_first_64_mib() -> None:
    packed = gzip.compress(bytes(65 * MIB), 9)
    assert len(packed) < 100_000
    inflation = inflation_of(packed, ratio=10)
    with pytest.raises(InflatedTooLargeError):
        inflated(inflation)
    assert 64 * MIB < inflation.inflated_bytes <= 65 * MIB
    small = gzip.compress(bytes(64 * MIB), 9)
    assert len(inflated(inflation_of(small, ratio=10))) == 64 * MIB


async def test_clients_take_turns_and_one_client_has_one_at_a_time() -> None:
    queue = ZlibQueue()
    turns: list[str] = []

    async def run(client: str, size: int) -> bytes:
        inflation = inflation_of(gzip.compress(bytes(size)))
        await queue.inflate(client, inflation, lambda _: turns.append(client))
        return inflation.content()

    greedy = [asyncio.create_task(run("greedy", 8 * MIB)) for _ in range(4)]
    await asyncio.sleep(0)
    assert await run("modest", 2 * MIB) == bytes(2 * MIB)
    # Between any two of the modest client's slices there was at most one of the other's.
    assert turns.count("modest") >= 2
    assert turns.count("greedy") <= turns.count("modest") + 2
    assert [len(content) for content in await asyncio.gather(*greedy)] == [8 * MIB] * 4
    queue.close()


async def test_an_inflation_that_is_cancelled_passes_its_turn_on() -> None:
    queue = ZlibQueue()
    packed = gzip.compress(bytes(4 * MIB))
    tasks = [
        asyncio.create_task(queue.inflate(client, inflation_of(packed), lambda _: None))
        for client in "aabb"
    ]
    await asyncio.sleep(0)
    for task in tasks[:3]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not tasks[3].cancelled()
    last = inflation_of(packed)
    await queue.inflate("c", last, lambda _: None)
    assert last.content() == bytes(4 * MIB)
    queue.close()


async def test_what_may_not_be_held_ends_the_inflation() -> None:
    queue = ZlibQueue()
    inflation = inflation_of(gzip.compress(bytes(50 * MIB)))
    held = 0

    def hold(size_bytes: int) -> None:
        nonlocal held
        held += size_bytes
        if held > 3 * MIB:
            raise MemoryError

    with pytest.raises(MemoryError):
        await queue.inflate("a", inflation, hold)
    assert inflation.inflated_bytes == held <= 4 * MIB
    queue.close()


@pytest.mark.parametrize("slice_bytes", [1000, MIB])
def test_all_members_of_a_gzip_content_are_read(slice_bytes: int) -> None:
    parts = [b"first", b"", os.urandom(100_000), bytes(300_000), b"last"]
    inflation = inflation_of(b"".join(map(gzip.compress, parts)))
    assert inflated(inflation, slice_bytes) == b"".join(parts)
    assert inflation.intact


def test_limits_hold_for_all_members_together() -> None:
    data = gzip.compress(bytes(MIB)) * 4
    assert inflated(inflation_of(data, 4 * MIB)) == bytes(4 * MIB)
    with pytest.raises(InflatedTooLargeError):
        inflated(inflation_of(data, 4 * MIB - 1))


def test_what_follows_is_no_member_of_another_format() -> None:
    limits = InflationLimits(max_bytes=MIB)
    for data, bits in (
        (zlib.compress(b"one") * 2, zlib.MAX_WBITS),
        (zlib.compress(b"one") + gzip.compress(b"two"), 47),
        (gzip.compress(b"one") + zlib.compress(b"two"), 47),
    ):
        inflation = Inflation(data, bits, limits)
        assert inflated(inflation) == b"one"
        assert not inflation.intact
    damaged = inflation_of(gzip.compress(b"one") + b"\x1f\x8brubbish")
    with pytest.raises(zlib.error):
        inflated(damaged)
    assert damaged.content() == b"one"


def test_many_empty_members_take_turns() -> None:
    inflation = inflation_of(gzip.compress(b"") * 5000)
    slices = 0
    while not inflation.done:
        inflation.inflate(MIB)
        slices += 1
    assert slices > 10
    assert inflation.intact
