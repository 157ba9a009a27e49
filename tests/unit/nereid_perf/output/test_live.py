import io
from dataclasses import dataclass

from rich.console import Console

from nereid_perf.measurement import ClientCost, LoadLevel
from nereid_perf.output.live import LiveView
from tests.support.measurements import concurrency, measured

_LEVEL = LoadLevel("rate", 100)


@dataclass(frozen=True)
class _Progress:
    level: LoadLevel = _LEVEL
    windows: int = 0
    is_warm: bool = True
    requests_per_s: float = 99.0
    p50_ns: int = 1_500_000
    p99_ns: int = 20_000_000
    failures: int = 2
    in_flight: int = 7


def _view(mode: str = "auto", *, terminal: bool = False) -> tuple[LiveView, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=90, height=40, highlight=False)
    return LiveView(mode, console), out


_BUSY = ClientCost(20, 0.99, 0, True)


def test_without_a_terminal_there_are_lines() -> None:
    view, out = _view()
    with view:
        for windows in (0, 0, 1, 1, 2):
            view.on_progress(_Progress(windows=windows))
        view.on_measurement(measured(concurrency(4), [1000]), "A")
        view.on_measurement(measured(concurrency(4), [1000], client=_BUSY, is_stable=False))
    assert out.getvalue().splitlines() == [
        "100/s, window 2: 99/s, p50 1.5 ms, p99 20 ms, 2 failed, 7 in flight",
        "100/s, window 3: 99/s, p50 1.5 ms, p99 20 ms, 2 failed, 7 in flight",
        "A: 4 in flight, measured: 1/s, p50 1 ms, p99 1 ms, 0 failed, 30 % busy",
        "4 in flight, not stable: 1/s, p50 1 ms, p99 1 ms, 0 failed, 99 % busy, the bottleneck",
    ]


def test_another_level_s_windows_are_not_compared_with_the_last_one_s() -> None:
    view, out = _view("plain", terminal=True)
    with view:
        view.on_progress(_Progress(windows=1))
        view.on_progress(_Progress(level=LoadLevel("rate", 200), windows=2))
    assert out.getvalue() == ""


def test_off_is_silent() -> None:
    view, out = _view("off", terminal=True)
    with view:
        view.on_progress(_Progress())
        view.on_progress(_Progress(windows=1))
        view.on_measurement(measured(concurrency(4)))
    assert out.getvalue() == ""


def test_on_a_terminal_there_is_a_table() -> None:
    view, out = _view(terminal=True)
    with view:
        for n in range(25):
            view.on_measurement(measured(concurrency(n + 1)))
        view.on_progress(_Progress(is_warm=False), "B")
        shown = out.getvalue()[-4000:]
    for text in ("load", "5 more", "25 in flight", "30 % busy", "B: 100/s", "warm-up", "20 ms"):
        assert text in shown
