"""Lookups, stores and results as frames."""

from hypothesis import given
from hypothesis import strategies as st

from nereid.core.cache_messages import (
    CacheUsage,
    Finding,
    FromCache,
    FromCacheCodec,
    Lookup,
    Store,
    ToCache,
    ToCacheCodec,
)

numbers = st.integers(0, 2**64 - 1)
lookups = st.builds(Lookup, numbers, st.binary(), st.binary())
stores = st.builds(Store, st.binary(), st.binary(), numbers, st.binary())
results = st.builds(Finding, numbers, st.none() | st.binary())


@given(st.lists(lookups), st.lists(stores))
def test_lookups_and_stores_survive_the_wire(
    looked_up: list[ToCache], stored: list[ToCache]
) -> None:
    codec = ToCacheCodec()
    assert codec.decode(codec.encode([*stored, *looked_up])) == [*looked_up, *stored]


@given(st.lists(results))
def test_results_survive_the_wire(found: list[FromCache]) -> None:
    codec = FromCacheCodec()
    usage = CacheUsage(entries=1, used_bytes=2, lookup_ns=3, failures=2**40)
    assert codec.decode(codec.encode([usage, *found])) == [*found, usage]
    assert codec.decode(codec.encode(found)) == found


def test_sizes_count_keys_and_values() -> None:
    assert ToCacheCodec().size_bytes(Store(b"k", b"value")) == 6
    assert ToCacheCodec().size_bytes(Lookup(1, b"key")) == 3
    assert FromCacheCodec().size_bytes(Finding(1, b"value")) == 5
    assert FromCacheCodec().size_bytes(Finding(1, None)) == 0
    assert FromCacheCodec().size_bytes(CacheUsage()) == 0
