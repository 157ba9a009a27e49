"""The live view of a run: a table that is updated on a terminal, or else lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from nereid_perf.distribution import percentiles_us
from nereid_perf.output.series import level_label
from nereid_perf.questions.metrics import attempts, rate_text, time_text

if TYPE_CHECKING:
    from nereid_perf.measurement import LoadLevel, Measurement

# Maximum number of levels in the table: a long search must fit the screen.
_MAX_ROWS = 20
# Shorter runs do not say how long they take.
_LONG_S = 10.0


class Progress(Protocol):
    """Figures of about the last second of a level that is being measured."""

    @property
    def level(self) -> LoadLevel:
        """Level that is being measured."""

    @property
    def windows(self) -> int:
        """Number of windows that have ended."""

    @property
    def is_warm(self) -> bool:
        """True once windows have begun."""

    @property
    def requests_per_s(self) -> float:
        """Successful requests per second."""

    @property
    def p50_ns(self) -> int:
        """Median latency in ns; 0 means that no response came."""

    @property
    def p99_ns(self) -> int:
        """99th percentile of latencies in ns; 0 means that no response came."""

    @property
    def failures(self) -> int:
        """Number of failed requests."""

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # rich would exit, and lose what was measured.
        raise BrokenPipeError


class LiveView:
    """A live view in mode "auto", "plain" or "off"; at its end only printed lines remain."""

    def __init__(self, mode: str, console: Console | None = None) -> None:
        self._console = console or _Console(highlight=False)
        self._is_table = mode == "auto" and self._console.is_terminal
        self._is_off = mode == "off"
        self._done: list[tuple[str, ...]] = []
        self._last: Progress | None = None
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, vertical_overflow="crop"
        )

    def __enter__(self) -> Self:
        if self._is_table:
            self._live.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._live.stop()

    def on_plan(self, levels: int, shortest_s: float, longest_s: float) -> None:
        """Say how long it will take, if it takes long and the number of levels is known."""
        if longest_s >= _LONG_S and not self._is_off:
            head = "1 level" if levels == 1 else f"{levels} levels"
            text = f"{head}: {duration_text(shortest_s)} to {duration_text(longest_s)}"
            self._console.print(text, soft_wrap=True, markup=False)

    def on_progress(self, progress: Progress, side: str = "") -> None:
        """Update the table, or print a line for each window that has ended."""
        before, self._last = self._last, progress
        if self._is_table:
            self._live.update(self._table(_progress_row(progress, side)), refresh=True)
            return
        is_same_level = before is not None and before.level == progress.level
        if before is not None and is_same_level and progress.windows > before.windows:
            self._print(_progress_row(progress, side))

    def on_measurement(self, measurement: Measurement, side: str = "") -> None:
        """Show a level that has been measured; `side` is A or B in a comparison."""
        self._last = None
        self._done.append(_measured_row(measurement, side))
        if self._is_table:
            self._live.update(self._table(None), refresh=True)
        else:
            self._print(self._done[-1])

    def _print(self, row: tuple[str, ...]) -> None:
        if not self._is_off:
            load, state, rate, p50, p99, failed, client = row
            line = f"{load}, {state}: {rate}, p50 {p50}, p99 {p99}, {failed} failed, {client}"
            self._console.print(line, soft_wrap=True, markup=False)

    def _table(self, current: tuple[str, ...] | None) -> Table:
        table = Table(box=None, header_style="dim", pad_edge=False)
        for name in ("load", "", "requests", "p50", "p99", "failed", "client"):
            table.add_column(name, justify="left" if name in ("load", "") else "right")
        rows = self._done[-_MAX_ROWS:]
        if len(rows) < len(self._done):
            table.add_row(f"{len(self._done) - len(rows)} more", style="dim")
        for row in rows:
            table.add_row(*row)
        if current is not None:
            table.add_row(*current, style="bold")
        return table


def duration_text(seconds: float) -> str:
    """Return a text such as "40 s" or "3 min"."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _progress_row(progress: Progress, side: str) -> tuple[str, ...]:
    return (
        _load(progress.level, side),
        f"window {progress.windows + 1}" if progress.is_warm else "warm-up",
        rate_text(progress.requests_per_s),
        time_text(progress.p50_ns / 1000),
        time_text(progress.p99_ns / 1000),
        str(progress.failures),
        f"{progress.in_flight} in flight",
    )


def _measured_row(measurement: Measurement, side: str) -> tuple[str, ...]:
    p50, p99 = percentiles_us(measurement.latencies.response, (50, 99))
    busy = f"{100 * measurement.client.busy:.0f} % busy"
    return (
        _load(measurement.level, side),
        "measured" if measurement.is_stable else "not stable",
        rate_text(measurement.requests_per_s),
        time_text(p50),
        time_text(p99),
        str(attempts(measurement) - measurement.requests),
        f"{busy}, the bottleneck" if measurement.client.is_bottleneck else busy,
    )


def _load(level: LoadLevel, side: str) -> str:
    return f"{side}: {level_label(level)}" if side else level_label(level)
