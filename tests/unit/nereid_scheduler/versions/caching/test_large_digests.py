"""Requests that are too large to digest in the event loop: they alone wait for a thread."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from nereid.core.errors import Unavailable
from nereid.shm.segments import SegmentPool
from tests.support.scheduler.cached_model import LIMIT_S, ORDERED, CachedModel, turn
from tests.support.waiting import until

# Large enough to be digested by a thread.
LARGE = b"d" * ((1 << 20) + 1)


@contextlib.contextmanager
def blocked_digests(it: CachedModel) -> Iterator[None]:
    """No digest is computed in a thread until the block ends."""
    gate = threading.Event()
    held = [it.client.threads.submit(gate.wait, LIMIT_S) for _ in range(2)]
    try:
        yield
    finally:
        gate.set()
    assert all(each.result() for each in held)


@pytest.fixture
async def it() -> AsyncIterator[CachedModel]:
    made = CachedModel()
    yield made
    await made.end()


async def test_others_are_responded_while_a_large_request_is_digested(it: CachedModel) -> None:
    with blocked_digests(it):
        large = it.submit_large(1, LARGE).request
        it.submit(2)
        it.link.send_results(None)
        assert await it.execute() == 1
        assert set(it.responses) == {2}
        assert large.digest == b""
    await until(lambda: len(it.link.lookups()) == 2)
    it.link.send_results(None)
    assert await it.execute() == 1
    assert it.responses[1].payloads == [LARGE]
    # The digest alone finds it again.
    await until(lambda: len(it.link.stores()) == 2)
    it.submit_large(3, LARGE, digest=large.digest)
    it.link.send_results(it.link.stores()[1].value)
    await until(lambda: 3 in it.responses)
    assert it.responses[3].payloads == [LARGE]


async def test_large_identical_requests_run_once(it: CachedModel) -> None:
    entries = [it.submit_large(number, LARGE) for number in range(5)]
    await until(
        lambda: len({each.cache_lookup and each.cache_lookup.flight for each in entries}) == 1
    )
    assert len(it.link.lookups()) == 1
    it.link.send_results(None)
    assert await it.execute() == 1
    assert {n: response.head for n, response in it.responses.items()} == dict.fromkeys(
        range(5), b"head"
    )
    assert it.counts() == (1, 1, 5, 4, 1)


async def test_responses_keep_their_order_however_long_a_digest_takes() -> None:
    it = CachedModel(config=ORDERED)
    with blocked_digests(it):
        it.submit_large(1, LARGE)
        it.submit_large(2, b"d")
        it.link.send_results(None)
        assert await it.execute() == 1
        assert it.responses == {}
    await until(lambda: len(it.link.lookups()) == 2)
    it.link.send_results(None)
    assert await it.execute() == 1
    assert list(it.responses) == [1, 2]
    await it.end()


@pytest.mark.parametrize("end", ["cancelled", "deadline", "model failed"])
async def test_a_large_request_that_ends_before_it_is_digested_ends_once(
    it: CachedModel, end: str
) -> None:
    with blocked_digests(it):
        soon = asyncio.get_running_loop().time() + 0.2
        entry = it.submit_large(1, LARGE, deadline=soon if end == "deadline" else None)
        if end == "cancelled":
            it.model.cancel(entry)
        elif end == "deadline":
            await until(lambda: it.responses)
        else:
            it.model.fail_all(Unavailable("over"))
    it.client.threads.shutdown()
    await turn()
    assert len(it.responses) == (end != "cancelled")
    assert it.model.statistics.fail.count == 1
    assert it.link.sent == []
    assert it.stream.sent == []


@pytest.mark.parametrize("why", ["data lost", "not cached any more", "closed"])
async def test_a_large_request_without_a_key_runs(it: CachedModel, why: str) -> None:
    segments = SegmentPool(1 << 24)
    segment = segments.acquire_segment(len(LARGE))
    assert segment is not None
    with blocked_digests(it):
        it.submit_large(1, segment.range(0, len(LARGE)))
        if why == "data lost":
            segments.discard(segment.name)
        elif why == "not cached any more":
            it.cache.set_revision(1, None)
        else:
            it.client.close()
    await until(lambda: it.stream.sent)
    assert await it.execute() == 1
    assert it.texts() == {1: ""}
    assert it.link.sent == []
    assert it.counts() == (1, 1, 1, 0, 0)


@pytest.mark.parametrize("key", [True, False])
async def test_a_large_request_that_would_deadlock_is_refused(it: CachedModel, key: bool) -> None:
    def refuse() -> None:
        raise Unavailable("for ever", accepted=True)

    it.submit_large(1, LARGE)
    await until(it.link.lookups)
    it.link.send_results(None)
    await turn()
    with blocked_digests(it):
        stuck = it.submit_large(2, LARGE, caller=7)
        assert stuck.cache_lookup is not None
        stuck.cache_lookup.on_queued = refuse
        if not key:
            it.cache.set_revision(1, None)
    await until(lambda: it.responses)
    assert it.texts() == {2: "for ever"}
    assert await it.execute() == 1
