"""Measures one server at any number of levels of load: what sweeps, comparisons and the analyzer
call. Blocks; not to be called in a running event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from nereid.perf.windows.stability import LastThree, StabilityRule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nereid.perf.measurement import LoadLevel, Measurement
    from nereid.perf.plan import Plan
    from nereid.perf.server import Server


class SessionError(Exception):
    """The measurement cannot go on: no connection, a worker that ended. The text says why."""


@dataclass(frozen=True, kw_only=True)
class WindowSettings:
    """How long is measured.

    mode: windows of interval_s, or of request_count requests (at least). They go on until the rule
    says so, max_trials at most. percentile: of the latency that has to be stable; None: the mean.
    warm_up: "auto" drops what the server's warm-up takes before the first window; a number: so many
    requests are sent before. total_requests: one window of exactly so many requests; 0: windows.
    drain_s: how long requests in flight at the end are waited for.
    """

    mode: Literal["time", "count"] = "time"
    interval_s: float = 5.0
    request_count: int = 50
    rule: StabilityRule = field(default_factory=LastThree)
    max_trials: int = 10
    percentile: float | None = None
    warm_up: int | Literal["auto"] = "auto"
    total_requests: int = 0
    drain_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """What the last second or so showed, for a live view. Latencies in ns; 0: no response came.

    windows: how many are over; is_warm: whether windows have begun.
    """

    level: LoadLevel
    elapsed_s: float
    windows: int
    is_warm: bool
    requests_per_s: float
    p50_ns: int
    p99_ns: int
    failures: int
    in_flight: int


class Session:
    """The worker processes of a run. One level at a time:

        with Session(plan, WindowSettings(), server=server) as session:
            for value in (1, 2, 4):
                measurement = session.measure(LoadLevel("concurrency", value))

    measure() is windows until stable (is_stable says whether they were); measure_for() is one
    window of a given time, for those who interleave servers or search. Between calls there is no
    load; workers and their connections stay. Several sessions may be open at once.
    """

    def __init__(  # noqa: PLR0913 (by keyword)
        self,
        plan: Plan,
        windows: WindowSettings,
        *,
        server: Server | None = None,
        metrics_url: str = "",
        records: Path | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """server: asked for statistics before and after; None: Measurement.server stays empty.
        metrics_url: of a page in Prometheus' format, read meanwhile. records: a CSV file that gets
        a row for each request. on_progress: called about twice a second, in measure()'s thread.
        """

    def __enter__(self) -> Session: ...

    def __exit__(self, *_exception: object) -> None: ...

    def measure(self, level: LoadLevel) -> Measurement:
        """Windows until they are stable, or too many.

        Raises:
            SessionError: it cannot go on.
        """
        ...

    def measure_for(self, level: LoadLevel, seconds: float, warm_up_s: float = 0.0) -> Measurement:
        """One window of so many seconds, after a warm-up. is_stable is True of it.

        Raises:
            SessionError: it cannot go on.
        """
        ...
