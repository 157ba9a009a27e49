"""The spans of traced lookups and stores, and of no others."""

import asyncio

from nereid.core.wire.cache_messages import (
    CacheLookup,
    CacheReply,
    CacheRequest,
    CacheStore,
    CacheUsage,
    LookupResult,
)
from nereid.rpc import Link, memory_links
from nereid_cache.memory_store import MemoryStore
from nereid_cache.service import CacheService
from tests.support.peers.spans import RecordedSpans


def context(number: int) -> bytes:
    return b"\0" + bytes([number]) * 24 + b"\1"


async def test_each_traced_item_has_a_span_below_its_requests() -> None:
    tracer = RecordedSpans()
    service = CacheService(MemoryStore(1024), tracer)
    near: Link[CacheRequest]
    far: Link[CacheReply]
    near, far = memory_links()
    found: list[CacheReply] = []
    near.on_items = found.extend
    service.attach(far)

    async def send(*items: CacheRequest) -> None:
        for item in items:
            near.send(item)
        while near.pending or far.pending:
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    await send(CacheLookup(1, b"a"), CacheStore(b"b", b"1"))
    assert tracer.spans == []
    await send(
        CacheLookup(2, b"nothing", context(2)),
        CacheLookup(3, b"b"),
        CacheLookup(4, b"b", context(4)),
        CacheStore(b"a", b"2", trace_context=context(5)),
        CacheStore(b"large", b"x" * 2048, trace_context=context(6)),
        CacheStore(b"c", b"3"),
    )
    recorded = [
        (span.name, span.parent, dict(span.attributes), span.context[1:17] == span.parent[1:17])
        for span in tracer.spans
    ]
    assert recorded == [
        ("lookup", context(2), {"nereid.cache.hit": False}, True),
        ("lookup", context(4), {"nereid.cache.hit": True}, True),
        ("store", context(5), {"nereid.cache.kept": True}, True),
        ("store", context(6), {"nereid.cache.kept": False}, True),
    ]
    assert all(span.start_ns <= span.end_ns for span in tracer.spans)
    results = [each for each in found if not isinstance(each, CacheUsage)]
    assert results == [
        LookupResult(1, None),
        LookupResult(2, None),
        LookupResult(3, b"1"),
        LookupResult(4, b"1"),
    ]
    assert not tracer.closed
    await service.close()
    assert tracer.closed
