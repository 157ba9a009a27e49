"""What lies in the folder that a mesh is started in is not imported, by none of its processes."""

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.support.mesh.mesh import running
from tests.support.models.e2e_models import save_identity

pytestmark = pytest.mark.slow

# Each says by whom it was imported, and is of no use.
_TRAP = """
import json
with open({log!r}, "a") as log:
    log.write(open("/proc/self/cmdline").read().replace("\\0", " ") + "\\n")
raise ImportError("imported from the folder of the start")
"""
_ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(each, "INPUT0") for each in requests]
        outputs = [pb_utils.Tensor("OUTPUT0", each.as_numpy()) for each in inputs]
        return [pb_utils.InferenceResponse([each]) for each in outputs]
"""
_CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }
"""
_MODULES = (
    "numpy",
    "asyncio",
    "onnxruntime",
    "google",
    "uvloop",
    "json",
    "triton_python_backend_utils",
)


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A folder with modules that must not be imported; `imports` beside it names who did."""
    directory = tmp_path / "start"
    directory.mkdir()
    for name in _MODULES:
        (directory / f"{name}.py").write_text(_TRAP.format(log=str(tmp_path / "imports")))
    return directory


def test_a_mesh_imports_nothing_from_it(
    trapped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trapped / "nereid.py").write_text(_TRAP.format(log=str(tmp_path / "imports")))
    repository = tmp_path / "models"
    save_identity(repository, "onnx", onnx.TensorProto.FLOAT, "max_batch_size: 8\n")
    (repository / "python" / "1").mkdir(parents=True)
    (repository / "python" / "1" / "model.py").write_text(_ECHO)
    (repository / "python" / "config.pbtxt").write_text(_CONFIG)
    monkeypatch.chdir(trapped)
    flags = ("--join=none", "--cache-config=local,size=1048576", "--decoder-processes=1")
    with running(repository, tmp_path / "log", *flags) as mesh:
        # So many that a decoder process reads them.
        values = [1.0] * 200_000
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 200_000], "data": values}
        body = json.dumps({"inputs": [tensor]}).encode()
        for model in ("onnx", "python"):
            status, reply = mesh.get(f"/v2/models/{model}/infer", "POST", body)
            assert status == 200, reply
    assert not (tmp_path / "imports").exists(), (tmp_path / "imports").read_text()


@pytest.mark.parametrize("service", ["gateway", "scheduler", "executor", "cache"])
def test_a_service_that_is_started_without_p_imports_nothing_from_it(
    trapped: Path, tmp_path: Path, service: str
) -> None:
    argv = [sys.executable, "-m", f"nereid_{service}", "--help"]
    done = subprocess.run(argv, cwd=trapped, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "imports").exists(), (tmp_path / "imports").read_text()
