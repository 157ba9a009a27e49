"""Flags that `nereid serve` passes on to a process that has an executor beside the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nereid.config import flags
from nereid.config.flags import flag


@dataclass(frozen=True)
class InlineSettings:
    """Settings of the executions that run in the event loop's own thread."""

    TOPIC: ClassVar = flags.Topic.PROCESSES

    inline_execution_us: int = flag(
        500,
        "with --join all: a batch of a model that takes no longer than this on average, for"
        " batches of such a size, runs on the thread of the gateway's event loop, without a"
        " hand-over to its instance's thread; microseconds, 0: never",
        flags.integer(0, 100_000),
    )
