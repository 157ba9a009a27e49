"""The command `nereid new`: writes a model that runs, with a test."""

from __future__ import annotations

import base64
import keyword
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.cli.command_parser import CommandParser

if TYPE_CHECKING:
    from collections.abc import Sequence

SUMMARY: Final = "write a model that runs, with a test"

# y = 2 x, with x of shape [batch, 4]; opset 13.
_ONNX: Final = base64.b64decode(
    "CAg6XQoQCgF4CgN0d28SAXkiA011bBIGZG91YmxlKg0QAUIDdHdvSgQAAABAWhgKAXgSEwoRCAESDQoHEgViYXRjaAoC"
    "CARiGAoBeRITChEIARINCgcSBWJhdGNoCgIIBEIECgAQDQ=="
)
_TEST: Final = """\
import numpy as np


def test_{name}(serve_models):
    mesh = serve_models({models})
    {name} = mesh.client["{name}"]
    np.testing.assert_array_equal({name}(np.ones((1, 4), "float32")), {expected})
"""
_PYTHON_APP: Final = '''\
import nereid


@nereid.model(batch=True)
def {name}(x: nereid.Tensor["float32", -1]) -> nereid.Tensor["float32", -1]:
    """Return the doubled input. x has a batch dimension in front: (requests' rows, any size)."""
    return x * 2


if __name__ == "__main__":
    nereid.serve({name})
'''
_ENSEMBLE_APP: Final = """\
import nereid


@nereid.model(batch=True)
def {name}_scaled(x: nereid.Tensor["float32", -1]) -> nereid.Tensor["float32", -1]:
    return x / 255


@nereid.model(batch=True)
def {name}_sum(x: nereid.Tensor["float32", -1]) -> nereid.Tensor["float32", 1]:
    return x.sum(axis=1, keepdims=True)
"""
_ENSEMBLE_CONFIG: Final = """\
platform: "ensemble"
max_batch_size: 32
input {{ name: "x" data_type: TYPE_FP32 dims: -1 }}
output {{ name: "sum" data_type: TYPE_FP32 dims: 1 }}
ensemble_scheduling {{
  step {{
    model_name: "{name}_scaled"
    input_map {{ key: "x" value: "x" }}
    output_map {{ key: "output" value: "scaled" }}
  }}
  step {{
    model_name: "{name}_sum"
    input_map {{ key: "x" value: "scaled" }}
    output_map {{ key: "output" value: "sum" }}
  }}
}}
"""
_ONNX_CONFIG: Final = """\
backend: "onnxruntime"
max_batch_size: 32
dynamic_batching {}
"""


def files(kind: str, name: str) -> dict[str, bytes]:
    """Return the files of a new model of a kind, by their paths."""

    def test(models: str, expected: str, imports: str = "") -> bytes:
        text = _TEST.format(name=name, models=models, expected=expected)
        return text.replace("import numpy as np\n", f"import numpy as np\n{imports}", 1).encode()

    twos = 'np.full((1, 4), 2, "float32")'
    folder = f'Path(__file__).with_name("models") / "{name}"'
    if kind == "onnx":
        return {
            f"models/{name}/config.pbtxt": _ONNX_CONFIG.encode(),
            f"models/{name}/1/model.onnx": _ONNX,
            f"test_{name}.py": b"from pathlib import Path\n\n" + test(folder, twos),
        }
    if kind == "ensemble":
        models = f"app.{name}_scaled, app.{name}_sum, {folder}"
        total = 'np.full((1, 1), np.float32(4 / 255), "float32")'
        return {
            "app.py": _ENSEMBLE_APP.format(name=name).encode(),
            f"models/{name}/config.pbtxt": _ENSEMBLE_CONFIG.format(name=name).encode(),
            f"models/{name}/1/.keep": b"",
            f"test_{name}.py": b"from pathlib import Path\n\n"
            + test(models, total, "import app\n"),
        }
    return {
        "app.py": _PYTHON_APP.format(name=name).encode(),
        f"test_{name}.py": test(f"app.{name}", twos, "import app\n"),
    }


def make_parser() -> CommandParser:
    """Return the command's flags."""
    parser = CommandParser("nereid new", "Write a model that runs.")
    parser.add_argument("name", help="the model's name, and the new folder's")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--python", action="store_true", help="a Python function (default)")
    kinds.add_argument("--onnx", action="store_true", help="an ONNX file")
    kinds.add_argument("--ensemble", action="store_true", help="two functions in a row")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the files; return the exit code."""
    options = make_parser().parse_args(argv)
    name: str = options.name
    if not name.isidentifier() or keyword.iskeyword(name) or name in ("app", "np"):
        sys.stderr.write(f"nereid new: '{name}' has to be a name of Python: letters, digits, _\n")
        return 2
    kind = "onnx" if options.onnx else "ensemble" if options.ensemble else "python"
    root = Path(name)
    if root.exists():
        sys.stderr.write(f"nereid new: {root} exists already: take another name\n")
        return 2
    for path, content in files(kind, name).items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        print(f"wrote {file}")
    served = {"onnx": "models", "ensemble": "app.py models", "python": "app.py"}[kind]
    print(f"\n  cd {root}\n  nereid run {served} --reload\n  python -m pytest")
    return 0
