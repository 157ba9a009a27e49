"""Ensemble: a Python model that scales its input, the perceptron, a Python model for the softmax.

On Triton, the perceptron is a Python model as well, because Triton's wheel has no other backend.
"""

from pathlib import Path

import numpy as np

from benchmarks.models import mlp
from benchmarks.models.workload import ONNX_SCRIPT, Workload, write_script

NAME = "ensemble"
_SCALE = 0.5
_ENSEMBLE = f"""\
name: "{NAME}"
platform: "ensemble"
max_batch_size: {mlp.MAX_BATCH_SIZE}
input [ {{ name: "{mlp.INPUT}" data_type: TYPE_FP32 dims: [ {mlp.WIDTHS[0]} ] }} ]
output [ {{ name: "{mlp.OUTPUT}" data_type: TYPE_FP32 dims: [ {mlp.WIDTHS[-1]} ] }} ]
ensemble_scheduling {{ step [
  {{ model_name: "scale" model_version: -1
    input_map {{ key: "INPUT" value: "{mlp.INPUT}" }}
    output_map {{ key: "OUTPUT" value: "scaled" }} }},
  {{ model_name: "{mlp.NAME}" model_version: -1
    input_map {{ key: "{mlp.INPUT}" value: "scaled" }}
    output_map {{ key: "{mlp.OUTPUT}" value: "logits" }} }},
  {{ model_name: "softmax" model_version: -1
    input_map {{ key: "INPUT" value: "logits" }}
    output_map {{ key: "OUTPUT" value: "{mlp.OUTPUT}" }} }}
] }}
"""
_STEP = """\
name: "{name}"
backend: "python"
max_batch_size: {batch}
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ {width} ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ {width} ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
dynamic_batching {{ }}
"""


def workload(_cache: Path) -> Workload:
    """Return the workload."""
    inputs = mlp.example(3)
    logits = mlp.expected_response(inputs * np.float32(_SCALE))
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return Workload(
        name=NAME,
        served=NAME,
        inputs={mlp.INPUT: inputs},
        expected={mlp.OUTPUT: powers / powers.sum(axis=1, keepdims=True)},
        write=_write,
        graph=None,
        batched=mlp.NAME,
        max_batch_size=mlp.MAX_BATCH_SIZE,
    )


def _write(repository: Path, backend: str) -> None:
    mlp.write_repository(repository, backend, ONNX_SCRIPT if backend == "python" else None)
    for name, width in (("scale", mlp.WIDTHS[0]), ("softmax", mlp.WIDTHS[-1])):
        config = _STEP.format(name=name, width=width, batch=mlp.MAX_BATCH_SIZE)
        write_script(repository, name, f"{name}.py", config)
    # An ensemble has no files, but a version.
    (repository / NAME / "1").mkdir(parents=True, exist_ok=True)
    (repository / NAME / "config.pbtxt").write_text(_ENSEMBLE)
