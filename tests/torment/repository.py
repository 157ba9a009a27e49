"""The model repository of a campaign, and its edits.

Every model computes from VALUE (INT64) a RESULT and tells its VERSION, as contract.py has it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper, numpy_helper

from tests.support.models import accumulators, python_models
from tests.support.models.onnx_models import value
from tests.torment.contract import FACTOR, HALF, MODELS

# Of INT64: over the limit from which on tensors travel in shared memory. Its model takes any
# number.
LARGE_ELEMENTS = 12_000
_TENSORS = """
input {{ name: "VALUE" data_type: TYPE_INT64 dims: [{size}] }}
output [
  {{ name: "RESULT" data_type: TYPE_INT64 dims: [{size}] }},
  {{ name: "VERSION" data_type: TYPE_INT64 dims: [{size}] }}
]
"""
_ONNX = (
    """backend: "onnxruntime"
max_batch_size: 8
dynamic_batching {{ }}
instance_group [{{ count: 1 kind: KIND_CPU }}]
"""
    + _TENSORS
)
_PYTHON = (
    """backend: "python"
max_batch_size: 0
instance_group [{{ count: 1 kind: KIND_CPU }}]
parameters {{ key: "kind" value {{ string_value: "{kind}" }} }}
parameters {{ key: "runs" value {{ string_value: "{runs}" }} }}
{more}
"""
    + _TENSORS
)
_SNAPSHOTS = 'parameters { key: "sequence_snapshot_interval" value { string_value: "1" } }\n'
_ENSEMBLE = (
    """platform: "ensemble"
max_batch_size: 8
ensemble_scheduling {{ step [
  {{ model_name: "steady" model_version: -1
    input_map {{ key: "VALUE" value: "VALUE" }} output_map {{ key: "RESULT" value: "between" }} }},
  {{ model_name: "last" model_version: -1
    input_map {{ key: "VALUE" value: "between" }}
    output_map [{{ key: "RESULT" value: "RESULT" }}, {{ key: "VERSION" value: "VERSION" }}] }}
] }}
"""
    + _TENSORS
)
# The first step computes FACTOR * VALUE + 1.
_BRANCHES = (
    """platform: "ensemble"
max_batch_size: 8
ensemble_scheduling {{ step [
  {{ model_name: "steady" model_version: -1
    input_map {{ key: "VALUE" value: "VALUE" }} output_map {{ key: "RESULT" value: "between" }} }},
  {{ model_name: "last" model_version: -1
    input_map {{ key: "VALUE" value: "VALUE" }}
    output_map [{{ key: "RESULT" value: "RESULT" }}, {{ key: "VERSION" value: "VERSION" }}] }},
  {{ model_name: "negated" model_version: -1
    input_map {{ key: "VALUE" value: "VALUE" }}
    output_map [{{ key: "RESULT" value: "RESULT" }}, {{ key: "VERSION" value: "VERSION" }}] }}
] }}
parameters {{ key: "condition.last" value {{ string_value: "between < {limit}" }} }}
parameters {{ key: "condition.negated" value {{ string_value: "between >= {limit}" }} }}
"""
    + _TENSORS
)


class Repository:
    """A directory of models; the paths in it are those that the mesh reads."""

    def __init__(self, directory: Path, runs: Path) -> None:
        """runs: where the at-most-once model appends the ids that it runs."""
        self.directory, self._runs = directory, runs
        # The newest version of each edited model.
        self.versions = {name: 1 for name, model in MODELS.items() if model.is_edited}

    def write(self) -> None:
        for name, more in (
            ("onnx", ""),
            ("steady", ""),
            ("last", ""),
            ("negated", ""),
            ("cached", "response_cache { enable: true }\n"),
            ("large", ""),
        ):
            size = -1 if name == "large" else 1
            self._write_onnx(name, 1)
            config = _ONNX.format(size=size) + more
            (self.directory / name / "config.pbtxt").write_text(config)
        for name, more in (
            ("python", ""),
            ("decoupled", "model_transaction_policy { decoupled: true }"),
            ("once", 'parameters { key: "at_most_once" value { string_value: "true" } }'),
            ("bls", ""),
        ):
            self._write_python(name, 1)
            config = _PYTHON.format(kind=name, runs=self._runs, more=more, size=1)
            (self.directory / name / "config.pbtxt").write_text(config)
        for name, config in (("ensemble", _ENSEMBLE), ("branches", _BRANCHES)):
            ensemble = self.directory / name
            (ensemble / "1").mkdir(parents=True)
            text = config.format(size=1, limit=FACTOR * HALF + 1)
            (ensemble / "config.pbtxt").write_text(text)
        for name, kind in (("direct", "sequence"), ("oldest", "dyna_sequence")):
            accumulators.save(self.directory, kind, "onnxruntime")
            (self.directory / kind).rename(self.directory / name)
            # A sequence that its client has given up holds its slot until then.
            path = self.directory / name / "config.pbtxt"
            config = path.read_text().replace(": 60000000", ": 10000000")
            if name == "oldest":
                config += _SNAPSHOTS
            path.write_text(config)

    def edit(self, name: str) -> int:
        """Write a model's next version over the last one; its number. Raises OSError."""
        version = self.versions[name] + 1
        if MODELS[name].is_python:
            self._write_python(name, version)
        else:
            self._write_onnx(name, version)
        self.versions[name] = version
        return version

    def break_file(self, name: str) -> None:
        """Write what no backend can load; the next edit repairs it. Raises OSError."""
        path = self._file(name)
        _replace(path, b"this is no model (")

    def repair(self, name: str) -> None:
        """Write the newest version again. Raises OSError."""
        self.versions[name] -= 1
        self.edit(name)

    def _file(self, name: str) -> Path:
        return (
            self.directory / name / "1" / ("model.py" if MODELS[name].is_python else "model.onnx")
        )

    def _write_python(self, name: str, version: int) -> None:
        text = python_models.source("tormented")
        _replace(
            self.directory / name / "1" / "model.py",
            text.replace("VERSION = 1", f"VERSION = {version}").encode(),
        )

    def _write_onnx(self, name: str, version: int) -> None:
        size = "size" if name == "large" else 1
        tensors = [value(each, "INT64", ["n", size]) for each in ("VALUE", "RESULT", "VERSION")]
        sign = -1 if name == "negated" else 1
        constants = {"factor": sign * FACTOR, "zero": 0, "version": version, "sum": sign * version}
        graph = helper.make_graph(
            [
                helper.make_node("Mul", ["VALUE", "factor"], ["product"]),
                helper.make_node("Add", ["product", "sum"], ["RESULT"]),
                helper.make_node("Mul", ["VALUE", "zero"], ["zeros"]),
                helper.make_node("Add", ["zeros", "version"], ["VERSION"]),
            ],
            name,
            tensors[:1],
            tensors[1:],
            [
                numpy_helper.from_array(np.array(each, np.int64), key)
                for key, each in constants.items()
            ],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        _replace(self.directory / name / "1" / "model.onnx", model.SerializeToString())


def _replace(path: Path, content: bytes) -> None:
    """As deployments do: readers see the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    try:
        new.write_bytes(content)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
