"""`nereid check` on models that cannot be loaded: each says in one finding what is wrong, in which
file or field, and what to do.
"""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from nereid_mesh.check import command

pytestmark = pytest.mark.slow

TENSORS = """
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }
"""
CONFIG = 'backend: "onnxruntime" max_batch_size: 4' + TENSORS
PYTHON = 'backend: "python"' + TENSORS
STEP = (
    'step { model_name: "%s" model_version: -1 input_map { key: "%s" value: "X" }'
    ' output_map { key: "Y" value: "Y" } } }'
)
ENSEMBLE = 'platform: "ensemble" max_batch_size: 4' + TENSORS + "ensemble_scheduling { "


def graph(dims: tuple[int | str, ...] = ("N", 4), op: str = "Relu", opset: int = 17) -> bytes:
    """A model of one node. op: of domain acme, if it has a colon."""
    domain, _, name = op.rpartition(":")
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(dims)) for n in "XY"]
    node = helper.make_node(name, ["X"], ["Y"], domain=domain)
    opsets = [helper.make_opsetid("", opset)] + [helper.make_opsetid(domain, 1)] * bool(domain)
    model = helper.make_model(
        helper.make_graph([node], "g", tensors[:1], tensors[1:]), opset_imports=opsets, ir_version=8
    )
    content: bytes = onnx.ModelProto.SerializeToString(model)
    return content


GRAPH = graph()
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"


def add(root: Path, name: str, config: str, content: bytes | None) -> None:
    version = root / name / "1"
    version.mkdir(parents=True)
    (root / name / "config.pbtxt").write_bytes(config.encode("latin-1"))
    if content is not None:
        (version / ("model.py" if "python" in config else "model.onnx")).write_bytes(content)


def check(root: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> list[tuple[str, str]]:
    """Of model m: messages and remedies of what is no mere note."""
    command.main([str(root), *argv, "--json"])
    document = json.loads(capsys.readouterr().out)
    (model,) = (each for each in document["models"] if each["name"] == "m")
    return [
        (each["message"], each["hint"]) for each in model["findings"] if each["severity"] != "note"
    ]


@pytest.mark.parametrize(
    ("config", "content", "named", "remedy"),
    [
        (CONFIG, GRAPH[:40], "1/model.onnx", "truncated or is no ONNX model"),
        (CONFIG, b"", "1/model.onnx", "truncated or is no ONNX model"),
        (CONFIG, POINTER, "is a Git LFS pointer", ""),
        (CONFIG, graph(opset=99), "Opset 99", "export it for opset 2"),
        (CONFIG, graph(op="Nope"), "Nope", "op_library_filename"),
        (CONFIG, graph(op="acme:Nope"), "acme:Nope", "op_library_filename"),
        (CONFIG, graph((4,)), "tensor 'X'", "max_batch_size: 0"),
        (CONFIG, graph((1, 4)), "tensor 'X'", "leave the batch dimension out of dims"),
        (CONFIG, graph(("N", 5)), "tensor 'X'", "behind its batch dimension"),
        (CONFIG.replace("size: 4", "size: 0"), graph((2, 5)), "'X'", "write the dims that"),
        (CONFIG.replace("TYPE_FP32", "TYPE_INT64", 1), GRAPH, "'X'", "set data_type: TYPE_FP32"),
        (CONFIG.replace('"X"', '"Z"'), GRAPH, "'Z'", "as the model file does: X"),
        (CONFIG + "instance_group { kind: KIND_GPU }", GRAPH, "KIND_GPU", "set kind: KIND_CPU"),
        (
            CONFIG + "sequence_batching { control_input { name: 'R' control {"
            " kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } } }",
            GRAPH,
            "expects 2 inputs",
            "control_input",
        ),
        (CONFIG + "instance_group [ {", GRAPH, "4:18", "bracket"),
        (CONFIG + "max_batchsize: 3", GRAPH, "Did you mean 'max_batch_size'?", ""),
        (CONFIG + 'name: "other"', GRAPH, "'other'", "rename the folder"),
        (CONFIG + "#é", GRAPH, "config.pbtxt", "save it as UTF-8"),
        (CONFIG.replace("runtime", "runtme"), GRAPH, "'onnxruntme'", ""),
        (ENSEMBLE + STEP % ("gone", "X"), None, "gone", "do not load: gone"),
        (ENSEMBLE + STEP % ("step", "W"), None, "non-existing input W", "configuration of step"),
        (CONFIG.replace('"Y"', '"Y" label_filename: "l.txt"'), GRAPH, "m/l.txt", "add /"),
        (
            CONFIG + "dynamic_batching { preferred_batch_size: 8 }",
            GRAPH,
            "preferred size",
            "raise max_batch_size",
        ),
        (PYTHON, b"import nonesuch\nclass TritonPythonModel: ...", "'nonesuch'", "install it"),
        (PYTHON, b"class TritonPythonModel:\n  def x(", "line 2", ""),
        (PYTHON, b"x = 1", "has no class TritonPythonModel", ""),
    ],
)
def test_one_finding_with_the_place_and_the_remedy(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    config: str,
    content: bytes | None,
    named: str,
    remedy: str,
) -> None:
    add(tmp_path, "m", config, content)
    add(tmp_path, "step", CONFIG, GRAPH)
    findings = check(tmp_path, capsys, "--gpus=none")
    message, hint = findings[0]
    assert named in message
    assert remedy in hint
    assert len(findings) == 1 + ("unable to find backend" in message)
