"""References that travel in place of tensors that lie in shared memory."""

from __future__ import annotations

from typing import NamedTuple


class SharedMemory(NamedTuple):
    """Range of a segment (nereid.shm.segments) that both ends of a hop can map."""

    segment_name: str
    offset: int
    size_bytes: int
