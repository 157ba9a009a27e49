"""A pattern in memory that nobody has written, and the search for it in what clients get.

Processes of a test's mesh have it in all that malloc returns and free takes back (glibc's
MALLOC_PERTURB_), in arrays that numpy allocates empty, and in segments of shared memory each time
that they are given out (site/poison_hooks.py). Memory of an object's own allocator (pymalloc) has
none: bytes and bytearrays begin with what they are made of.

Whatever the tests' own process receives is searched, by whichever client (site/search_hooks.py),
but what is compressed or encrypted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.mesh.site.sitecustomize import install

if TYPE_CHECKING:
    from collections.abc import Mapping

_SITE: Final = Path(__file__).with_name("site")
# These bytes are neither printable characters, nor bytes that UTF-8 repeats.
_FREED: Final = 0x1B
_ALLOCATED: Final = 0xFF ^ _FREED
# So many of them in a row are no coincidence.
_PATTERNS: Final = tuple(bytes([byte]) * 8 for byte in (_ALLOCATED, _FREED))
_found: Final[list[str]] = []


def poisoned(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment of processes whose memory has the pattern."""
    hooks = [environ.get("MESH_TEST_HOOKS", ""), str(_SITE / "poison_hooks.py")]
    paths = [str(_SITE), environ.get("PYTHONPATH", "")]
    return {
        **environ,
        "MALLOC_PERTURB_": str(_FREED),
        # malloc does not fill what a thread keeps for itself.
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
        "MESH_TEST_HOOKS": ":".join(filter(None, hooks)),
        "PYTHONPATH": ":".join(filter(None, paths)),
    }


def search_received() -> None:
    """Search all that this process receives from now on."""
    install([str(_SITE / "search_hooks.py")])  # type: ignore[no-untyped-call]


def searched(data: bytes) -> bytes:
    """Return what was received; what is in it that nobody has written is noted."""
    for pattern in _PATTERNS:
        place = data.find(pattern)
        if place >= 0:
            _found.append(f"memory that nobody has written, from byte {place} of {len(data)}")
    return data


def take_found() -> list[str]:
    """Return what was noted since the last time."""
    found = _found[:]
    _found.clear()
    return found
