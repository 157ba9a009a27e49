"""The spans of traced lookups and stores, and of no others."""

import asyncio

from nereid.core.cache_messages import CacheUsage, Finding, FromCache, Lookup, Store, ToCache
from nereid.rpc import Link, memory_links
from nereid.services.cache.memory_store import MemoryStore
from nereid.services.cache.service import CacheService
from tests.support.peers.spans import KeptSpans


def context(number: int) -> bytes:
    return b"\0" + bytes([number]) * 24 + b"\1"


async def test_each_traced_item_has_a_span_below_its_requests() -> None:
    tracer = KeptSpans()
    service = CacheService(MemoryStore(1024), tracer)
    near: Link[ToCache]
    far: Link[FromCache]
    near, far = memory_links()
    found: list[FromCache] = []
    near.on_items = found.extend
    service.attach(far)

    async def send(*items: ToCache) -> None:
        for item in items:
            near.send(item)
        while near.pending or far.pending:
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    await send(Lookup(1, b"a"), Store(b"b", b"1"))
    assert tracer.spans == []
    await send(
        Lookup(2, b"nothing", context(2)),
        Lookup(3, b"b"),
        Lookup(4, b"b", context(4)),
        Store(b"a", b"2", trace_context=context(5)),
        Store(b"large", b"x" * 2048, trace_context=context(6)),
        Store(b"c", b"3"),
    )
    recorded = [
        (span.name, span.parent, dict(span.attributes), span.context[1:17] == span.parent[1:17])
        for span in tracer.spans
    ]
    assert recorded == [
        ("lookup", context(2), {"hit": False}, True),
        ("lookup", context(4), {"hit": True}, True),
        ("store", context(5), {"kept": True}, True),
        ("store", context(6), {"kept": False}, True),
    ]
    assert all(span.start_ns <= span.end_ns for span in tracer.spans)
    results = [each for each in found if not isinstance(each, CacheUsage)]
    assert results == [Finding(1, None), Finding(2, None), Finding(3, b"1"), Finding(4, b"1")]
    assert not tracer.closed
    await service.close()
    assert tracer.closed
