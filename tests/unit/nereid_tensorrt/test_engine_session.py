"""Models of TensorRT on a device in host memory, with an engine that doubles its input."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from benchmarks.gpu.host_device import HostDevice
from nereid.backends import ModelDescription, TensorDescription
from nereid.core.errors import Internal, InvalidArgument
from nereid_tensorrt.engine_session import make_model
from nereid_tensorrt.optimization_profiles import ShapeRange
from tests.support.models.onnx_models import config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.backends.device_io.device_model import DeviceModel
    from nereid_tensorrt.engine import Engine
    from nereid_tensorrt.optimization_profiles import Profile

PROFILES: dict[int, Profile] = {
    0: {"x": ShapeRange((1, 4), (1, 4), (8, 4))},
    1: {"x": ShapeRange((1, 4), (16, 4), (16, 4))},
}
GRAPHS = "optimization { cuda { graphs: true } } "
BOUNDED = """optimization { cuda { graphs: true graph_spec {
    batch_size: 8 graph_lower_bound { batch_size: 2 } } } } """
FIXED = """optimization { cuda { graphs: true graph_spec {
    input { key: "x" value { dim: [ 2, 4 ] } } } } } """


class GraphDevice(HostDevice):
    """A HostDevice that captures what is enqueued as kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: dict[int, list[Callable[[], object]]] = {}
        self.launched: list[int] = []
        self._captured: list[Callable[[], object]] | None = None

    def enqueue_work(self, stream: int, work: Callable[[], object]) -> None:
        if self._captured is None:
            super().enqueue_work(stream, work)
        else:
            self._captured.append(work)

    def capture_graph(self, _stream: int, work: Callable[[], None]) -> int:
        self._captured = []
        work()
        graph = 1 + len(self.graphs)
        self.graphs[graph], self._captured = self._captured, None
        return graph

    def launch_graph(self, graph: int, stream: int) -> None:
        self.launched.append(graph)
        for work in self.graphs[graph]:
            super().enqueue_work(stream, work)

    def destroy_graph(self, graph: int) -> None:
        del self.graphs[graph]


class Allocator:
    """As engine.OutputAllocator."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.address, self.size_bytes = address, size_bytes
        self.shape: tuple[int, ...] = ()


class Context:
    """As TensorRT's: y is twice x; if the engine has it, z is what in x is above 0."""

    def __init__(self, engine: DoublingEngine, profile: int) -> None:
        self.engine, self.profile = engine, profile
        self.shape: tuple[int, ...] = (-1, 4)
        self.addresses: dict[str, int] = {}
        self.allocator: Allocator | None = None

    def set_input_shape(self, _name: str, shape: tuple[int, ...]) -> bool:
        self.shape = shape
        return not self.engine.refuses("shape")

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return not self.engine.refuses("address")

    def set_output_allocator(self, _name: str, allocator: Allocator) -> None:
        self.allocator = allocator

    def get_max_output_size(self, _name: str) -> int:
        return -1 if self.engine.refuses("size") else 4 * int(np.prod(self.shape))

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (-1,) if name == "z" else self.shape

    def execute_async_v3(self, stream: int) -> bool:
        shape, addresses, allocator = self.shape, dict(self.addresses), self.allocator

        def work() -> None:
            x = np.frombuffer(ctypes.string_at(addresses["x"], 4 * int(np.prod(shape))), np.float32)
            y = (2 * x).tobytes()
            ctypes.memmove(addresses["y"], y, len(y))
            if allocator is not None:
                z = x[x > 0]
                assert z.nbytes <= allocator.size_bytes
                ctypes.memmove(allocator.address, z.tobytes(), z.nbytes)
                allocator.shape = z.shape

        self.engine.device.enqueue_work(stream, work)
        return not self.engine.refuses("execution")


class DoublingEngine:
    """As engine.Engine."""

    def __init__(
        self, device: GraphDevice, outputs: Sequence[str] = ("y",), fails: str = ""
    ) -> None:
        self.device, self.fails = device, fails
        self.scratch_of: Any = ()
        self.scratch: set[tuple[int, int]] = set()
        self.description = ModelDescription(
            (TensorDescription("x", "FP32", (-1, 4)),),
            tuple(TensorDescription(name, "FP32", (-1, 4)) for name in outputs),
        )

    def refuses(self, what: str) -> bool:
        return what == self.fails

    def scratch_bytes(self, profiles: Any) -> int:
        self.scratch_of = None if profiles is None else list(profiles)
        return 100

    def create_context(self, profile: int, _stream: int, scratch: tuple[int, int]) -> Context:
        self.scratch.add(scratch)
        return Context(self, profile)

    make_allocator = Allocator

    def last_call_error(self, what: str) -> Internal:
        return Internal(f"{what}: because")


