"""Known parameters, and what is nearly one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from nereid.pb.model_config_pb2 import ModelConfig
from nereid_mesh.check.parameters import (
    KNOWN_PARAMETERS,
    UNREAD_PARAMETERS,
    misspelled,
    unused_parameters,
)

_SOURCES = {
    "onnxruntime": "nereid_executor.backends.onnx",
    "openvino": "nereid_openvino.backend",
    "python": "nereid_executor.backends.python",
    "pytorch": "nereid_pytorch",
    "tensorrt": "nereid_tensorrt",
}


def parameters(backend: str, *names: str) -> ModelConfig:
    made = ModelConfig(backend=backend)
    for name in names:
        made.parameters[name].string_value = "1"
    return made


@pytest.mark.parametrize(
    ("backend", "written", "meant"),
    [
        ("onnxruntime", "intra_op_thread_cout", "intra_op_thread_count"),
        ("pytorch", "inference_mode", "INFERENCE_MODE"),
        ("python", "EXECUTION_ENV_PATHS", "EXECUTION_ENV_PATH"),
        ("python", "admission_target", "admission_target_ms"),
        ("python", "temperature", ""),
        ("onnxruntime", "padding", ""),
        ("tensorrt", "INFERENCE_MODE", ""),
        ("python", "traffik", "traffic"),
        ("", "conditions.dbl", "condition.dbl"),
        ("", "Condition.dbl", "condition.dbl"),
        ("python", "defaults.X", "default.X"),
        ("python", "condition.dbl", ""),
        ("python", "default", ""),
    ],
)
def test_misspelled(backend: str, written: str, meant: str) -> None:
    expected = [(written, meant)] if meant else []
    assert [*misspelled(parameters(backend, written))] == expected


def test_a_model_that_has_the_known_one_as_well_knows_what_it_does() -> None:
    assert not [*misspelled(parameters("pytorch", "inference_mode", "INFERENCE_MODE"))]


@pytest.mark.parametrize(
    ("backend", "unused"),
    [
        ("onnxruntime", ["condition.x", "default.a", "default.c", "default.scale"]),
        ("python", ["default.a", "default.scale"]),
    ],
)
def test_defaults_need_an_optional_input_and_conditions_an_ensemble(
    backend: str, unused: list[str]
) -> None:
    names = ("default.a", "default.b", "default.c", "default.scale", "scales", "b", "condition.x")
    model = parameters(backend, *names)
    model.input.add(name="a")
    model.input.add(name="b", optional=True)
    model.input.add(name="scales", optional=True)
    assert [name for name, _ in unused_parameters(model)] == unused
    assert ("default.scale", "did you mean 'default.scales'?") in [*unused_parameters(model)]
    model.ensemble_scheduling.SetInParent()
    assert not [*unused_parameters(model)]


@pytest.mark.parametrize("backend", sorted(UNREAD_PARAMETERS))
def test_parameters_that_only_tritons_backends_read(backend: str) -> None:
    unread = UNREAD_PARAMETERS[backend]
    model = parameters(backend, *unread)
    assert dict(unused_parameters(model)) == unread
    assert [*misspelled(model)] == []
    assert not unread.keys() & {*KNOWN_PARAMETERS[backend]}
    assert [*unused_parameters(parameters("onnxruntime", *unread))] == []


@pytest.mark.parametrize("backend", sorted(KNOWN_PARAMETERS))
def test_backends_read_what_is_known_of_them(backend: str) -> None:
    spec = find_spec(_SOURCES[backend])
    assert spec is not None
    assert spec.origin is not None
    place = Path(spec.origin)
    files = [*place.parent.rglob("*.py")] if place.name == "__init__.py" else [place]
    source = "".join(each.read_text() for each in files)
    assert [name for name in KNOWN_PARAMETERS[backend] if f'"{name}"' not in source] == []
