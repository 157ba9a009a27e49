"""Objects that all instances of an executor share."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nereid.config.recovery import DEFAULT_TIMES
from nereid_executor.batch.warmup import WarmupTurns
from nereid_executor.core.heap import HeapTrim
from nereid_executor.core.load_memory import LoadMeter
from nereid_executor.core.recent_runs import RecentRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.config.recovery import RecoveryTimes
    from nereid.observability.tracing import Tracer
    from nereid_executor.backends.registry import BackendRegistry
    from nereid_executor.batch.timeline import ExecutorTimeline
    from nereid_executor.core.nvtx_ranges import NvtxRanges
    from nereid_executor.core.shared_tensors import SharedTensors
    from nereid_executor.instances.load_slots import LoadSlots


@dataclass(frozen=True)
class InstanceContext:
    """Objects that all instances of an executor share."""

    backends: BackendRegistry
    # An instance holds a slot while it loads its model.
    load_slots: LoadSlots
    shared_tensors: SharedTensors
    # Value of EXECUTOR_KEY in the metadata of all streams of this process.
    process: str = field(default_factory=lambda: secrets.token_hex(16))
    # Takes a method, and returns metadata that proves the executor's identity; called per stream.
    credentials: Callable[[str], Iterable[tuple[str, str | bytes]]] | None = None
    # `None` if nothing is traced.
    tracer: Tracer | None = None
    times: RecoveryTimes = DEFAULT_TIMES
    recent_runs: RecentRuns = field(default_factory=RecentRuns)
    load_meter: LoadMeter = field(default_factory=LoadMeter)
    heap_trim: HeapTrim = field(default_factory=HeapTrim)
    warmup_turns: WarmupTurns = field(default_factory=WarmupTurns)
    # `None` if no timeline is recorded.
    timeline: ExecutorTimeline | None = None
    ranges: NvtxRanges | None = None
