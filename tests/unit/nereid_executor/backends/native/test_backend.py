"""Which models get a confined process of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid.backends import Backend
from nereid.core.errors import InvalidArgument
from nereid_executor.backends import identity
from nereid_executor.backends.native.backend import ConfinedBackend, confined
from nereid_executor.backends.onnx import backend as onnx_backend
from nereid_executor.backends.python import backend as python_backend
from nereid_executor.backends.python.sandbox.policy import WORKER_SANDBOX
from nereid_executor.settings import SandboxSettings
from tests.support.executor.instances import instance

LIBRARY = 'model_operations { op_library_filename: "o.so" }'
VERSION = Path("/models/m/1")


@pytest.fixture
def allowed() -> Iterator[None]:
    settings = SandboxSettings(sandbox_models=True, sandbox_allow=("in-process",))
    WORKER_SANDBOX.configure(settings)
    yield
    WORKER_SANDBOX.configure(SandboxSettings())


def parameter(name: str, text: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{text}" }} }}'


def accelerator(name: str, parameter: str = "gpu_mem_limit", kind: str = "gpu") -> str:
    return (
        f"optimization {{ execution_accelerators {{ {kind}_execution_accelerator"
        f' {{ name: "{name}" parameters {{ key: "{parameter}" value: "1" }} }} }} }}'
    )


def is_confined(backend: Backend, written: str) -> bool:
    chosen = confined(backend, instance(written).config, VERSION)
    assert chosen is backend or isinstance(chosen, ConfinedBackend)
    return chosen is not backend


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", False),
        (LIBRARY, True),
        (accelerator("cuda"), False),
        (accelerator("cuda", "enable_cuda_graph"), False),
        (accelerator("cuda", "gpu_external_alloc"), True),
        (accelerator("tensorrt"), True),
        (accelerator("openvino", kind="cpu"), True),
        (parameter("session.disable_prepacking", "1"), False),
        (parameter("session.model_external_initializers_file_folder_path", "/"), True),
        (parameter("session.enable_profiling", "1"), True),
        (parameter("sandbox_process", "true"), True),
        (LIBRARY + parameter("sandbox_allow", "in-process"), False),
        (LIBRARY + parameter("sandbox_allow", "in-process") + parameter("sandbox_process", "1"),
         True),
    ],
)  # fmt: skip
def test_models_of_onnx_runtime(written: str, expected: bool) -> None:
    assert is_confined(onnx_backend, written) is expected


@pytest.mark.usefixtures("allowed")
def test_other_backends() -> None:
    openvino = pytest.importorskip("nereid_openvino.backend")
    assert not is_confined(openvino, "")
    assert is_confined(openvino, parameter("CPU_EXTENSION_PATH", "/o.so"))
    assert not is_confined(identity, "")
    assert is_confined(identity, parameter("sandbox_process", "true"))
    # Its models have workers anyway.
    assert not is_confined(python_backend, parameter("sandbox_process", "true"))


def test_without_the_flag_all_models_are_in_the_executor() -> None:
    assert not is_confined(onnx_backend, LIBRARY + parameter("sandbox_process", "true"))


@pytest.mark.usefixtures("allowed")
def test_what_a_model_asks_for_in_vain() -> None:
    with pytest.raises(InvalidArgument, match="'network', which --sandbox-allow does not allow"):
        is_confined(onnx_backend, LIBRARY + parameter("sandbox_allow", "network"))
    with pytest.raises(InvalidArgument, match="'sandbox_process'"):
        is_confined(onnx_backend, parameter("sandbox_process", "perhaps"))
