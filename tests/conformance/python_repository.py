"""The repository of the rows about Python models and ensembles: the same files for both servers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from tests.conformance import drain, life_cycle_repository, sequence_repository
from tests.conformance.row_models import write_repository

_SOURCES: Final = Path(__file__).with_name("python_models")

_ONE: Final = "instance_group { count: 1 kind: KIND_CPU }\n"
_CODE: Final = """\
input { name: "CODE" data_type: TYPE_STRING dims: [1] }
input { name: "X" data_type: TYPE_FP32 dims: [-1] optional: true }
input { name: "S" data_type: TYPE_STRING dims: [-1] optional: true }
output { name: "OUT" data_type: TYPE_STRING dims: [-1] }
output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""
_X: Final = 'input { name: "X" data_type: TYPE_FP32 dims: [-1] }\n'
_Y: Final = 'output { name: "Y" data_type: TYPE_FP32 dims: [-1] }\n'
_N: Final = 'output { name: "N" data_type: TYPE_FP32 dims: [1] }\n'
_NAMED: Final = _Y.replace(" }", ' label_filename: "labels.txt" }')
_DECOUPLED: Final = "model_transaction_policy { decoupled: true }\n"
_KEPT: Final = "response_cache { enable: true }\n"

_A_B: Final = f"""\
input {{ name: "A" data_type: TYPE_FP32 dims: [-1] }}
input {{ name: "B" data_type: TYPE_FP32 dims: [-1] optional: true }}
{_Y}"""
_S: Final = """\
max_batch_size: 4
input { name: "S" data_type: TYPE_STRING dims: [-1] }
input { name: "KIND" data_type: TYPE_STRING dims: [1] }
output { name: "OUT" data_type: TYPE_STRING dims: [-1] }
output { name: "N" data_type: TYPE_INT32 dims: [-1] }
"""

_ITERATING: Final = """\
input { name: "X" data_type: TYPE_FP32 dims: [-1] }
output { name: "OUT" data_type: TYPE_STRING dims: [1] }
sequence_batching { iterative_sequence: true max_sequence_idle_microseconds: 60000000 STRATEGY
control_input [
  { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } },
  { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [0, 1] } },
  { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] } },
  { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
] }
"""
_OLDEST: Final = "oldest { max_candidate_sequences: 2 }"

# By name: the source, and the configuration but for backend and instances.
_MODELS: Final[dict[str, tuple[str, str]]] = {
    "script": ("script", _CODE),
    "scripts": ("script", f"max_batch_size: 4\n{_CODE}"),
    "stream": ("script", _CODE + _DECOUPLED),
    "counted": ("script", _CODE),
    "counted_stream": ("script", _CODE + _DECOUPLED),
    "waiting": ("waiting", _CODE),
    "double": ("double", f"max_batch_size: 4\ndynamic_batching {{ }}\n{_X}{_Y}"),
    "flat": ("double", _X + _Y),
    "repeat": ("repeat", _X + _Y + _DECOUPLED),
    "add": ("add", _A_B),
    "strings": ("strings", _S),
    "counting": ("counting", _X + _Y),
    "wrapped": ("wrapped", _X + _Y),
    "kept": ("kept", _X + _Y + _N + _KEPT),
    "named": ("double", _X + _NAMED),
    "iterating": ("iterating", "max_batch_size: 4\n" + _ITERATING.replace("STRATEGY", "")),
    "iterating_oldest": (
        "iterating",
        "max_batch_size: 4\n" + _ITERATING.replace("STRATEGY", _OLDEST),
    ),
    "iterating_stream": (
        "iterating",
        f"max_batch_size: 4\n{_DECOUPLED}" + _ITERATING.replace("STRATEGY", _OLDEST),
    ),
}
# By model: its file of labels.
_LABELS: Final = {"named": "cat\ndog\n\nhen\n", "named_own": "one\n\nthree\n"}