def load(
    engine: DoublingEngine, text: str = "", batching: str = "max_batch_size: 16 "
) -> DeviceModel:
    return make_model(config(batching + text), cast("Engine", engine), PROFILES, engine.device)


def rows(count: int) -> np.ndarray[Any, Any]:
    return np.arange(4 * count, dtype=np.float32).reshape(count, 4)


@pytest.mark.parametrize(
    ("text", "launches"),
    [
        ("", 0),
        ("optimization { input_pinned_memory { enable: true } } ", 0),
        ("optimization { output_pinned_memory { enable: true } } ", 0),
        (GRAPHS, 3),
        (BOUNDED, 3),
    ],
)
def test_batches_of_all_sizes(text: str, launches: int) -> None:
    device = GraphDevice()
    model = load(DoublingEngine(device), text)
    for count in (1, 8, 3, 1, 16, 8):
        (out,) = model.execute({"x": rows(count)}, ["y"])
        assert out.tolist() == (2 * rows(count)).tolist()
    assert len(device.launched) == launches
    model.close()
    assert (device.allocated_bytes, device.graphs) == (0, {})


def test_contexts_share_the_scratch_memory_that_the_strategy_needs() -> None:
    engine = DoublingEngine(GraphDevice())
    load(engine, GRAPHS).close()
    assert engine.scratch_of is None
    assert len(engine.scratch) == 1
    strategy = 'key: "execution_context_allocation_strategy" value { string_value: "%s" }'
    load(engine, f"parameters {{ {strategy % 'ON_PROFILE_CHANGE'} }}").close()
    assert engine.scratch_of == [0, 1]
    with pytest.raises(InvalidArgument, match="expected STATIC or ON_PROFILE_CHANGE but got 'x'"):
        load(engine, f"parameters {{ {strategy % 'x'} }}")


def test_a_batch_that_no_profile_allows_is_an_error() -> None:
    model = load(DoublingEngine(GraphDevice()))
    with pytest.raises(InvalidArgument, match="no optimization profile of model 'm' takes"):
        model.execute({"x": rows(17)}, ["y"])
    assert model.execute({"x": rows(1)}, ["y"])[0].tolist() == (2 * rows(1)).tolist()
    model.close()


def test_an_outputs_shape_may_depend_on_the_data() -> None:
    device = GraphDevice()
    model = load(DoublingEngine(device, ("y", "z")))
    for count in (1, 8):
        z, y = model.execute({"x": rows(count)}, ["z", "y"])
        assert z.tolist() == rows(count).ravel()[1:].tolist()
        assert y.tolist() == (2 * rows(count)).tolist()
    model.close()
    with pytest.raises(InvalidArgument, match="whose shapes depend on data: z"):
        load(DoublingEngine(device, ("y", "z")), FIXED, batching="")
    assert device.allocated_bytes == 0


@pytest.mark.parametrize(
    ("fails", "text"),
    [
        ("shape", "failed to set the shape of input 'x': because"),
        ("address", "failed to set the address of 'y': because"),
        ("size", "unable to get the size of 'y': because"),
    ],
)
def test_what_tensorrt_refuses_ends_the_load(fails: str, text: str) -> None:
    device = GraphDevice()
    with pytest.raises(Internal, match=text):
        load(DoublingEngine(device, fails=fails))
    assert device.allocated_bytes == 0


def test_an_execution_that_fails_is_the_batchs() -> None:
    engine = DoublingEngine(GraphDevice())
    model = load(engine)
    engine.fails = "execution"
    with pytest.raises(Internal, match="failed to execute TensorRT inference: because"):
        model.execute({"x": rows(1)}, ["y"])
    engine.fails = ""
    assert model.execute({"x": rows(1)}, ["y"])[0].tolist() == (2 * rows(1)).tolist()
    model.close()
