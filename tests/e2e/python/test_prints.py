"""What a Python model prints, in the mesh's log."""

import json
from pathlib import Path

import pytest

from tests.support.mesh.mesh import running, until

pytestmark = pytest.mark.slow

_MODEL = r"""
import sys
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        print("WARNING nereid_gateway: forged \x1b[31m\u202e")
        print("the other stream", file=sys.stderr)
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
_CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [1] }
output { name: "Y" data_type: TYPE_FP32 dims: [1] }
"""


def test_prints_are_lines_of_their_instance(tmp_path: Path) -> None:
    (tmp_path / "models" / "printing" / "1").mkdir(parents=True)
    (tmp_path / "models" / "printing" / "1" / "model.py").write_text(_MODEL)
    (tmp_path / "models" / "printing" / "config.pbtxt").write_text(_CONFIG)
    with running(tmp_path / "models", tmp_path / "log") as mesh:
        tensor = {"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}
        body = json.dumps({"inputs": [tensor]}).encode()
        mesh.get("/v2/models/printing/infer", "POST", body)
        until(lambda: "the other stream" in mesh.log.read_text(), "what it prints")
        lines = mesh.log.read_text().splitlines()
    assert r"printing_0: WARNING nereid_gateway: forged \x1b[31m\u202e" in lines
    assert "printing_0: the other stream" in lines
