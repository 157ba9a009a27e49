"""The repository of the rows about sequences: the same files for both servers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

_SOURCES: Final = Path(__file__).with_name("python_models")

_TENSORS: Final = """\
input { name: "X" data_type: TYPE_FP32 dims: [-1] }
output { name: "Y" data_type: TYPE_FP32 dims: [1] }
output { name: "LOG" data_type: TYPE_STRING dims: [1] }
"""
_X: Final = 'input { name: "X" data_type: TYPE_FP32 dims: [-1] }\n'
_CODE: Final = """\
input { name: "CODE" data_type: TYPE_STRING dims: [1] }
output { name: "OUT" data_type: TYPE_STRING dims: [-1] }
output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""
_ONE: Final = "instance_group { count: 1 kind: KIND_CPU }\n"
_PAIRS: Final = {
    "int32": "int32_false_true: [0, 1]",
    "int32 others": "int32_false_true: [-7, 9]",
    "fp32": "fp32_false_true: [0, 1]",
    "fp32 others": "fp32_false_true: [0.5, -2.5]",
    "bool": "bool_false_true: [false, true]",
    "bool turned": "bool_false_true: [true, false]",
}
_LONG_US: Final = 60_000_000
_SHORT_US: Final = 400_000


def _control(name: str, content: str) -> str:
    kind = f"kind: CONTROL_SEQUENCE_{name}"
    return f'control_input {{ name: "{name}" control {{ {kind} {content} }} }}\n'


def _controls(start: str, end: str, ready: str, correlation: str) -> str:
    pairs = {"START": start, "END": end, "READY": ready}
    text = "".join(_control(name, _PAIRS[pair]) for name, pair in pairs.items() if pair)
    return text + _control("CORRID", f"data_type: TYPE_{correlation}")


def _batching(strategy: str, controls: str, idle_us: int = _LONG_US) -> str:
    idle = f"max_sequence_idle_microseconds: {idle_us}"
    return f"sequence_batching {{ {idle}\n{strategy}\n{controls}}}\n"


def _config(batch: int, batching: str, more: str = "") -> str:
    return f'backend: "python"\nmax_batch_size: {batch}\n{_TENSORS}{_ONE}{batching}{more}'


_DIRECT: Final = "direct { }"
_PLAIN: Final = _controls("int32", "int32", "int32", "UINT64")
# Every control with every type, some with pairs that are neither zero nor one.
_MODELS: Final[dict[str, str]] = {
    "direct": _config(4, _batching(_DIRECT, _controls("int32", "fp32", "bool", "UINT64"))),
    "oldest": _config(
        4,
        _batching(
            "oldest { max_candidate_sequences: 4 }", _controls("fp32", "bool", "int32", "INT64")
        ),
    ),
    "flat": _config(
        0, _batching(_DIRECT, _controls("bool", "int32 others", "fp32 others", "UINT32"))
    ),
    "texts": _config(
        2,
        _batching(_DIRECT, _controls("bool turned", "fp32", "int32", "STRING")),
    ),
    # One sequence at a time; others wait in the backlog.
    "one_direct": _config(1, _batching(_DIRECT, _controls("", "", "", "INT32"))),
    "short_direct": _config(1, _batching(_DIRECT, "", _SHORT_US)),
    "one_oldest": _config(1, _batching("oldest { max_candidate_sequences: 1 }", "")),
    # These wait for half of the slots, or for two candidates.
    "half_direct": _config(
        4,
        _batching(
            "direct { max_queue_delay_microseconds: 300000 minimum_slot_utilization: 0.5 }",
            _control("READY", _PAIRS["bool"]),
        ),
    ),
    "two_oldest": _config(
        4,
        _batching(
            "oldest { max_candidate_sequences: 4 preferred_batch_size: [2]"
            " max_queue_delay_microseconds: 300000 }",
            "",
        ),
    ),
    "stream": _config(
        4, _batching(_DIRECT, _PLAIN), "model_transaction_policy { decoupled: true }\n"
    ),
}
# By name: the source of models that send requests to the others.
_CALLERS: Final = {"script": "script", "waiting": "waiting"}


def _ensemble(batch: int, *steps: str, outputs: str = "Y LOG") -> str:
    tensors = _X
    for name in outputs.split():
        kind = "STRING" if name.startswith("LOG") else "FP32"
        tensors += f'output {{ name: "{name}" data_type: TYPE_{kind} dims: [1] }}\n'
    scheduling = "".join(f"step {{ {each} }}\n" for each in steps)
    return (
        f'platform: "ensemble"\nmax_batch_size: {batch}\n{tensors}'
        f"ensemble_scheduling {{ {scheduling} }}\n"
    )


def _step(model: str, inputs: str, outputs: str) -> str:
    """Both as `name=tensor …`."""
    text = f'model_name: "{model}" model_version: -1'
    for field, pairs in (("input_map", inputs), ("output_map", outputs)):
        for pair in pairs.split():
            key, _, value = pair.partition("=")
            text += f' {field} {{ key: "{key}" value: "{value}" }}'
    return text


_ENSEMBLES: Final[dict[str, str]] = {
    "through_direct": _ensemble(4, _step("direct", "X=X", "Y=Y LOG=LOG")),
    "through_flat": _ensemble(0, _step("flat", "X=X", "Y=Y LOG=LOG")),
    "through_texts": _ensemble(2, _step("texts", "X=X", "Y=Y LOG=LOG")),
    "through_both": _ensemble(
        4,
        _step("direct", "X=X", "Y=sum LOG=LOG"),
        _step("oldest", "X=sum", "Y=Y LOG=LOG2"),
        outputs="Y LOG LOG2",
    ),
    # The second step continues the sequence of the first.
    "through_twice": _ensemble(
        4,
        _step("direct", "X=X", "Y=sum LOG=LOG"),
        _step("direct", "X=sum", "Y=Y LOG=LOG2"),
        outputs="Y LOG LOG2",
    ),
    "through_nested": _ensemble(4, _step("through_direct", "X=X", "Y=Y LOG=LOG")),
    "through_stream": _ensemble(4, _step("stream", "X=X", "Y=Y LOG=LOG")),
}


def write_repository(root: Path) -> Path:
    for name, config in (_MODELS).items():
        _place(root, name, "sequenced", config)
    for name, source in _CALLERS.items():
        _place(root, name, source, f'backend: "python"\n{_CODE}{_ONE}')
    for name, config in _ENSEMBLES.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
    return root


def _place(root: Path, name: str, source: str, config: str) -> None:
    (root / name / "1").mkdir(parents=True)
    shutil.copy(_SOURCES / f"{source}.py", root / name / "1" / "model.py")
    (root / name / "config.pbtxt").write_text(config)