_SET_ALL: Final = """\
config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1]})
config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]})
config.set_max_batch_size(4)
config.set_dynamic_batching()
"""
_SET_OPTIONAL: Final = """\
config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1]})
config.add_input({"name": "Z", "data_type": "TYPE_FP32", "dims": [1], "optional": True})
"""
_SET_TENSORS: Final = _SET_ALL.partition("config.set_max")[0]

# By name of models of completed.py: what completes them, and what is configured.
COMPLETED: Final[dict[str, tuple[str, str]]] = {
    "complete_nothing": ("", _X + _Y),
    "complete_all": (_SET_ALL, ""),
    "complete_decoupled": (
        f'{_SET_TENSORS}config.set_model_transaction_policy({{"decoupled": True}})',
        "",
    ),
    "complete_batched": (_SET_ALL, "max_batch_size: 2\n"),
    "complete_policy": (
        _SET_ALL,
        "max_batch_size: 4\ndynamic_batching { preferred_batch_size: [2] }\n",
    ),
    "complete_same": (_SET_ALL, _X + _Y),
    "complete_optional": (_SET_OPTIONAL, _Y),
    "complete_other_dims": (
        'config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [2]})',
        _X + _Y,
    ),
    "complete_other_type": (
        'config.add_input({"name": "X", "data_type": "TYPE_INT32", "dims": [-1]})',
        _X + _Y,
    ),
    "complete_no_dims": (
        'config.add_input({"name": "X", "data_type": "TYPE_FP32"})',
        _Y,
    ),
    "complete_no_type": ('config.add_output({"name": "Y", "dims": [1]})', _X),
    "complete_no_name": ('config.add_output({"data_type": "TYPE_FP32", "dims": [1]})', _X),
    "complete_unknown": (
        'config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1], "more": 1})',
        _Y,
    ),
    "complete_seen": (
        "raise ValueError(json.dumps(config.as_dict(), sort_keys=True))",
        _X + _Y,
    ),
    "complete_raises": ('raise ValueError("not today")', _X + _Y),
}

# Those of them that load.
COMPLETE: Final = frozenset(
    f"complete_{each}"
    for each in ("nothing", "all", "decoupled", "batched", "policy", "same", "optional")
)

# By name: models that do not load, by their sources.
BROKEN: Final[dict[str, str]] = {
    "broken_syntax": "class",
    "broken_import": "import there_is_no_such_module",
    "broken_no_class": "x = 1",
    "broken_no_execute": "class TritonPythonModel:\n    pass",
    "broken_initialize": """\
class TritonPythonModel:
    def initialize(self):
        pass
    def execute(self, requests):
        pass
""",
    "broken_completion": """\
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        pass
    def execute(self, requests):
        pass
""",
    "broken_raises": """\
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError('no weights')
    def execute(self, requests):
        pass
""",
}


def _ensemble(steps: str, tensors: str = _X + _Y, batch: int = 0) -> str:
    """steps: one a line, `model input=tensor … -> output=tensor …`."""
    reported = []
    for line in steps.strip().splitlines():
        inputs, _, outputs = line.partition("->")
        model, *taken = inputs.split()
        version = -1
        if ":" in model:
            model, _, number = model.partition(":")
            version = int(number)
        maps = "".join(_map("input_map", each) for each in taken)
        maps += "".join(_map("output_map", each) for each in outputs.split())
        reported.append(f'step {{ model_name: "{model}" model_version: {version} {maps}}}\n')
    scheduling = f"ensemble_scheduling {{ {''.join(reported)} }}\n"
    return f'platform: "ensemble"\nmax_batch_size: {batch}\n{tensors}{scheduling}'


def _map(field: str, pair: str) -> str:
    key, _, value = pair.partition("=")
    return f'{field} {{ key: "{key}" value: "{value}" }} '


