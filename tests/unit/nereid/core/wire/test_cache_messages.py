"""Lookups, stores and results as frames."""

from hypothesis import given
from hypothesis import strategies as st

from nereid.core.wire.cache_messages import (
    CacheLookup,
    CacheReply,
    CacheReplyCodec,
    CacheRequest,
    CacheRequestCodec,
    CacheStore,
    CacheUsage,
    LookupResult,
)

numbers = st.integers(0, 2**64 - 1)
lookups = st.builds(CacheLookup, numbers, st.binary(), st.binary())
stores = st.builds(CacheStore, st.binary(), st.binary(), numbers, st.binary())
results = st.builds(LookupResult, numbers, st.none() | st.binary())


@given(st.lists(lookups), st.lists(stores))
def test_lookups_and_stores_survive_the_wire(
    looked_up: list[CacheRequest], stored: list[CacheRequest]
) -> None:
    codec = CacheRequestCodec()
    assert codec.decode(codec.encode([*stored, *looked_up])) == [*looked_up, *stored]


@given(st.lists(results))
def test_results_survive_the_wire(found: list[CacheReply]) -> None:
    codec = CacheReplyCodec()
    usage = CacheUsage(entries=1, used_bytes=2, lookup_ns=3, failures=2**40)
    assert codec.decode(codec.encode([usage, *found])) == [*found, usage]
    assert codec.decode(codec.encode(found)) == found


def test_sizes_count_keys_and_values() -> None:
    assert CacheRequestCodec().size_bytes(CacheStore(b"k", b"value")) == 6
    assert CacheRequestCodec().size_bytes(CacheLookup(1, b"key")) == 3
    assert CacheReplyCodec().size_bytes(LookupResult(1, b"value")) == 5
    assert CacheReplyCodec().size_bytes(LookupResult(1, None)) == 0
    assert CacheReplyCodec().size_bytes(CacheUsage()) == 0
