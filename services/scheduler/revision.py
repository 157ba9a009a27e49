"""What tells one state of a model version from another: a digest of its configuration and files.

Reads names, sizes and times of change, never a file's content: that would cost as much as a load.
The inode's own time of change is among them, since a copy may keep a file's size and its other
times. Covers the version's directory and what all versions share: labels, environments.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid.pb import model_config_pb2 as config_pb


def revision_of(config: config_pb.ModelConfig, version_path: str) -> bytes:
    """16 bytes, other ones as soon as the configuration or a file has changed."""
    digest = hashlib.blake2b(config.SerializeToString(deterministic=True), digest_size=16)
    root = Path(version_path)
    for path in sorted(_files(root)):
        try:
            status = path.stat()
        except OSError:
            # It is going or cannot be read; whoever loads the model will tell.
            continue
        name = os.fsencode(os.path.relpath(path, root))
        digest.update(b"%d:%s:" % (len(name), name))
        text = f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns};"
        digest.update(text.encode())
    return digest.digest()


def _files(version: Path) -> Iterator[Path]:
    """The files of a version and those beside it, but not those of other versions."""
    seen: set[str] = set()
    for directory, below, names in os.walk(version.parent, followlinks=True):
        if directory == str(version.parent):
            below[:] = [each for each in below if each == version.name or not each.isdigit()]
        real = os.path.realpath(directory)
        if real in seen:
            # By a link from inside itself, or one that was read under its other name.
            below.clear()
            continue
        seen.add(real)
        below.sort()
        yield from (Path(directory, name) for name in names)
