"""POSIX shared memory objects of a test, removed when it ends."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDER = Path("/dev/shm")


class Objects:
    """Makes objects with unique names; a key is a slash and a name."""

    def __init__(self) -> None:
        self._paths: list[Path] = []

    def make(self, data: bytes) -> str:
        path = self.path(f"/nereid_test_{uuid.uuid4().hex}")
        path.write_bytes(data)
        self._paths.append(path)
        return f"/{path.name}"

    def path(self, key: str) -> Path:
        return _FOLDER / key.lstrip("/")

    def read(self, key: str) -> bytes:
        return self.path(key).read_bytes()

    def remove(self) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def shared_memory_objects() -> Iterator[Objects]:
    made = Objects()
    try:
        yield made
    finally:
        made.remove()


def open_files() -> set[str]:
    """The shared memory objects that this process has open."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(link.readlink()).removesuffix(" (deleted)"))
    return {name for name in found if name.startswith(str(_FOLDER))}
