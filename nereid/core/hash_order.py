"""The order of names in a hash table of C++: Triton sends and checks some things in that order.

The table is one of libstdc++'s unordered containers of std::string on 64-bit machines, into which
the names were put one after the other. Equal names in the same order give the same result on every
machine.
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
# Numbers of buckets of a growing table, which are also the numbers of names that it can hold.
_SIZES: Final = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273)


def in_hash_order(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, which must differ, in the order of the table.

    Very many names are returned as they are.
    """
    if len(names) > _SIZES[-1]:
        return tuple(names)
    hashes = {name: _hash(name.encode("utf-8", "surrogateescape")) for name in names}
    ordered: list[str] = []
    left = iter(hashes)
    for size in _SIZES[: bisect_left(_SIZES, len(hashes)) + 1]:
        # The names in the table move to the larger one, in its order.
        ordered += islice(left, size - len(ordered))
        buckets: dict[int, list[str]] = {}
        for name in ordered:
            buckets.setdefault(hashes[name] % size, []).append(name)
        # The order begins with the bucket that came into use last, and within a bucket with the
        # last name.
        ordered = [name for bucket in reversed(buckets.values()) for name in reversed(bucket)]
    return tuple(ordered)


def _hash(text: bytes) -> int:
    """Return MurmurHash64A of a text, as std::hash computes it."""
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
