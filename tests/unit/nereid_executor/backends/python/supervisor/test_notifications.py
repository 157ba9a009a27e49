"""Metrics and log lines that workers send to their executor."""

from __future__ import annotations

import json

import pytest

from nereid_executor.backends.python.supervisor.custom_metrics import (
    MAX_SERIES,
    MAX_SIZE,
    CustomMetrics,
)
from nereid_executor.backends.python.supervisor.notifications import NotificationHandler
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire


def test_metrics_are_kept_by_their_holder() -> None:
    metrics = CustomMetrics()
    changes: list[int] = []
    metrics.on_change[1] = lambda: changes.append(1)
    one, two = object(), object()
    metrics.on_message(one, "m", ["new", 1, "c", "Counts", 0, {"a": "b"}, []])
    metrics.on_message(two, "n", ["new", 1, "h", "Ranges", 2, {}, [1, 2]])
    metrics.on_message(one, "m", ["value", 1, 3.5, []])
    metrics.on_message(two, "n", ["value", 1, 9, [0, 1, 2]])
    # Called once until the metrics are read.
    assert changes == [1]
    series = {each.name: each for each in metrics.read().series}
    assert (series["c"].value, dict(series["c"].labels), series["c"].kind) == (
        3.5,
        {"a": "b"},
        "counter",
    )
    assert (list(series["h"].counts), list(series["h"].bounds)) == ([0, 1, 2], [1, 2])
    metrics.on_message(one, "m", ["gone", 1])
    assert changes == [1, 1]
    metrics.remove_holder(two)
    assert not metrics.read().series


def counted(metrics: CustomMetrics) -> dict[str, float]:
    return {f"{each.name} {each.model}": each.value for each in metrics.read().series}


def test_what_a_lost_worker_counted_is_kept_until_its_model_is_unloaded() -> None:
    metrics = CustomMetrics()
    one, two, other = object(), object(), object()
    for holder, model in ((one, "m"), (other, "n")):
        metrics.on_message(holder, model, ["new", 1, "c", "Counts", 0, {}, []])
        metrics.on_message(holder, model, ["new", 2, "g", "Now", 1, {}, []])
        metrics.on_message(holder, model, ["value", 1, 5, []])
    # Its worker is killed, and the next one counts on.
    for _ in range(2):
        metrics.on_worker_end(one)
        metrics.on_message(one, "m", ["new", 1, "c", "Counts", 0, {}, []])
        metrics.on_message(one, "m", ["value", 1, 2, []])
    assert [each.value for each in metrics.read().series if each.model == "m"] == [7, 2]
    # The model is loaded again before its old instance is unloaded.
    metrics.on_message(two, "m", ["new", 1, "c", "Counts", 0, {}, []])
    metrics.remove_holder(one)
    assert [each.value for each in metrics.read().series if each.model == "m"] == [9, 0]
    metrics.remove_holder(two)
    assert counted(metrics) == {"c n": 5, "g n": 0}


def test_malformed_notifications_are_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = NotificationHandler("m_0", "m")
    for kind, body in (
        (wire.LOG, b"[9, 3]"),
        (wire.LOG, b"\xff"),
        (wire.METRIC, b'["value", 5, 1, []]'),
        (wire.METRIC, b"[]"),
        (wire.METRIC, b'["new", 1, "c", "", 7, {}, []]'),
        (wire.LOG, b'[1, "beware"]'),
    ):
        handler.on_notification(kind, bytearray(body))
    handler.remove_metrics()
    assert [each.getMessage() for each in caplog.records] == [
        *["instance m_0: malformed notification from its worker; dropped"] * 5,
        "m_0: beware",
    ]


def test_lines_keep_their_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    for level in range(4):
        NotificationHandler("m_0", "m").on_notification(
            wire.LOG, bytearray(json.dumps([level, "x"]).encode())
        )
    levels = [each.levelname for each in caplog.records]
    assert levels == ["INFO", "WARNING", "ERROR", "DEBUG"]


def test_an_instance_has_a_bounded_number_of_series() -> None:
    metrics = CustomMetrics()
    one, two = object(), object()
    new = ["new", 0, "c", "Counts", 0, {}, []]
    for number in range(MAX_SERIES):
        metrics.on_message(one, "m", [new[0], number, *new[2:]])
    with pytest.raises(ValueError, match="more than 10000 series"):
        metrics.on_message(one, "m", [new[0], MAX_SERIES, *new[2:]])
    metrics.on_message(two, "n", new)
    metrics.on_message(one, "m", ["gone", 0])
    metrics.on_message(one, "m", [new[0], MAX_SERIES, *new[2:]])


