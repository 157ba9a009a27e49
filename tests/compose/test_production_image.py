"""The Dockerfile of docs/model-authors/python-first.md: a saved function in an image."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.compose.stack import ROOT, Stack, documented_bytes
from tests.support.mesh.mesh import until

_STORIES = ROOT / "benchmarks/first_hour/files/nereid"


def test_an_image_of_a_saved_function(stack: Stack, tmp_path: Path) -> None:
    page = (ROOT / "docs/model-authors/python-first.md").read_text()
    (dockerfile,) = re.findall(r"```dockerfile\n(FROM \S+\n.*?)```", page, re.DOTALL)
    _, _, rest = dockerfile.partition("\n")
    story = (_STORIES / "image/Dockerfile").read_text()
    assert rest == story.partition("\n")[2]
    base, image = "nereid-serve:test", "nereid-saved:test"
    serve = ("--target=serve", "--build-arg=REQUIREMENTS=serve-image", "--build-arg=PYTHON_IMAGE")
    pure = ("-f", "deploy/Dockerfile", "--build-arg=COMPILE=0")
    stack.docker("build", *pure, *serve, "-t", base, ".")
    assert stack.image_bytes(base) <= documented_bytes("nereid-serve")

    for name in ("function/app.py", "image/save.py"):
        shutil.copy(_STORIES / name, tmp_path)
    subprocess.run([sys.executable, "save.py"], cwd=tmp_path, check=True, timeout=60)
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\n{rest}")
    stack.docker("build", "-t", image, str(tmp_path))
    options = ("--rm", "--detach", "--read-only", "--tmpfs=/tmp", "--publish=127.0.0.1::8000")
    container = stack.docker("run", *options, image).strip()
    try:
        address = stack.docker("port", container, "8000").strip()
        until(lambda: _is_ready(address), "the image to serve")
        tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.5, 2.5]}
        request = urllib.request.Request(
            f"http://{address}/v2/models/double/infer", json.dumps({"inputs": [tensor]}).encode()
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            assert json.load(response)["outputs"][0]["data"] == [3.0, 5.0]
    finally:
        stack.docker("stop", container)


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/v2/health/ready", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
