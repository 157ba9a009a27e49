"""The flag of timelines, which the settings of every recording service have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nereid.config.flags import Topic, flag, seconds


@dataclass(frozen=True, kw_only=True)
class TimelineSettings:
    """The flag --timeline-seconds."""

    TOPIC: ClassVar = Topic.TRACING

    timeline_seconds: float = flag(
        30.0, "how much of the past is kept in memory for nereid timeline; 0: nothing is"
        " recorded, and the gateway serves no timeline", seconds,
    )  # fmt: skip
