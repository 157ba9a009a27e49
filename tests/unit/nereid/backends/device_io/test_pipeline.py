"""Batches through a device whose streams run as late and in as odd an order as they may."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu.host_device import HostDevice
from nereid.backends import TensorParts
from nereid.backends.device_io.captured_graphs import (
    CapturedGraph,
    CapturedGraphs,
)
from nereid.backends.device_io.device import DeviceTensor
from nereid.backends.device_io.graph_specs import GraphSpec, Shapes
from nereid.backends.device_io.pipeline import (
    Pipeline,
    PipelineOptions,
    Streams,
)
from nereid.core.errors import Internal

DTYPE = np.dtype(np.uint8)
ROW = 1024


class FailingDevice(HostDevice):
    """Refuses a copy to the host, once."""

    # Which one from now on; 0: none.
    refuses_copy = 0

    def copy_to_host(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        if self.refuses_copy:
            self.refuses_copy -= 1
            if not self.refuses_copy:
                raise Internal("out of order")
        super().copy_to_host(target, source, size_bytes, stream)


class Doubler:
    """A Session: output d is input x twice, s is x plus y, row by row. Runs on the stream."""

    def __init__(self, device: HostDevice, stream: int) -> None:
        self.device, self.stream = device, stream
        self.fails = False
        self.host_inputs: frozenset[str] = frozenset()
        self.reads_early = False
        self.early: list[bytes] = []

    def run(self, inputs: Mapping[str, DeviceTensor], outputs: Sequence[str]) -> list[DeviceTensor]:
        if self.fails:
            raise Internal("the model fails")
        if self.reads_early or self.host_inputs:
            self.early.append(array_at(inputs["y"]).tobytes())
        results = []
        for name in outputs:
            x = inputs["x"]
            address = self.device.allocate_device(max(1, x.size_bytes))
            result = DeviceTensor(address, x.shape, DTYPE, Owned(self, address))
            self.enqueue(name, inputs, result)
            results.append(result)
        return results

    def enqueue(self, name: str, inputs: Mapping[str, DeviceTensor], result: DeviceTensor) -> None:
        def compute() -> None:
            x = array_at(inputs["x"])
            other = x if name == "d" else array_at(inputs["y"])
            array_at(result)[...] = x + other

        self.device.enqueue_work(self.stream, compute)


class Owned:
    """Frees device memory when nobody refers to it, as an OrtValue does."""

    def __init__(self, session: Doubler, address: int) -> None:
        self.device, self.address = session.device, address

    def __del__(self) -> None:
        self.device.free_device(self.address)


def array_at(tensor: DeviceTensor) -> np.ndarray[Any, Any]:
    memory = (ctypes.c_uint8 * tensor.size_bytes).from_address(tensor.address)
    return np.ctypeslib.as_array(memory).view(tensor.dtype).reshape(tensor.shape)


def make(
    options: PipelineOptions, *, seed: int = 0, ignores_waits: bool = False, graph_rows: int = 0
) -> tuple[Pipeline, FailingDevice, Doubler]:
    device = FailingDevice(seed, ignores_waits=ignores_waits)
    if options.depth > 1:
        streams = Streams(device.create_stream(), device.create_stream(), device.create_stream())
    else:
        streams = Streams(*[device.create_stream()] * 3)
    session = Doubler(device, streams.compute)
    graphs = None
    if graph_rows:
        graphs = capture(device, session, graph_rows, options.depth)
    return Pipeline(device, session, streams, options, graphs), device, session


def capture(device: HostDevice, session: Doubler, rows: int, depth: int) -> CapturedGraphs:
    shape = (rows, ROW)

    def tensor() -> DeviceTensor:
        return DeviceTensor(device.allocate_device(rows * ROW), shape, DTYPE)

    def graph() -> CapturedGraph:
        inputs, outputs = {"x": tensor(), "y": tensor()}, {"d": tensor(), "s": tensor()}

        def launch() -> None:
            for name, result in outputs.items():
                session.enqueue(name, inputs, result)

        return CapturedGraph(0, inputs, outputs, launch, batching=True)

    spec = GraphSpec({"x": shape, "y": shape}, 1)
    return CapturedGraphs([spec], [graph() for _ in range(depth)], batching=True)


# The rows' values of each request's x; its y is one more.
Batch = list[list[int]]
BATCHES = st.lists(
    st.lists(st.lists(st.integers(0, 3), max_size=2), min_size=1, max_size=3), max_size=8
)


def rows_of(values: Sequence[int]) -> bytes:
    return b"".join(np.random.default_rng(value).bytes(ROW) for value in values)


def submit(pipeline: Pipeline, batch: Batch) -> list[np.ndarray[Any, Any]]:
    """Submit a batch; the outputs to expect."""
    x_parts = [rows_of(values) for values in batch]
    y_parts = [rows_of([value + 1 for value in values]) for values in batch]
    shape = (sum(map(len, batch)), ROW)
    views = [memoryview(bytearray(part)) for part in x_parts]
    inputs = {"x": TensorParts(views, shape, DTYPE), "y": TensorParts(y_parts, shape, DTYPE)}
    pipeline.submit(inputs, ["d", "s"])
    x = np.frombuffer(b"".join(x_parts), np.uint8).reshape(shape)
    y = np.frombuffer(b"".join(y_parts), np.uint8).reshape(shape)
    return [x + x, x + y]


def check(pipeline: Pipeline, expected: list[np.ndarray[Any, Any]]) -> None:
    for found, wanted in zip(pipeline.collect(), expected, strict=True):
        assert found.shape == wanted.shape
        assert (found == wanted).all()


def run_all(pipeline: Pipeline, device: HostDevice, batches: list[Batch], depth: int) -> None:
    """As the executor does it: as many batches in flight as the pipeline takes."""
    expected: deque[list[np.ndarray[Any, Any]]] = deque()
    for number, batch in enumerate(batches):
        if len(expected) == depth:
            check(pipeline, expected.popleft())
        expected.append(submit(pipeline, batch))
        device.run_some(number % 5)
    while expected:
        check(pipeline, expected.popleft())


@pytest.mark.slow
@given(
    batches=BATCHES,
    seed=st.integers(0, 1 << 16),
    depth=st.integers(1, 3),
    pinned=st.tuples(st.booleans(), st.booleans()),
    cache_bytes=st.sampled_from([0, 3 * ROW, 64 * ROW]),
    graph_rows=st.sampled_from([0, 4]),
    max_idle_bytes=st.sampled_from([0, 1 << 20]),
)
def test_every_batch_gets_its_own_outputs(
    batches: list[Batch],
    seed: int,
    depth: int,
    pinned: tuple[bool, bool],
    cache_bytes: int,
    graph_rows: int,
    max_idle_bytes: int,
) -> None:
    options = PipelineOptions(depth, *pinned, cache_bytes, 1, max_idle_bytes)
    pipeline, device, _ = make(options, seed=seed, graph_rows=graph_rows)
    run_all(pipeline, device, batches, depth)
    captured_bytes = 4 * depth * graph_rows * ROW
    pipeline.close()
    assert device.allocated_bytes == captured_bytes


def test_without_its_events_the_pipeline_mixes_batches_up() -> None:
    # The tests above find what they look for.
    batches = [[[number, number + 7]] for number in range(20)]
    options = PipelineOptions(depth=2, cache_bytes=0)
    wrong = 0
    for seed in range(5):
        pipeline, device, _ = make(options, seed=seed, ignores_waits=True)
        try:
            run_all(pipeline, device, batches, 2)
        except AssertionError:
            wrong += 1
    assert wrong == 5


def test_a_batch_is_copied_and_run_while_another_is_in_flight() -> None:
    pipeline, device, _ = make(PipelineOptions(depth=2))
    first = submit(pipeline, [[1]])
    second = submit(pipeline, [[2]])
    assert not pipeline.is_complete()
    with pytest.raises(IndexError):
        submit(pipeline, [[3]])
    device.run_some(1000)
    assert pipeline.is_complete()
    check(pipeline, first)
    check(pipeline, second)


def test_outputs_hold_until_the_next_batch_is_collected() -> None:
    pipeline, device, _ = make(PipelineOptions(depth=2))
    expected = submit(pipeline, [[1]])
    submit(pipeline, [[2]])
    found = pipeline.collect()
    submit(pipeline, [[3]])
    device.run_some(1000)
    assert all((one == other).all() for one, other in zip(found, expected, strict=True))


def test_an_input_that_comes_again_is_copied_once() -> None:
    pipeline, device, _ = make(PipelineOptions(cache_bytes=1 << 20, cached_from_bytes=1))
    copied = []
    for _ in range(5):
        check(pipeline, submit(pipeline, [[1, 2]]))
        copied.append(device.copied_bytes)
    # Not kept at first sight; neither copied nor moved once it is.
    assert copied == [4 * ROW, 8 * ROW, 8 * ROW, 8 * ROW, 8 * ROW]
    assert device.copied_on_device_bytes == 0


def test_a_part_that_comes_again_is_copied_on_the_device() -> None:
    pipeline, device, _ = make(PipelineOptions(cache_bytes=1 << 20, cached_from_bytes=1))
    for _ in range(2):
        check(pipeline, submit(pipeline, [[1], [2], [5]]))
    before = device.copied_bytes
    check(pipeline, submit(pipeline, [[2], [9], [1]]))
    # Of x and of y, what belongs to 9; y's 2 and 3 are x's 1 + 1 and 2 + 1.
    assert device.copied_bytes - before == 2 * ROW
    assert pipeline.cache is not None
    assert pipeline.cache.hits > 0


def test_a_batch_that_fails_leaves_nothing_behind() -> None:
    options = PipelineOptions(depth=2, cache_bytes=1 << 20, cached_from_bytes=1)
    pipeline, device, session = make(options)
    submit(pipeline, [[1]])
    session.fails = True
    with pytest.raises(Internal, match="the model fails"):
        submit(pipeline, [[1]])
    session.fails = False
    pipeline.collect()
    # What the failed batch would have put into the cache is not in it.
    run_all(pipeline, device, [[[1]], [[2]], [[1]], [[1], [2]]], 2)
    pipeline.close()
    assert device.allocated_bytes == 0


def test_an_output_that_cannot_be_copied_fails_its_batch() -> None:
    pipeline, device, _ = make(PipelineOptions(depth=2))
    waiting = submit(pipeline, [[4]])
    device.refuses_copy = 2
    with pytest.raises(Internal, match="out of order"):
        submit(pipeline, [[1]])
    check(pipeline, waiting)
    run_all(pipeline, device, [[[1]], [[2]]], 2)
    pipeline.close()
    assert device.allocated_bytes == 0


@pytest.mark.parametrize("how", ["host_inputs", "reads_early"])
def test_inputs_that_are_read_as_the_model_is_called(how: str) -> None:
    pipeline, device, session = make(PipelineOptions(depth=2))
    if how == "host_inputs":
        session.host_inputs = frozenset({"y"})
    else:
        session.reads_early = True
    expected = [submit(pipeline, [[number], [number + 5]]) for number in range(2)]
    assert session.early == [rows_of([number + 1, number + 6]) for number in range(2)]
    # The host has not waited for more than that.
    assert not pipeline.is_complete()
    for each in expected:
        check(pipeline, each)
    pipeline.close()
    assert device.allocated_bytes == 0


def test_what_is_in_flight_is_dropped_at_the_end() -> None:
    pipeline, device, _ = make(PipelineOptions(depth=2))
    submit(pipeline, [[1]])
    submit(pipeline, [[2]])
    pipeline.close()
    assert device.allocated_bytes == 0


def test_a_graph_serves_one_batch_at_a_time() -> None:
    device = HostDevice()
    session = Doubler(device, device.create_stream())
    graphs = capture(device, session, 4, depth=1)
    shapes: Shapes = {"x": (2, ROW), "y": (2, ROW)}
    graph = graphs.acquire(shapes)
    assert graph is not None
    assert graphs.acquire(shapes) is None
    assert [each.shape for each in graph.results(["s"], 2)] == [(2, ROW)]
    graphs.release(graph)
    assert graphs.acquire(shapes) is graph
    assert graphs.acquire({**shapes, "x": (5, ROW)}) is None


def test_outputs_of_a_graph_without_batching_are_whole() -> None:
    tensor = DeviceTensor(0, (4, 2), DTYPE)
    graph = CapturedGraph(0, {}, {"d": tensor}, lambda: None, batching=False)
    assert graph.results(["d"], 3) == [tensor]
