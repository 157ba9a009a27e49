"""Models in confined processes of their own, beside the same models in the executor."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from nereid.backends import Backend, InstanceSpec, ModelLostError
from nereid.core.errors import Internal, NereidError
from nereid.pb import model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_executor.backends.native.backend import ConfinedBackend
from nereid_executor.backends.native.model import NativeModel
from nereid_executor.backends.python.sandbox.policy import WorkerSandbox
from nereid_executor.backends.registry import BackendRegistry
from nereid_executor.batch.runner import Runner
from nereid_executor.settings import SandboxSettings
from tests.support.executor.frames import Frames
from tests.support.executor.instances import execute, instance
from tests.support.models import native_models, onnx_models, torch_models
from tests.support.models.onnx_models import head, member, write
from tests.support.models.onnx_types import ONNX_TYPE

Config = model_config_pb2.ModelConfig
RANDOM = np.random.default_rng(3)
NUMBERS = [name for name in ONNX_TYPE if name != "BYTES"]


def confined(config: Config, version: Path) -> ConfinedBackend:
    sandbox = WorkerSandbox()
    sandbox.configure(SandboxSettings(sandbox_models=True))
    confinement = sandbox.confinement_of(config, version.parent, sys.executable)
    assert confinement is not None
    return ConfinedBackend(confinement, BackendRegistry().load_backend(config.backend))


def backends(config: Config, version: Path) -> tuple[Backend, Backend]:
    return BackendRegistry().load_backend(config.backend), confined(config, version)


def spec_of(config: Config, version: Path) -> InstanceSpec:
    return instance(config, version, threads=1)


def outcomes(
    backend: Backend, spec: InstanceSpec, batches: list[list[pb.BatchMember]]
) -> list[pb.Executed]:
    """Return what the scheduler gets for each batch, without its times."""
    model: Any = backend.load(spec)
    runner = Runner(spec, model)
    found = []
    try:
        for members in batches:
            executed = execute(runner, *members)
            found.append(pb.Executed(responses=executed.responses, states=executed.states))
    finally:
        model.close()
    return found


def check_same(config: Config, version: Path, *batches: list[pb.BatchMember]) -> list[pb.Executed]:
    """Check that both ways describe and respond the same; return the responses."""
    here, there = backends(config, version)
    assert here.describe(config, version) == there.describe(config, version)
    spec = spec_of(config, version)
    expected = outcomes(here, spec, [*batches])
    assert outcomes(there, spec, [*batches]) == expected
    return expected


def payload(datatype: str, *shape: int) -> bytes:
    """Return random bytes, which include NaN, infinities and denormal numbers."""
    size = helper.tensor_dtype_to_np_dtype(ONNX_TYPE[datatype]).itemsize
    raw = RANDOM.bytes(int(np.prod(shape)) * size)
    return bytes(each & 1 for each in raw) if datatype == "BOOL" else raw


def strings(*elements: bytes) -> bytes:
    return b"".join(len(each).to_bytes(4, "little") + each for each in elements)


def test_all_types_of_numbers(tmp_path: Path) -> None:
    version = write(
        tmp_path / "1",
        [helper.make_node("Identity", [f"x{name}"], [f"y{name}"]) for name in NUMBERS],
        [onnx_models.value(f"x{name}", name, ["n", "m"]) for name in NUMBERS],
        [onnx_models.value(f"y{name}", name, ["n", "m"]) for name in NUMBERS],
    )
    fields = [
        f'input {{ name: "x{name}" data_type: TYPE_{name} dims: -1 }}'
        f' output {{ name: "y{name}" data_type: TYPE_{name} dims: -1 }}'
        for name in NUMBERS
    ]
    config = onnx_models.config("max_batch_size: 64 " + " ".join(fields))

    def request(*shape: int) -> pb.BatchMember:
        inputs = [(f"x{name}", name, [*shape]) for name in NUMBERS]
        return member(head(*inputs), *(payload(name, *shape) for name in NUMBERS))

    found = check_same(
        config,
        version,
        [request(1, 3)],
        [request(2, 5), request(1, 5), request(30, 5)],
        [request(1, 0)],
        [request(2, 40_000)],
    )
    assert not any(each.HasField("error") for every in found for each in every.responses)


def test_strings(tmp_path: Path) -> None:
    version = onnx_models.identity(tmp_path / "1", "BYTES", ["n", 2])
    config = onnx_models.identity_config("BYTES", "2")
    found = check_same(
        config,
        version,
        [member(head(("x", "BYTES", [1, 2])), strings(b"", "für".encode()))],
        [
            member(head(("x", "BYTES", [1, 2])), strings(b"\xff\xfe", b"a\0b")),
            member(head(("x", "BYTES", [2, 2])), strings(*[b"x" * 70_000] * 4)),
            member(head(("x", "BYTES", [1, 2])), strings(b"one")),
        ],
    )
    assert [each.HasField("error") for each in found[1].responses] == [False, False, True]


def test_operators_of_a_library(tmp_path: Path) -> None:
    version = native_models.doubler(tmp_path / "1")
    config = onnx_models.identity_config("FP32", "-1")
    config.model_operations.op_library_filename.append(native_models.LIBRARY)
    batches = [
        [member(head(("x", "FP32", [rows, 7])), payload("FP32", rows, 7)) for rows in many]
        for many in ([1], [1, 1, 3], [8])
    ]
    (first, *_) = check_same(config, version, *batches)
    doubled = 2 * np.frombuffer(batches[0][0].payloads[0].inline, np.float32)
    assert first.responses[0].payloads[0].inline == doubled.tobytes()


def test_an_extension_of_openvino(tmp_path: Path) -> None:
    openvino_models = pytest.importorskip("tests.support.models.openvino_models")
    version = tmp_path / "1"
    config = instance(
        'backend: "openvino" max_batch_size: 8'
        ' input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 }'
        ' output { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }'
    ).config
    extension = str(openvino_models.doubler(version))
    config.parameters["CPU_EXTENSION_PATH"].string_value = extension
    batches = [
        [member(head(("INPUT0", "FP32", [rows, 7])), payload("FP32", rows, 7)) for rows in many]
        for many in ([1], [1, 3])
    ]
    found = check_same(config, version, *batches)
    assert not any(each.HasField("error") for every in found for each in every.responses)


def test_errors_of_batches(tmp_path: Path) -> None:
    version = onnx_models.reshaper(tmp_path / "1")
    config = onnx_models.config(
        'input { name: "x" data_type: TYPE_FP32 dims: -1 }'
        ' input { name: "to" data_type: TYPE_INT64 dims: -1 }'
        ' output { name: "y" data_type: TYPE_FP32 dims: [-1, -1] }'
    )
    rows = np.array([2, -1], np.int64).tobytes()

    def request(size: int) -> pb.BatchMember:
        inputs = [("x", "FP32", [size]), ("to", "INT64", [2])]
        return member(head(*inputs), payload("FP32", size), rows)

    found = check_same(config, version, [request(4)], [request(5)], [request(6)])
    assert [each.responses[0].HasField("error") for each in found] == [False, True, False]


def test_implicit_states(tmp_path: Path) -> None:
    version = onnx_models.gru(tmp_path / "1", 3, 4)
    config = onnx_models.config(
        "max_batch_size: 8 input { name: 'X' data_type: TYPE_FP32 dims: 3 }"
        " output { name: 'Y' data_type: TYPE_FP32 dims: 4 } sequence_batching { state {"
        " input_name: 'H' output_name: 'H_OUT' data_type: TYPE_FP32 dims: 4 } }"
    )

    def step(slot: int, *, start: bool = False) -> pb.BatchMember:
        raw = RANDOM.normal(size=3).astype(np.float32).tobytes()
        request = member(head(("X", "FP32", [1, 3])), raw)
        request.sequence_slot = slot
        request.returns_state = True
        request.parameters["sequence_start"].bool_param = start
        return request

    found = check_same(
        config,
        version,
        [step(1, start=True), step(2, start=True)],
        [step(1), step(2)],
        [step(2), step(1)],
        [step(2)],
    )
    assert all(each.states for each in found)


def test_ragged_inputs(tmp_path: Path) -> None:
    version = onnx_models.ragged(tmp_path / "1")
    config = instance(onnx_models.RAGGED_CONFIG).config
    batches = [
        [member(head(("X", "FP32", [1, 2, size])), payload("FP32", 2, size)) for size in sizes]
        for sizes in ([3], [4, 1, 7], [2, 2], [5])
    ]
    found = check_same(config, version, *batches)
    assert not any(each.HasField("error") for every in found for each in every.responses)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torch_modules(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    # Sums and products of many floats show a difference of threads or kernels in their last bits.
    source = """
