"""Order of names in a C++ hash table. Triton sends and checks some things in this order.

The table is an unordered container of std::string in libstdc++ on a 64-bit machine. The names are
inserted into the table one after the other. The same names, inserted in the same order, give the
same result on every machine.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_BITS: Final = (1 << 64) - 1
_FACTOR: Final = 0xC6A4A7935BD1E995
_SEED: Final = 0xC70F6907
_WORD_BYTES: Final = 8
# Bucket counts of a table as it grows. A table holds at most as many names as it has buckets.
_SIZES: Final = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273)


def in_hash_order(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names in the order of the hash table; no name may occur twice.

    If there are more names than the largest known table holds, the names are returned in the given
    order.
    """
    if len(names) > _SIZES[-1]:
        return tuple(names)
    hashes = {name: _hash(name.encode("utf-8", "surrogateescape")) for name in names}
    ordered: list[str] = []
    left = iter(hashes)
    for size in _SIZES[: bisect_left(_SIZES, len(hashes)) + 1]:
        # When the table grows, the names are inserted into a larger table, in the order in which
        # the smaller table listed them.
        ordered += islice(left, size - len(ordered))
        buckets: dict[int, list[str]] = {}
        for name in ordered:
            buckets.setdefault(hashes[name] % size, []).append(name)
        # The bucket that was filled last comes first. Within a bucket, the name that was inserted
        # last comes first.
        ordered = [name for bucket in reversed(buckets.values()) for name in reversed(bucket)]
    return tuple(ordered)


def _hash(text: bytes) -> int:
    """Return the MurmurHash64A value that std::hash computes for a text."""
    value = _SEED ^ len(text) * _FACTOR & _BITS
    whole = len(text) - len(text) % _WORD_BYTES
    for start in range(0, whole, _WORD_BYTES):
        word = int.from_bytes(text[start : start + _WORD_BYTES], "little")
        value = (value ^ _mix(word * _FACTOR & _BITS) * _FACTOR & _BITS) * _FACTOR & _BITS
    if whole < len(text):
        value = (value ^ int.from_bytes(text[whole:], "little")) * _FACTOR & _BITS
    return _mix(_mix(value) * _FACTOR & _BITS)


def _mix(value: int) -> int:
    return value ^ value >> 47
