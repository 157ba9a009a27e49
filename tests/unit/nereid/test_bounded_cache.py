"""A memo table that starts anew when it is full."""

from __future__ import annotations

from nereid.bounded_cache import BoundedCache


def test_a_full_table_starts_anew() -> None:
    cache = BoundedCache[bytes, int](2)
    assert [cache.remember(key, size) for size, key in enumerate((b"a", b"b"))] == [0, 1]
    assert cache == {b"a": 0, b"b": 1}
    assert cache.get(b"a") == 0
    assert cache.get(b"c") is None
    cache.remember(b"c", 2)
    assert cache == {b"c": 2}


def test_an_entry_that_is_there_is_replaced() -> None:
    cache = BoundedCache[str, int](2)
    for key, value in (("a", 1), ("b", 2), ("a", 3)):
        cache.remember(key, value)
    assert cache == {"a": 3, "b": 2}


def test_long_keys_are_not_remembered() -> None:
    cache = BoundedCache[bytes, str](2, max_key_bytes=3)
    assert cache.remember(b"long", "value") == "value"
    assert cache == {}
    cache.remember(b"key", "value")
    assert cache == {b"key": "value"}


def test_long_keys_fill_a_table_sooner() -> None:
    cache = BoundedCache[bytes, int](100, max_total_bytes=10)
    for number in range(4):
        cache.remember(b"key%d" % number, number)
    # The third would have been too much.
    assert cache == {b"key2": 2, b"key3": 3}
    for _ in range(5):
        cache.remember(b"key3", 4)
    assert cache == {b"key2": 2, b"key3": 4}


def test_all_texts_of_a_key_count() -> None:
    cache = BoundedCache[tuple[object, ...], int](100, max_total_bytes=10)
    cache.remember((b"1234", ("56", 7, None)), 1)
    cache.remember((b"1234",), 2)
    assert len(cache) == 2
    cache.remember(("1",), 3)
    assert cache == {("1",): 3}
