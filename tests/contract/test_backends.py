"""The contract of docs/backend-authors.md, for every backend whose package is installed here.

Each serves OUTPUT0 = INPUT0, through the code that executes batches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from google.protobuf import text_format
from onnx import helper

from nereid.backends import EMPTY_DESCRIPTION, InstanceSpec, Model, capabilities_of
from nereid.core.errors import InvalidArgument, NereidError, NotFound
from nereid.core.tensors.datatypes import NAMES, SIZE_BYTES
from nereid.pb import model_config_pb2
from nereid_executor.backends.registry import BackendRegistry
from nereid_executor.batch.runner import Runner
from tests.support.executor.instances import responses as responses_to
from tests.support.models import openvino_models, torch_models
from tests.support.models.onnx_models import head, member, response_of, value, write


def save_nothing(directory: Path, _datatype: str) -> None:
    directory.mkdir()


def save_onnx(directory: Path, datatype: str) -> None:
    given, made = (value(name, datatype, ["n", "m"]) for name in ("INPUT0", "OUTPUT0"))
    write(directory, [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])], [given], [made])


def save_torchscript(directory: Path, datatype: str) -> None:
    kind = "List[str]" if datatype == "BYTES" else "Tensor"
    torch_models.save(directory, f"def forward(self, INPUT0: {kind}):\n    return INPUT0\n")


@dataclass(frozen=True)
class Kind:
    """A backend, and how its model comes to be."""

    name: str
    package: str
    # Writes the model into a version directory: any size, any batch.
    save: Callable[[Path, str], None]
    filename: str = ""
    datatypes: frozenset[str] = NAMES
    # The file says what its tensors are.
    describes: bool = True
    # BYTES are anything, and not text alone.
    takes_any_bytes: bool = False


KINDS = (
    Kind("identity", "numpy", save_nothing, describes=False, takes_any_bytes=True),
    Kind("onnxruntime", "onnxruntime", save_onnx, "model.onnx"),
    Kind("pytorch", "torch", save_torchscript, "model.pt", NAMES - {"BYTES"}, describes=False),
    Kind("openvino", "openvino", openvino_models.identity, "model.xml", NAMES - {"BYTES"}),
)


# PyTorch has begun to advise against TorchScript.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    if not find_spec(kind.package):
        pytest.skip(f"{kind.package} is not installed")
    return kind


def spec_of(
    kind: Kind, path: Path, datatype: str = "FP32", max_batch_size: int = 8
) -> InstanceSpec:
    dims = "dims: -1" if max_batch_size else "dims: [ -1, -1 ]"
    tensor = f"data_type: TYPE_{'STRING' if datatype == 'BYTES' else datatype} {dims}"
    text = f"""
        name: "m" backend: "{kind.name}" max_batch_size: {max_batch_size}
        input {{ name: "INPUT0" {tensor} }}
        output {{ name: "OUTPUT0" {tensor} }}
    """
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    return InstanceSpec(config=config, version=1, version_path=path, name="m_0")


def loaded(kind: Kind, spec: InstanceSpec) -> Model:
    model = BackendRegistry().load_backend(kind.name).load(spec)
    assert not capabilities_of(model).executes_requests
    return cast(Model, model)


def raw_of(datatype: str, count: int, *, any_bytes: bool = False) -> bytes:
    if datatype == "BYTES":
        elements = [b"" if index % 2 else "é\0".encode() * index for index in range(count)]
        if any_bytes:
            elements[0] = b"\xff"
        return b"".join(len(each).to_bytes(4, "little") + each for each in elements)
    if datatype == "BOOL":
        return bytes(index % 2 for index in range(count))
    if datatype.startswith("FP"):
        return np.arange(count).astype(f"f{SIZE_BYTES[datatype]}").tobytes()
    if datatype == "BF16":
        return np.arange(count).astype("<f4").view("<u2")[1::2].tobytes()
    return np.arange(count).astype(f"{datatype[0].lower()}{SIZE_BYTES[datatype]}".lower()).tobytes()


@pytest.mark.parametrize("datatype", sorted(NAMES))
def test_each_member_of_a_batch_gets_its_own_rows(
    kind: Kind, tmp_path: Path, datatype: str
) -> None:
    if datatype not in kind.datatypes:
        pytest.skip(f"{kind.name} has no {datatype}")
    kind.save(tmp_path / "1", datatype)
    spec = spec_of(kind, tmp_path / "1", datatype)
    model = loaded(kind, spec)
    runner = Runner(spec, model)
    raws = [raw_of(datatype, 2 * rows, any_bytes=kind.takes_any_bytes) for rows in (1, 3)]
    for _ in range(2):
        responses = responses_to(
            runner,
            member(head(("INPUT0", datatype, [1, 2])), raws[0]),
            member(head(("INPUT0", datatype, [3, 2])), raws[1]),
        )
        assert [response_of(each) for each in responses] == [
            [("OUTPUT0", datatype, [1, 2], raws[0])],
            [("OUTPUT0", datatype, [3, 2], raws[1])],
        ]
    model.close()


@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BF16"])
def test_a_model_without_batching(kind: Kind, tmp_path: Path, datatype: str) -> None:
    if datatype not in kind.datatypes:
        pytest.skip(f"{kind.name} has no {datatype}")
    kind.save(tmp_path / "1", datatype)
    spec = spec_of(kind, tmp_path / "1", datatype, 0)
    runner = Runner(spec, loaded(kind, spec))
    raw = raw_of(datatype, 4)
    (response,) = responses_to(runner, member(head(("INPUT0", datatype, [2, 2])), raw))
    assert response_of(response) == [("OUTPUT0", datatype, [2, 2], raw)]


def test_a_file_is_described_as_it_is_loaded(kind: Kind, tmp_path: Path) -> None:
    kind.save(tmp_path / "1", "FP32")
    spec = spec_of(kind, tmp_path / "1")
    backend = BackendRegistry().load_backend(kind.name)
    described, model = backend.describe(spec.config, spec.version_path), loaded(kind, spec)
    assert described == model.description
    if kind.describes:
        (given,), (made,) = described[:2]
        assert given[:3] == ("INPUT0", "FP32", (-1, -1))
        assert made[:3] == ("OUTPUT0", "FP32", (-1, -1))
    else:
        assert described is EMPTY_DESCRIPTION


def test_a_missing_file_is_not_found(kind: Kind, tmp_path: Path) -> None:
    if not kind.filename:
        pytest.skip(f"{kind.name} has no file")
    spec = spec_of(kind, tmp_path / "1")
    expected = (
        f"failed to load 'm': unable to find '{tmp_path / '1' / kind.filename}' for model 'm'"
    )
    with pytest.raises(NotFound) as caught:
        loaded(kind, spec)
    assert caught.value.message == expected


def test_a_broken_file_is_an_error_that_names_the_model(kind: Kind, tmp_path: Path) -> None:
    if not kind.filename:
        pytest.skip(f"{kind.name} has no file")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / kind.filename).write_bytes(b"this is no model")
    backend, spec = BackendRegistry().load_backend(kind.name), spec_of(kind, tmp_path / "1")
    with pytest.raises(NereidError, match="failed to load 'm'"):
        loaded(kind, spec)
    if kind.describes:
        with pytest.raises(NereidError, match="failed to load 'm'"):
            backend.describe(spec.config, spec.version_path)


def test_a_configuration_that_does_not_fit_the_file_is_refused(kind: Kind, tmp_path: Path) -> None:
    if not kind.describes:
        pytest.skip(f"{kind.name} has nothing to compare with")
    kind.save(tmp_path / "1", "INT32")
    with pytest.raises(InvalidArgument, match="expects datatype TYPE_FP32"):
        loaded(kind, spec_of(kind, tmp_path / "1", "FP32"))


def test_instances_of_a_model_run_side_by_side(kind: Kind, tmp_path: Path) -> None:
    kind.save(tmp_path / "1", "FP32")
    errors: list[Any] = []

    def serve(number: int) -> None:
        spec = replace(spec_of(kind, tmp_path / "1"), name=f"m_{number}")
        model = loaded(kind, spec)
        runner = Runner(spec, model)
        for turn in range(50):
            raw = np.full(6, 100 * number + turn, "f4").tobytes()
            (response,) = responses_to(runner, member(head(("INPUT0", "FP32", [3, 2])), raw))
            if response.payloads[0].inline != raw:
                errors.append(response)
        model.close()

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
