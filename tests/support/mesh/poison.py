"""A pattern in memory that nobody has written, and the search for it in what clients get.

Processes of a test's mesh have it in all that malloc returns and free takes back (glibc's
MALLOC_PERTURB_), and in arrays that numpy allocates empty (site/poison_hooks.py). Memory of an
object's own allocator (pymalloc) has none: bytes and bytearrays begin with what they are made of.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_SITE: Final = Path(__file__).with_name("site")
# Neither is a printable character, nor a byte that UTF-8 repeats.
_FREED: Final = 0x1B
_ALLOCATED: Final = 0xFF ^ _FREED
# So many of them in a row are no coincidence.
_PATTERNS: Final = tuple(bytes([byte]) * 8 for byte in (_ALLOCATED, _FREED))


def poisoned(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment of processes whose memory has the pattern."""
    hooks = [environ.get("MESH_TEST_HOOKS", ""), str(_SITE / "poison_hooks.py")]
    paths = [str(_SITE), environ.get("PYTHONPATH", "")]
    return {
        **environ,
        "MALLOC_PERTURB_": str(_FREED),
        # What a thread keeps for itself passes malloc's filling by.
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
        "MESH_TEST_HOOKS": ":".join(filter(None, hooks)),
        "PYTHONPATH": ":".join(filter(None, paths)),
    }


def assert_written(data: bytes) -> None:
    """A client got these bytes: nothing in them is memory that nobody has written."""
    for pattern in _PATTERNS:
        place = data.find(pattern)
        assert place < 0, f"memory that nobody has written, from byte {place} of {len(data)}"
