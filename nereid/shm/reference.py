"""What travels in place of a tensor that lies in shared memory."""

from __future__ import annotations

from typing import NamedTuple


class SharedMemory(NamedTuple):
    """A range of a segment (nereid.shm.segments) that both ends of a hop can map."""

    segment_name: str
    offset: int
    size_bytes: int
