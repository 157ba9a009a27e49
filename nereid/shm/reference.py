"""References to shared memory, which messages carry in place of tensors."""

from __future__ import annotations

from typing import NamedTuple


class SharedMemory(NamedTuple):
    """Part of a segment (nereid.shm.segments) that sender and receiver of a message can map."""

    segment_name: str
    offset: int
    size_bytes: int
