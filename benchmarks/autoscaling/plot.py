"""A load's runs as an SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.figures import plot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.autoscaling.rehearsal import Outcome, Step

_EVERY = 8
_OFFERED = "requests per second"
_PANELS: tuple[tuple[str, Callable[[Step], float]], ...] = (
    ("replicas", lambda step: step.replicas),
    ("mean queue time (s)", lambda step: step.queue_time_us / 1e6),
    ("pod hours so far", lambda step: step.pod_s / 3600),
)


def draw(outcomes: Sequence[Outcome]) -> str:
    """Panels over time, with a line for each way of scaling, and what was offered."""
    last = outcomes[0].steps[-1].time_s / 60
    axis = plot.Axis("minutes", 0, last, range(0, int(last) + 1, 20), linear=True)
    panels = [
        plot.Panel(title, axis, {one.scaling.name: _points(one, value) for one in outcomes}, {})
        for title, value in _PANELS
    ]
    offered = {_OFFERED: _points(outcomes[0], lambda step: step.rate)}
    panels.insert(0, plot.Panel("offered", axis, offered, {}))
    return plot.draw(panels, [_OFFERED, *(one.scaling.name for one in outcomes)])


def _points(outcome: Outcome, value: Callable[[Step], float]) -> list[tuple[float, float]]:
    return [(step.time_s / 60, value(step)) for step in outcome.steps[::_EVERY]]