def forward(self, x, w):
    if x.shape[1] == 3:
        raise ValueError("three columns")
    y = torch.softmax(torch.tanh(torch.matmul(x, w[0])), 1)
    return y, torch.sum(torch.cumsum(y * x.mean(), 1), 1, keepdim=True), x.argsort(1)
"""
    version = torch_models.save(tmp_path / "1", source)
    config = instance(
        'backend: "pytorch" max_batch_size: 64 input { name: "x" data_type: TYPE_FP32 dims: -1 }'
        ' input { name: "w" data_type: TYPE_FP32 dims: [-1, -1] }'
        ' output { name: "y" data_type: TYPE_FP32 dims: -1 }'
        ' output { name: "s" data_type: TYPE_FP32 dims: 1 }'
        ' output { name: "i" data_type: TYPE_INT64 dims: -1 }'
    ).config

    def request(rows: int, columns: int) -> pb.BatchMember:
        x = RANDOM.normal(size=(rows, columns)).astype(np.float32)
        w = RANDOM.normal(size=(rows, columns, columns)).astype(np.float32)
        inputs = ("x", "FP32", [*x.shape]), ("w", "FP32", [*w.shape])
        return member(head(*inputs), x.tobytes(), w.tobytes())

    found = check_same(
        config,
        version,
        [request(1, 1)],
        [request(2, 257), request(1, 257), request(30, 257)],
        [request(1, 3)],
        [request(1, 512)],
    )
    assert [each.responses[0].HasField("error") for each in found] == [False, False, True, False]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("datatype", ["FP32", "FP16", "FP64", "INT8", "INT64", "UINT8", "BOOL"])
def test_types_of_torch(tmp_path: Path, datatype: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    version = torch_models.save(tmp_path / "1", "def forward(self, x):\n    return x\n")
    config = onnx_models.identity_config(datatype, "-1")
    config.backend = "pytorch"
    batches = [
        [member(head(("x", datatype, [rows, 9])), payload(datatype, rows, 9)) for rows in many]
        for many in ([1], [2, 1])
    ]
    found = check_same(config, version, *batches)
    assert not any(each.HasField("error") for every in found for each in every.responses)


def load_error(backend: Backend, spec: InstanceSpec) -> tuple[int, str]:
    try:
        backend.load(spec).close()
    except NereidError as error:
        return error.code, error.message
    return 0, ""


def no_file(version: Path, _config: Config) -> None:
    (version / "model.onnx").unlink()


def no_graph(version: Path, _config: Config) -> None:
    (version / "model.onnx").write_bytes(b"\x08")


def no_library(version: Path, _config: Config) -> None:
    (version.parent / native_models.LIBRARY).write_bytes(b"no library")


def other_type(_version: Path, config: Config) -> None:
    config.input[0].data_type = model_config_pb2.TYPE_INT8


def no_parameter(_version: Path, config: Config) -> None:
    config.parameters["intra_op_thread_count"].string_value = "many"


@pytest.mark.parametrize("harm", [no_file, no_graph, no_library, other_type, no_parameter])
def test_errors_of_loads(tmp_path: Path, harm: Callable[[Path, Config], None]) -> None:
    version = native_models.doubler(tmp_path / "1")
    config = onnx_models.identity_config("FP32", "-1")
    config.model_operations.op_library_filename.append(native_models.LIBRARY)
    harm(version, config)
    here, there = backends(config, version)
    spec = spec_of(config, version)
    assert load_error(here, spec) == load_error(there, spec) != (0, "")


@pytest.fixture
def doer(tmp_path: Path) -> Iterator[tuple[Runner, NativeModel]]:
    version = native_models.doer(tmp_path / "1")
    config = onnx_models.config(native_models.CONFIG + native_models.DOING)
    spec = spec_of(config, version)
    model = confined(config, version).load(spec)
    yield Runner(spec, model), model
    model.close()


def batch(number: int, command: str) -> bytes:
    inputs = head(("command", "UINT8", [len(command)]))
    return pb.Batch(id=number, members=[member(inputs, command.encode())]).SerializeToString()


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("segfault", "the worker of model 'm' ended with signal SIGSEGV"),
        ("exit", "the worker of model 'm' ended with exit code 7"),
        ("garble", "malformed message from its worker: a frame is too large"),
    ],
)
def test_a_lost_model_fails_its_batch_and_starts_again(
    doer: tuple[Runner, NativeModel], command: str, how: str
) -> None:
    runner, model = doer
    stream = Frames(batch(1, "unix"), batch(2, command), batch(3, "unix"))
    with pytest.raises(ModelLostError) as lost:
        runner.serve(stream, lambda: False)
    assert str(lost.value) == how
    first, second = map(pb.Executed.FromString, stream.sent)
    assert (first.id, second.id) == (1, 2)
    assert [each.HasField("error") for each in first.responses] == [False]
    text = f"Failed to process the request(s) for model instance 'm_0': {how}"
    assert [(each.error.code, each.error.message) for each in second.responses] == [(13, text)]
    assert model.restart(threading.Event())
    again = Frames(batch(4, "unix"))
    runner.serve(again, lambda: False)
    assert not pb.Executed.FromString(again.sent[0]).responses[0].HasField("error")


def test_a_model_that_ends_at_its_load(tmp_path: Path) -> None:
    version = native_models.doubler(tmp_path / "1")
    (version.parent / native_models.LIBRARY).write_bytes(native_models.library("-DABORT"))
    config = onnx_models.identity_config("FP32", "-1")
    config.model_operations.op_library_filename.append(native_models.LIBRARY)
    backend = confined(config, version)
    text = "the worker of model 'm' ended with signal SIGABRT"
    assert load_error(backend, spec_of(config, version)) == (13, text)
    with pytest.raises(Internal, match="SIGABRT"):
        backend.describe(config, version)
