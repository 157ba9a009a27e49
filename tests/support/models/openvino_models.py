"""Small models in OpenVINO's own format."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import openvino
import pytest
from openvino import opset13 as ops


def identity(directory: Path, datatype: str) -> None:
    """Write OUTPUT0 = INPUT0, of two variable dims, into the version's directory."""
    element = {"BOOL": "boolean", "BF16": "bf16"}.get(datatype)
    element = element or datatype.replace("UINT", "u").replace("INT", "i").replace("FP", "f")
    given = ops.parameter([-1, -1], getattr(openvino.Type, element), name="INPUT0")
    given.output(0).get_tensor().set_names({"INPUT0"})
    # Without an operation between them they would be the same tensor.
    made = ops.squeeze(ops.unsqueeze(given, 0), 0)
    made.output(0).get_tensor().set_names({"OUTPUT0"})
    model = openvino.Model([made], [given], "identity")
    directory.mkdir(parents=True, exist_ok=True)
    openvino.save_model(model, directory / "model.xml", compress_to_fp16=False)


def doubler(directory: Path) -> Path:
    """Write OUTPUT0 = 2 INPUT0, FP32, by an extension; return the extension's path."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    given = ops.parameter([-1, -1], openvino.Type.f32, name="INPUT0")
    given.output(0).get_tensor().set_names({"INPUT0"})
    made = ops.relu(given)
    made.output(0).get_tensor().set_names({"OUTPUT0"})
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "model.xml"
    openvino.save_model(openvino.Model([made], [given], "doubler"), path, compress_to_fp16=False)
    text = path.read_text()
    assert 'type="ReLU" version="opset1"' in text
    path.write_text(text.replace('type="ReLU" version="opset1"', 'type="Twice" version="native"'))
    package = Path(openvino.__file__).parent
    (library,) = package.glob("libs/libopenvino.so.*")
    extension = directory.parent / "extension.so"
    source = Path(__file__).parent / "openvino_operator.cpp"
    subprocess.run(
        [
            compiler, "-std=c++17", "-shared", "-fPIC", f"-I{package / 'include'}",
            "-o", extension, source, library, f"-Wl,-rpath,{package / 'libs'}",
        ],
        check=True,
    )  # fmt: skip
    return extension
