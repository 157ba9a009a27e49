"""Metrics and log lines of workers, as their executor takes them."""

from __future__ import annotations

import json

import pytest

from nereid.services.executor.backends.python.supervisor.custom_metrics import CustomMetrics
from nereid.services.executor.backends.python.supervisor.notifications import Listener
from nereid.services.executor.backends.python.worker_site.nereid_worker import wire


def test_metrics_are_kept_by_their_holder() -> None:
    metrics = CustomMetrics()
    changes: list[int] = []
    metrics.on_change = lambda: changes.append(1)
    one, two = object(), object()
    metrics.hear(one, ["new", 1, "c", "Counts", 0, {"a": "b"}, []])
    metrics.hear(two, ["new", 1, "h", "Ranges", 2, {}, [1, 2]])
    metrics.hear(one, ["value", 1, 3.5, []])
    metrics.hear(two, ["value", 1, 9, [0, 1, 2]])
    # Told once until somebody has read.
    assert changes == [1]
    told = {each.name: each for each in metrics.read().series}
    assert (told["c"].value, dict(told["c"].labels), told["c"].kind) == (3.5, {"a": "b"}, "counter")
    assert (list(told["h"].counts), list(told["h"].bounds)) == ([0, 1, 2], [1, 2])
    metrics.hear(one, ["gone", 1])
    assert changes == [1, 1]
    metrics.forget(two)
    assert not metrics.read().series


def test_what_a_worker_tells_without_sense_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = Listener("m_0")
    for kind, body in (
        (wire.LOG, b"[9, 3]"),
        (wire.LOG, b"\xff"),
        (wire.METRIC, b'["value", 5, 1, []]'),
        (wire.METRIC, b"[]"),
        (wire.METRIC, b'["new", 1, "c", "", 7, {}, []]'),
        (wire.LOG, b'[1, "beware"]'),
    ):
        listener.hear(kind, bytearray(body))
    listener.forget()
    assert [each.getMessage() for each in caplog.records] == [
        *["m_0: its worker told what makes no sense"] * 5,
        "m_0: beware",
    ]


def test_lines_keep_their_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    for level in range(4):
        Listener("m_0").hear(wire.LOG, bytearray(json.dumps([level, "x"]).encode()))
    levels = [each.levelname for each in caplog.records]
    assert levels == ["INFO", "WARNING", "ERROR", "DEBUG"]
