"""The names of backends' libraries that configurations may have."""

from __future__ import annotations

import pytest

from nereid.core.errors import InvalidArgument
from nereid.model_config import parse_config
from nereid.model_config.validation.runtimes import validate_runtime


@pytest.mark.parametrize(
    ("backend", "runtime"),
    [
        ("onnxruntime", ""),
        ("onnxruntime", "libtriton_onnxruntime.so"),
        ("python", "libtriton_python.so"),
        ("identity", "libtriton_identity.so"),
        # The backend reports that it does not offer such models.
        ("pytorch", "model.py"),
        ("custom", "model.py"),
        ("custom", "libcustom.so"),
        ("", "libcustom.so"),
    ],
)
def test_libraries_of_the_backend(backend: str, runtime: str) -> None:
    validate_runtime(parse_config(f'backend: "{backend}" runtime: "{runtime}"', model_name="m"))


@pytest.mark.parametrize(
    ("backend", "runtime", "kind"),
    [
        ("python", "model.py", "Python backend based backend library"),
        ("tensorrt", "model.py", "Python backend based backend library"),
        ("onnxruntime", "libtriton_python.so", "backend library"),
        ("openvino", "../libtriton_openvino.so", "backend library"),
    ],
)
def test_other_libraries(backend: str, runtime: str, kind: str) -> None:
    text = f'name: "m" backend: "{backend}" runtime: "{runtime}"'
    with pytest.raises(InvalidArgument) as caught:
        validate_runtime(parse_config(text, model_name="m"))
    assert caught.value.message == f"unable to find {kind} '{runtime}' for model 'm'"
