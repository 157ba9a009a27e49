"""Flags of services that share memory with other processes of their host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nereid.config.flags import Topic, flag, integer, seconds
from nereid.shm.segments import IDLE_S


@dataclass(frozen=True, kw_only=True)
class SegmentPoolSettings:
    """Flags of a service that may share memory with other services."""

    TOPIC: ClassVar = Topic.SHARED_MEMORY

    shm_limit_bytes: int = flag(
        4 << 30,
        "how much memory large tensors may take on their way to other processes of this host;"
        " beyond it they are sent inline, and 0 sends all of them so",
        integer(0),
        aliases=("--slab-limit-bytes",),
    )


@dataclass(frozen=True, kw_only=True)
class SegmentSettings(SegmentPoolSettings):
    """Flags of a service that has segments of its own."""

    TOPIC: ClassVar = Topic.SHARED_MEMORY

    shm_idle_secs: float = flag(
        IDLE_S,
        "how long unused shared memory is kept for the next large tensors",
        seconds,
        aliases=("--slab-idle-secs",),
    )
