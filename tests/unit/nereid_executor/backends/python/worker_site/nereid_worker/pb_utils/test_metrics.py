"""What models send unasked: lines for the log, and metrics of their own."""

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nereid_executor.backends.python.worker_site.nereid_worker.connection import executor_connection
from nereid_executor.backends.python.worker_site.nereid_worker.pb_utils import api
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.backends.python.worker_site.nereid_worker.protocol.channel import (
    Channel,
)

# Models have no types.
pb: Any = api


@pytest.fixture
def executor() -> Iterator[Channel]:
    """The executor's end of the connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = executor_connection.ExecutorConnection(Channel(theirs))
        executor_connection.set_connection(connection)
        yield Channel(ours)
        executor_connection._connection = None


def received_frames(executor: Channel) -> list[tuple[int, Any]]:
    frames = []
    while (frame := executor.receive_nowait()) is not None:
        frames.append((frame[0], json.loads(bytes(frame[1]))))
    return frames


def test_the_log(executor: Channel) -> None:
    pb.Logger.log_info("a")
    pb.Logger.log_warn("b")
    pb.Logger.log_error("c")
    pb.Logger.log("d", pb.Logger.ERROR)
    pb.Logger.log("e")
    # Not sent by default.
    pb.Logger.log_verbose("f")
    executor_connection.current_connection().verbose = True
    pb.Logger.log_verbose("g")
    with pytest.raises(TypeError):
        pb.Logger.log_info(3)
    levels = [(0, "a"), (1, "b"), (2, "c"), (2, "d"), (0, "e"), (3, "g")]
    assert received_frames(executor) == [(wire.LOG, [level, text]) for level, text in levels]


def test_metrics(executor: Channel) -> None:
    counter = pb.MetricFamily("c", "Counts", pb.MetricFamily.COUNTER).Metric({"a": "b"})
    counter.increment(2)
    gauge = pb.MetricFamily("g", "Moves", pb.MetricFamily.GAUGE).Metric()
    gauge.set(5)
    gauge.increment(-1.5)
    family = pb.MetricFamily("h", "Ranges", pb.MetricFamily.HISTOGRAM)
    histogram = family.Metric(buckets=[1, 10])
    for value in (1, 2, 100):
        histogram.observe(value)
    assert (counter.value(), gauge.value()) == (2, 3.5)
    sent = [message for kind, message in received_frames(executor) if kind == wire.METRIC]
    c, g, h = (each[1] for each in sent if each[0] == "new")
    assert sent == [
        ["new", c, "c", "Counts", 0, {"a": "b"}, []],
        ["value", c, 2, []],
        ["new", g, "g", "Moves", 1, {}, []],
        ["value", g, 5, []],
        ["value", g, 3.5, []],
        ["new", h, "h", "Ranges", 2, {}, [1, 10]],
        ["value", h, 1, [1, 0, 0]],
        ["value", h, 3, [1, 1, 0]],
        ["value", h, 103, [1, 1, 1]],
    ]
    del counter
    assert received_frames(executor) == [(wire.METRIC, ["gone", c])]
    unbounded = family.Metric({"all": "of them"}, buckets=[])
    unbounded.observe(3)
    (_, new), (_, value) = received_frames(executor)
    assert (new[-1], value[2:]) == ([], [3, [1]])


def test_a_second_metric_of_one_name_and_labels_is_the_same(executor: Channel) -> None:
    one = pb.MetricFamily("same", "First", pb.MetricFamily.COUNTER)
    two = pb.MetricFamily("same", "Second", pb.MetricFamily.COUNTER)
    metric, other = one.Metric({"a": "b", "c": "d"}), two.Metric({"c": "d", "a": "b"})
    metric.increment(7.5)
    assert other.value() == 7.5
    del metric, one
    sent = [message for _, message in received_frames(executor)]
    assert [message[0] for message in sent] == ["new", "value"]
    assert sent[0][3] == "First"
    with pytest.raises(pb.TritonModelException, match="already exists with different type"):
        pb.MetricFamily("same", "", pb.MetricFamily.GAUGE)
    del other, two
    assert received_frames(executor)[0][1][0] == "gone"
    pb.MetricFamily("same", "", pb.MetricFamily.GAUGE)


@pytest.mark.parametrize(
    ("kind", "use"),
    [
        ("COUNTER", lambda m: m.increment(-1)),
        ("COUNTER", lambda m: m.set(1)),
        ("GAUGE", lambda m: m.observe(1)),
        ("HISTOGRAM", lambda m: m.set(1)),
        ("HISTOGRAM", lambda m: m.increment(1)),
        ("HISTOGRAM", lambda m: m.value()),
    ],
)
def test_unsupported_operations(executor: Channel, kind: str, use: Callable[[Any], None]) -> None:
    family = pb.MetricFamily("m", "", getattr(pb.MetricFamily, kind))
    metric = family.Metric(buckets=[1] if kind == "HISTOGRAM" else None)
    with pytest.raises(pb.TritonModelException):
        use(metric)


@pytest.mark.parametrize(
    ("kind", "labels", "buckets"),
    [
        ("COUNTER", {1: "a"}, None),
        ("COUNTER", {"a": 1}, None),
        ("COUNTER", {"a-b": "c"}, None),
        ("COUNTER", {}, [1.0]),
        ("HISTOGRAM", {}, None),
        ("COUNTER", {None: 1}, None),
        ("COUNTER", ["a"], None),
        ("HISTOGRAM", {}, (1.0, 2.0)),
        ("HISTOGRAM", {}, ["x"]),
        ("HISTOGRAM", {}, [2, 1]),
    ],
)
def test_invalid_metrics(executor: Channel, kind: str, labels: Any, buckets: Any) -> None:
    family = pb.MetricFamily("m", "", getattr(pb.MetricFamily, kind))
    with pytest.raises(RuntimeError if buckets == ["x"] else pb.TritonModelException):
        family.Metric(labels, buckets)


@pytest.mark.usefixtures("executor")
def test_names_of_metrics() -> None:
    with pytest.raises(pb.TritonModelException, match="Invalid metric name"):
        pb.MetricFamily("a b", "", pb.MetricFamily.COUNTER)
    with pytest.raises(TypeError):
        pb.MetricFamily("a", "", 0)


def test_outside_of_a_server() -> None:
    with pytest.raises(pb.TritonModelException, match="inside a model that is being served"):
        pb.Logger.log_info("a")