_Z: Final = 'output { name: "Z" data_type: TYPE_FP32 dims: [-1] }\n'
_OPTIONAL: Final = 'input { name: "W" data_type: TYPE_FP32 dims: [-1] optional: true }\n'
_W: Final = 'output { name: "W" data_type: TYPE_FP32 dims: [-1] }\n'
_CODE_ONLY: Final = 'input { name: "CODE" data_type: TYPE_STRING dims: [1] }\n'
_OUT: Final = 'output { name: "OUT" data_type: TYPE_STRING dims: [-1] }\n'
ENSEMBLES: Final[dict[str, str]] = {
    "chain": _ensemble("double X=X -> Y=m\ndouble X=m -> Y=Y", batch=4),
    "chain_flat": _ensemble("flat X=X -> Y=m\nflat X=m -> Y=Y"),
    "diamond": _ensemble("flat X=X -> Y=l\nflat X=l -> Y=r\nadd A=l B=r -> Y=Y"),
    "two_ends": _ensemble("flat X=X -> Y=Y\nadd A=X B=Y -> Y=Z", _X + _Y + _Z),
    "several_outputs": _ensemble(
        "\n".join(f"flat X=X -> Y={name}" for name in ("o1", "o2", "o3", "zeta", "alpha", "O4")),
        _X
        + "".join(
            _Y.replace('"Y"', f'"{each}"') for each in ("zeta", "o3", "alpha", "o1", "O4", "o2")
        ),
    ),
    "maybe": _ensemble("add A=X B=W -> Y=Y", _X + _OPTIONAL + _Y),
    "nested": _ensemble("chain_flat X=X -> Y=m\nflat X=m -> Y=Y"),
    "repeats": _ensemble("repeat X=X -> Y=m\nflat X=m -> Y=Y"),
    "kept_step": _ensemble("kept X=X -> Y=Y N=N", _X + _Y + _N),
    "kept_whole": _ensemble("kept X=X -> Y=Y N=N", _X + _Y + _N + _KEPT),
    # Y is an output and taken further as well.
    "named_step": _ensemble("named X=X -> Y=Y\nflat X=Y -> Y=Z", _X + _Y + _Z),
    "named_own": _ensemble("named X=X -> Y=Y\nflat X=Y -> Y=Z", _X + _NAMED + _Z),
    "named_below": _ensemble("named_own X=X -> Y=Y Z=W\nadd A=Y B=W -> Y=Z", _X + _Y + _Z),
    # Their steps need not give all of their outputs, nor requests all inputs.
    "partly": _ensemble("script CODE=CODE -> OUT=OUT Y=Y", _CODE_ONLY + _OUT + _Y),
    "unset": _ensemble(
        "script CODE=CODE -> OUT=OUT Y=y\nadd A=X B=y -> Y=Y", _CODE_ONLY + _X + _OUT + _Y
    ),
    "optional_twice": _ensemble("add A=X B=W -> Y=Y\nadd A=Y B=W -> Y=Z", _X + _OPTIONAL + _Y + _Z),
    "optional_passed": _ensemble("add A=X B=W -> Y=Y", _X + _OPTIONAL + _Y + _W),
    "optional_nested": _ensemble("maybe X=X W=W -> Y=Y", _X + _OPTIONAL + _Y),
    "told": _ensemble(
        "script CODE=CODE -> OUT=OUT",
        'input { name: "CODE" data_type: TYPE_STRING dims: [1] }\n'
        'output { name: "OUT" data_type: TYPE_STRING dims: [-1] }\n',
    ),
    "told_stream": _ensemble("stream CODE=CODE -> Y=Y", _CODE_ONLY + _Y),
    # What scripts give has a batch dimension, and what script gives has none.
    "batches": _ensemble("scripts CODE=CODE -> Y=Y", _CODE_ONLY + _Y, batch=4),
    "batches_of_flat": _ensemble("script CODE=CODE -> Y=Y", _CODE_ONLY + _Y, batch=4),
    "flat_of_batches": _ensemble("scripts CODE=CODE -> Y=Y", _CODE_ONLY + _Y),
    "batches_twice": _ensemble(
        "scripts CODE=CODE -> Y=m\ndouble X=m -> Y=Y", _CODE_ONLY + _Y, batch=4
    ),
    "flat_twice": _ensemble("script CODE=CODE -> Y=m\nflat X=m -> Y=Y", _CODE_ONLY + _Y),
    "flat_then_batches": _ensemble(
        "script CODE=CODE -> Y=m\ndouble X=m -> Y=Y", _CODE_ONLY + _Y, batch=4
    ),
    "batches_then_flat": _ensemble(
        "scripts CODE=CODE -> Y=m\nflat X=m -> Y=Y", _CODE_ONLY + _Y, batch=4
    ),
}
# Ensembles that do not load.
BROKEN_ENSEMBLES: Final[dict[str, str]] = {
    "wrong_missing": _ensemble("no_such_model X=X -> Y=Y"),
    "wrong_version": _ensemble("flat:7 X=X -> Y=Y"),
    "wrong_broken": _ensemble("broken_syntax X=X -> Y=Y"),
    "wrong_circle": _ensemble("wrong_circle_2 X=X -> Y=Y"),
    "wrong_circle_2": _ensemble("wrong_circle X=X -> Y=Y"),
    "wrong_input": _ensemble("flat NOPE=X -> Y=Y"),
    "wrong_output": _ensemble("flat X=X -> NOPE=Y"),
    "wrong_unused": _ensemble("flat X=X -> Y=Y", _X + _OPTIONAL.replace("W", "V") + _Y),
    "wrong_unwritten": _ensemble("flat X=X -> Y=m", _X + _Y),
    "wrong_twice": _ensemble("flat X=X -> Y=Y\nflat X=X -> Y=Y"),
    "wrong_type": _ensemble("flat X=X -> Y=Y", _X.replace("FP32", "INT32") + _Y),
    "wrong_dims": _ensemble("double X=X -> Y=Y", _X + _Y),
    "wrong_batch": _ensemble("double X=X -> Y=Y", _X + _Y, batch=8),
    "wrong_unmapped": _ensemble("add B=X -> Y=Y"),
    "wrong_no_steps": 'platform: "ensemble"\nensemble_scheduling { }\n' + _X + _Y,
    "wrong_group": _ensemble("flat X=X -> Y=Y") + _ONE,
}


