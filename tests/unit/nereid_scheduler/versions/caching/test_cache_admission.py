"""What enters a full cache, and what does not."""

from nereid.core.wire.cache_messages import CacheUsage
from nereid_scheduler.versions.caching.cache_admission import CacheAdmission

FULL = CacheUsage(capacity_bytes=100, used_bytes=100)


def test_all_enters_where_the_capacity_is_unknown() -> None:
    assert CacheAdmission().admit(b"a", 1 << 40, CacheUsage())


def test_what_fits_enters_at_once() -> None:
    admission, usage = CacheAdmission(), CacheUsage(capacity_bytes=100, used_bytes=40)
    assert admission.admit(b"a", 60, usage)
    # Counts though the cache has not reported it yet.
    assert not admission.admit(b"b", 1, usage)
    assert admission.admit(b"c", 60, CacheUsage(capacity_bytes=100, used_bytes=40))


def test_a_full_cache_keeps_what_misses_again() -> None:
    admission = CacheAdmission()
    assert not admission.admit(b"a", 10, FULL)
    assert admission.admit(b"a", 10, FULL)
    assert not any(admission.admit(b"%d" % number, 10, FULL) for number in range(1000))


def test_what_is_larger_than_the_cache_never_enters() -> None:
    admission = CacheAdmission()
    assert not any(admission.admit(b"a", 101, FULL) for _ in range(3))


def test_old_misses_are_forgotten() -> None:
    admission = CacheAdmission(max_misses=2)
    for key in (b"a", b"b", b"c"):
        assert not admission.admit(key, 10, FULL)
    # Of the earlier generation.
    assert admission.admit(b"a", 10, FULL)
    for key in (b"d", b"e"):
        assert not admission.admit(key, 10, FULL)
    assert not admission.admit(b"a", 10, FULL)
