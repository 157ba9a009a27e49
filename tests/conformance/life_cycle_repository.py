"""The repository of the rows about loads and instances: the same files for both servers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# Y = X in the configured shape of an output; EVENTS is what instances have done, SEEN X's shape.
_SOURCE: Final = """\
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        repository = Path(args["model_repository"])
        self.events = repository.parent.with_suffix(f".{repository.name}")
        with self.events.open("a") as file:
            file.write(f"{args['model_instance_name']} {args['model_version']}\\n")

    def execute(self, requests):
        return [self.respond(each) for each in requests]

    def respond(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        events = ", ".join(sorted(self.events.read_text().splitlines()))
        batch = x.shape[:1] if "batched" in self.events.name else ()
        texts = (("EVENTS", events), ("SEEN", str(x.shape)))
        tensors = [
            pb_utils.Tensor(name, np.full((*batch, 1), text, np.object_)) for name, text in texts
        ]
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x), *tensors])
"""
_RAISING: Final = """\
class TritonPythonModel:
    def {method}(self, _):
        raise ValueError("no good")

    def {other}(self, _):
        pass
"""
_PYTHON: Final = 'backend: "python"\n'
_ONE: Final = "instance_group { count: 1 kind: KIND_CPU }\n"
_TEXTS: Final = "".join(
    f'output {{ name: "{name}" data_type: TYPE_STRING dims: [1] }}\n' for name in ("EVENTS", "SEEN")
)


def _reshaped(dims: str, shape: str) -> str:
    tensor = f"data_type: TYPE_FP32 dims: [{dims}] reshape {{ shape: [{shape}] }}"
    return f'input {{ name: "X" {tensor} }}\noutput {{ name: "Y" {tensor} }}\n{_TEXTS}{_ONE}'


_XY: Final = (
    'input { name: "X" data_type: TYPE_FP32 dims: [1] }\n'
    'output { name: "Y" data_type: TYPE_FP32 dims: [1] }\n'
)
_PLAIN: Final = _XY + _TEXTS
_ZERO: Final = "data_type: TYPE_FP32 dims: [1] zero_data: true"
_FILE: Final = 'data_type: TYPE_FP32 dims: [1] input_data_file: "none"'


def _warm(name: str, content: str) -> str:
    inputs = f'inputs {{ key: "{name}" value {{ {content} }} }}'
    return f'model_warmup {{ name: "w" batch_size: 1 {inputs} }}\n'


_MODELS: Final[dict[str, str]] = {
    "counted": _PLAIN + _ONE,
    "versions": _PLAIN + _ONE,
    "reshaped": _reshaped("2, 4", "8"),
    "reshaped_batched": "max_batch_size: 4\n" + _reshaped("2, 4", "8"),
    "reshaped_batched_away": "max_batch_size: 4\n" + _reshaped("1", ""),
    "reshaped_variable": _reshaped("-1, 4", "-1, 1, 4"),
    "flat": _PLAIN.replace("[1] }\n", "[8] }\n", 2) + _ONE,
    "warm_other": _PLAIN + _ONE + _warm("X", _ZERO) + _warm("Z", _ZERO).replace("w", "v"),
    "warm_extra": _PLAIN
    + _ONE
    + _warm("X", _ZERO).replace("} } }\n", f'}} }} inputs {{ key: "Z" value {{ {_ZERO} }} }} }}\n'),
}
# Refused while the repository is read.
UNREADABLE: Final[dict[str, str]] = {
    "nonsense": "nonsense: 1\n",
    "other_name": 'name: "other"\n' + _PLAIN,
    "platform": 'platform: "nonsense"\n' + _PLAIN,
    "negative_batch": "max_batch_size: -1\n" + _PLAIN,
    "preferred": "max_batch_size: 2\ndynamic_batching { preferred_batch_size: [4] }\n" + _PLAIN,
    "scheduling": _PLAIN + "ensemble_scheduling { step { } }\n",
}
# Known, but without a version.
WITHOUT_VERSION: Final[dict[str, str]] = {
    "none": _PLAIN,
    "policy": _PLAIN + "version_policy { specific { versions: [3] } }\n",
}
# Refused when they are loaded.
FAILING: Final[dict[str, str]] = {
    "backend": _PLAIN + 'backend: "nonsense"\n',
    "gpus": _PLAIN + "instance_group { kind: KIND_CPU gpus: [0] }\n",
    "no_gpu": _PLAIN + "instance_group { kind: KIND_GPU }\n",
    "profile": _PLAIN + 'instance_group { kind: KIND_CPU profile: "1" }\n',
    "reshape_size": _reshaped("2, 4", "7"),
    "reshape_scalar": _reshaped("1", ""),
    "initialize": _XY + _ONE,
    "warm_file": _XY + _ONE + _warm("X", _FILE),
    "warm_unknown": _XY + _ONE + _warm("Z", _ZERO),
}
_RAISES: Final = {
    "initialize": ("initialize", "execute"),
    "warm_file": ("execute", "initialize"),
    "warm_unknown": ("execute", "initialize"),
}


def _ensemble(tensor: str, model: str) -> str:
    maps = 'input_map { key: "X" value: "A" } output_map { key: "Y" value: "B" }'
    return (
        'platform: "ensemble"\n'
        f'input {{ name: "A" data_type: TYPE_FP32 {tensor} }}\n'
        f'output {{ name: "B" data_type: TYPE_FP32 {tensor} }}\n'
        f'ensemble_scheduling {{ step {{ model_name: "{model}" model_version: -1 {maps} }} }}\n'
    )


_OWN: Final = "dims: [2, 4] reshape { shape: [8] }"
# An ensemble is compared after its own reshape, with models before theirs.
ENSEMBLES: Final[dict[str, str]] = {
    "seen": _ensemble("dims: [2, 4]", "reshaped"),
    "inner": _ensemble("dims: [8]", "reshaped"),
    "own": _ensemble(_OWN, "flat"),
    "both": _ensemble(_OWN, "reshaped"),
}


def write_repository(root: Path) -> Path:
    for name, config in (_MODELS | UNREADABLE | WITHOUT_VERSION | FAILING).items():
        versions = {"versions": (1, 2, 3), "none": ()}.get(name, (1,))
        raises = _RAISES.get(name)
        source = _RAISING.format(method=raises[0], other=raises[1]) if raises else _SOURCE
        own = "backend:" in config or "platform:" in config
        _write(root / name, config if own else _PYTHON + config, versions, source)
    for name, config in ENSEMBLES.items():
        _write(root / name, config, (1,), "")
    return root


def _write(model: Path, config: str, versions: tuple[int, ...], source: str) -> None:
    model.mkdir(parents=True)
    (model / "config.pbtxt").write_text(config)
    for version in versions:
        directory = model / str(version)
        directory.mkdir()
        if source:
            (directory / "model.py").write_text(source)
            # In the way of compiled files, which would change the model for Triton.
            (directory / "__pycache__").touch()
