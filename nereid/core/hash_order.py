"""Order of names in libstdc++'s hash tables (64 bits). Triton sends and checks in this order."""

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
# Bucket counts. A table with n buckets holds up to n names, then grows to the next count.
_SIZES: Final = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273)


def in_hash_order(names: Sequence[str]) -> tuple[str, ...]:
    """Return unique names in the order of the table. Too many names keep their order."""
    if len(names) > _SIZES[-1]:
        return tuple(names)
    hashes = {name: _hash(name.encode("utf-8", "surrogateescape")) for name in names}
    ordered: list[str] = []
    left = iter(hashes)
    for size in _SIZES[: bisect_left(_SIZES, len(hashes)) + 1]:
        # A larger table takes the names in the order in which the smaller one listed them.
        ordered += islice(left, size - len(ordered))
        buckets: dict[int, list[str]] = {}
        for name in ordered:
            buckets.setdefault(hashes[name] % size, []).append(name)
        # The last filled bucket comes first, and so does the last name in a bucket.
        ordered = [name for bucket in reversed(buckets.values()) for name in reversed(bucket)]
    return tuple(ordered)


def _hash(text: bytes) -> int:
    """Return std::hash of a text (MurmurHash64A)."""
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