def repository_for(server: str, root: Path, backend: str) -> Path:
    """What one of SERVERS is started with; backend: of the models that are written twice."""
    if server == "sequences":
        return sequence_repository.write_repository(root)
    if server == "life-cycle":
        return life_cycle_repository.write_repository(root)
    if server == "drain":
        return drain.write_repository(root)
    return _write(root) if server == "python" else write_repository(root, backend)


def _write(root: Path) -> Path:
    for name, (source, config) in _MODELS.items():
        _place(root, name, (_SOURCES / f"{source}.py").read_text(), config)
    for name, (complete, config) in COMPLETED.items():
        text = complete.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        more = f'parameters {{ key: "complete" value {{ string_value: "{text}" }} }}\n'
        _place(root, name, (_SOURCES / "completed.py").read_text(), config + more)
    for name, source in BROKEN.items():
        _place(root, name, source, _X + _Y)
    for name, config in (ENSEMBLES | BROKEN_ENSEMBLES).items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
    for name, labels in _LABELS.items():
        (root / name / "labels.txt").write_text(labels)
    # No configuration at all.
    (root / "bare" / "1").mkdir(parents=True)
    shutil.copy(_SOURCES / "double.py", root / "bare" / "1" / "model.py")
    return root


def _place(root: Path, name: str, source: str, config: str) -> None:
    file = root / name / "1" / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text(source)
    (root / name / "config.pbtxt").write_text(f'backend: "python"\n{_ONE}{config}')
