"""The table of least recently used values, bare."""

from hypothesis import given
from hypothesis import strategies as st

from nereid_cache.lru import ENTRY_BYTES, LeastRecentlyUsed

ENTRY_SIZE = ENTRY_BYTES + 2


def test_the_one_used_least_recently_goes_first() -> None:
    table = LeastRecentlyUsed(2 * ENTRY_SIZE)
    assert table.insert(b"a", b"1", None)
    assert table.insert(b"b", b"2", None)
    assert table.get(b"a", 0) == b"1"
    assert table.insert(b"c", b"3", None)
    assert [table.get(key, 0) for key in (b"a", b"b", b"c")] == [b"1", None, b"3"]
    assert (table.evictions, len(table), table.used_bytes) == (1, 2, 2 * ENTRY_SIZE)


def test_a_value_above_the_capacity_is_refused_and_evicts_nothing() -> None:
    table = LeastRecentlyUsed(ENTRY_SIZE)
    table.insert(b"a", b"1", None)
    assert not table.insert(b"b", b"22", None)
    assert table.get(b"a", 0) == b"1"


def test_a_value_expires_at_its_time() -> None:
    table = LeastRecentlyUsed(1000)
    table.insert(b"a", b"1", expires_at_s=10)
    assert table.get(b"a", 9.9) == b"1"
    assert table.get(b"a", 10) is None
    assert (len(table), table.used_bytes) == (0, 0)


keys = st.sampled_from([b"a", b"bb", b"ccc", b"d"])


@given(st.lists(st.tuples(keys, st.none() | st.binary(max_size=300))), st.integers(0, 900))
def test_it_counts_its_bytes_and_never_exceeds_its_capacity(
    steps: list[tuple[bytes, bytes | None]], capacity: int
) -> None:
    table = LeastRecentlyUsed(capacity)
    last: dict[bytes, bytes] = {}
    for key, value in steps:
        if value is None:
            found = table.get(key, 0)
            assert found is None or found == last[key]
        else:
            last[key] = value
            assert table.insert(key, value, None) == (len(key + value) + ENTRY_BYTES <= capacity)
        held = {key: table.get(key, 0) for key in (b"a", b"bb", b"ccc", b"d")}
        sizes = [len(k) + len(v) + ENTRY_BYTES for k, v in held.items() if v is not None]
        assert (table.used_bytes, len(table)) == (sum(sizes), len(sizes))
        assert table.used_bytes <= capacity