def test_series_are_bounded_together() -> None:
    """Otherwise 10,000 large ones would go to the schedulers with each change."""
    metrics = CustomMetrics()

    def new(number: int, size: int, holder: str = "m_0") -> None:
        metrics.on_message(holder, "m", ["new", number, f"c{number:05}", "x" * size, 0, {}, []])

    large = 8000
    count = MAX_SIZE // (large + 6)
    for number in range(count):
        new(number, large)
    with pytest.raises(ValueError, match="too large together"):
        new(count, large)
    with pytest.raises(ValueError, match="too large together"):
        metrics.on_message("m_0", "m", ["new", count, "h", "", 2, {}, list(range(1000))])
    # Another instance's are its own, and those that are gone or replaced do not count.
    new(0, large, "m_1")
    for _ in range(2):
        metrics.on_message("m_0", "m", ["gone", 0])
    new(0, large)
    new(1, 10)
    new(count, large)


def test_counts_of_ended_workers_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """A model that crashes and gives its metrics other names each time."""
    metrics = CustomMetrics()
    for worker in range(3):
        for number in range(MAX_SERIES // 2):
            labels = {"worker": str(worker), "number": str(number)}
            metrics.on_message("m_0", "m", ["new", number, "c", "", 0, labels, []])
        metrics.on_message("m_0", "m", ["value", 0, 1, []])
        metrics.on_worker_end("m_0")
    series = metrics.read().series
    assert len(series) == MAX_SERIES
    assert sum(each.value for each in series) == 2
    (record,) = caplog.records
    assert f"model m: counts of an ended worker are not kept: series={MAX_SERIES // 2}" in (
        record.getMessage()
    )
    # Known ones go on, and another load begins anew.
    labels = {"worker": "0", "number": "0"}
    metrics.on_message("m_0", "m", ["new", 0, "c", "", 0, labels, []])
    metrics.on_message("m_0", "m", ["value", 0, 5, []])
    metrics.on_worker_end("m_0")
    assert sum(each.value for each in metrics.read().series) == 7
    metrics.remove_holder("m_0")
    assert not metrics.read().series
    metrics.on_message("m_0", "m", ["new", 0, "d", "", 0, {}, []])
    metrics.on_worker_end("m_0")
    assert len(metrics.read().series) == 1


def test_a_confined_worker_logs_a_bounded_amount(caplog: pytest.LogCaptureFixture) -> None:
    line = json.dumps([1, "x" * 10_000]).encode()
    for bounded, count in ((False, 200), (True, 103)):
        caplog.clear()
        handler = NotificationHandler("m_0", "m", bounded=bounded)
        for _ in range(200):
            handler.on_notification(wire.LOG, bytearray(line))
        assert abs(len(caplog.records) - count) <= (10 if bounded else 0)
    # Of lines of 1 MB at most one, and a count of the others.
    caplog.clear()
    handler = NotificationHandler("m_0", "m", bounded=True)
    for size in (1_000_000, 1_000_000, 1_000_000, 10):
        handler.on_notification(wire.LOG, bytearray(json.dumps([1, "x" * size]).encode()))
    assert sum(len(record.getMessage()) for record in caplog.records) < 1 << 20
    assert "m_0: 2 lines were dropped: too much output" in caplog.text


def test_a_message_that_is_nested_too_deep_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    NotificationHandler("m_0", "m").on_notification(wire.LOG, bytearray(b"[" * 100_000))
    assert "malformed notification" in caplog.text


FALSE_SERIES = {
    "a metric of Nereid's": ("nv_inference_request_success", "", 0, {"model": "other"}, []),
    "a part of one": ("nereid_batch_size_bucket", "", 0, {}, []),
    "a name with a line of its own": ("a 1\nnv_inference_count", "", 0, {}, []),
    "a label that ends the line": ("a", "", 0, {'x="1"} 1\n': ""}, []),
    "too long a text": ("a", "x" * 10_000, 0, {}, []),
    "too many labels": ("a", "", 0, {f"l{number}": "x" for number in range(9000)}, []),
    "too many bounds": ("a", "", 2, {}, list(range(2000))),
    "no kind": ("a", "", 9, {}, []),
}


@pytest.mark.parametrize("case", FALSE_SERIES)
def test_a_worker_cannot_make_every_series(case: str) -> None:
    metrics = CustomMetrics()
    with pytest.raises((ValueError, IndexError)):
        metrics.on_message("m_0", "m", ["new", 1, *FALSE_SERIES[case]])
    assert not metrics.read().series


def test_counts_fit_their_bounds() -> None:
    """The page of the whole mesh sums them with others'."""
    metrics = CustomMetrics()
    metrics.on_message("m_0", "m", ["new", 1, "h", "", 2, {}, [1, 2]])
    for counts in ([], [1], [1] * 1000):
        with pytest.raises(ValueError, match="do not fit"):
            metrics.on_message("m_0", "m", ["value", 1, 1, counts])
    assert list(metrics.read().series[0].counts) == [0, 0, 0]
