"""Stateful models as the client repository's examples use them: OUTPUT is the sum of a sequence's
INPUTs so far. Each is written for ONNX Runtime, with implicit state, and for the Python backend.

"sequence" is of the strategy direct; "dyna_sequence" and "string_dyna_sequence" are of oldest, and
add their correlation id at END.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.support.models import onnx_models, python_models
from tests.support.models.onnx_models import value

BACKENDS: Final = ("onnxruntime", "python")
# By name: the type of correlation ids.
NAMES: Final = {"sequence": "", "dyna_sequence": "UINT64", "string_dyna_sequence": "STRING"}

_CONFIG: Final = """
backend: "{backend}"
max_batch_size: 8
input {{ name: "INPUT" data_type: TYPE_INT32 dims: [1] }}
output {{ name: "OUTPUT" data_type: TYPE_INT32 dims: [1] }}
instance_group [{{ count: 1 kind: KIND_CPU }}]
sequence_batching {{
  max_sequence_idle_microseconds: 60000000
  {strategy}
  {controls}
}}
"""
_CONTROL: Final = 'control_input {{ name: "{0}" control {{ kind: CONTROL_SEQUENCE_{0} {1} }} }}\n'
_OLDEST: Final = (
    "oldest { max_candidate_sequences: 64 preferred_batch_size: [4]"
    " max_queue_delay_microseconds: 500 }"
)
# With text as a correlation id there is none: an empty one is no number.
_WARMUP: Final = 'model_warmup {{ name: "zeros" batch_size: 1 {} }}\n'
_ZEROS: Final = 'inputs {{ key: "{}" value {{ data_type: TYPE_{} dims: [1] zero_data: true }} }} '
_STATE: Final = """
state { input_name: "SUM" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [1]
  initial_state { data_type: TYPE_INT32 dims: [1] zero_data: true name: "zero" } }
"""


def save(
    root: Path, name: str, backend: str, prefix: str = "", *, with_warmup: bool = True
) -> None:
    """Add one of NAMES to a repository, with a prefix to its name."""
    correlation = NAMES[name]
    flags = ("START", "READY", "END") if correlation else ("START", "READY")
    controls = "".join(_CONTROL.format(each, "int32_false_true: [0, 1]") for each in flags)
    if correlation:
        controls += _CONTROL.format("CORRID", f"data_type: TYPE_{correlation}")
    strategy = _OLDEST if correlation else "direct { }"
    warmup = ""
    if with_warmup and correlation != "STRING":
        zeros = "".join(_ZEROS.format(each, "INT32") for each in ("INPUT", *flags))
        warmup = _WARMUP.format(zeros + (correlation and _ZEROS.format("CORRID", correlation)))
    if backend == "python":
        config = _CONFIG.format(backend=backend, strategy=strategy, controls=controls)
        python_models.save(root, "accumulator", config + warmup, f"{prefix}{name}")
        return
    _write_graph(root / f"{prefix}{name}" / "1", flags, correlation)
    config = _CONFIG.format(backend=backend, strategy=strategy, controls=controls + _STATE)
    config += warmup
    (root / f"{prefix}{name}" / "config.pbtxt").write_text(config)


def _write_graph(directory: Path, flags: tuple[str, ...], correlation: str) -> None:
    """SUM_OUT = INPUT + SUM of a sequence that goes on; null requests leave SUM as it is."""
    node = helper.make_node
    nodes = [
        node("Sub", ["ONE", "START"], ["GOES_ON"]),
        node("Mul", ["SUM", "GOES_ON"], ["BEFORE"]),
        node("Add", ["BEFORE", "INPUT"], ["AFTER"]),
        node("Cast", ["READY"], ["IS_READY"], to=TensorProto.BOOL),
        node("Where", ["IS_READY", "AFTER", "SUM"], ["SUM_OUT"]),
    ]
    inputs = [value(each, "INT32", ["n", 1]) for each in ("INPUT", "SUM", *flags)]
    if correlation:
        # Text becomes a number.
        nodes += [
            node("Cast", ["CORRID"], ["NUMBER"], to=TensorProto.INT64),
            node("Cast", ["NUMBER"], ["ID"], to=TensorProto.INT32),
            node("Mul", ["ID", "END"], ["ADDED"]),
            node("Add", ["SUM_OUT", "ADDED"], ["OUTPUT"]),
        ]
        datatype = "BYTES" if correlation == "STRING" else correlation
        inputs.append(value("CORRID", datatype, ["n", 1]))
    else:
        nodes.append(node("Identity", ["SUM_OUT"], ["OUTPUT"]))
    outputs = [value(each, "INT32", ["n", 1]) for each in ("OUTPUT", "SUM_OUT")]
    one = numpy_helper.from_array(np.array([[1]], np.int32), "ONE")
    onnx_models.write(directory, nodes, inputs, outputs, [one])
