"""What tells one state of a model version from another: a digest of its configuration and files.

Reads names, sizes and times of change, never a file's content: that would cost as much as a load.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid.pb import model_config_pb2 as config_pb


def revision_of(config: config_pb.ModelConfig, version_path: str) -> bytes:
    """16 bytes, other ones as soon as the configuration or a file has changed."""
    digest = hashlib.blake2b(config.SerializeToString(deterministic=True), digest_size=16)
    root = Path(version_path)
    for path in sorted(root.rglob("*")):
        try:
            status = path.stat()
        except OSError:
            # It is going or cannot be read; whoever loads the model will tell.
            continue
        if path.is_file():
            name = str(path.relative_to(root))
            digest.update(f"{len(name)}:{name}:{status.st_size}:{status.st_mtime_ns};".encode())
    return digest.digest()
