"""Small models in OpenVINO's own format."""

from __future__ import annotations

from pathlib import Path

import openvino
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
