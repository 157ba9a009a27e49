"""What a load request brings is not kept when the load has failed."""

from __future__ import annotations

import base64
import json
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.support.mesh.mesh import running, until
from tests.support.models.e2e_models import make_repository

pytestmark = pytest.mark.slow

# The C library keeps smaller blocks.
_FILE_MIB = 40
_LOADS = 3


def test_failed_loads_leave_no_files_in_memory(tmp_path: Path) -> None:
    # Their errors refer to frames, and frames to what was asked for: such a cycle would stay.
    content = base64.b64encode(bytes(_FILE_MIB << 20)).decode()
    body = json.dumps({"parameters": {"config": "{}", "file:1/model.onnx": content}}).encode()
    repository = make_repository(tmp_path / "repository")
    flags = "--model-control-mode=explicit", "--load-model=*"
    with running(repository, tmp_path / "log", *flags) as mesh:
        (pid,) = mesh.children("nereid_mesh.serve.joined")

        def resident_mib() -> int:
            (line,) = [
                line
                for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                if line.startswith("VmRSS")
            ]
            return int(line.split()[1]) >> 10

        before = resident_mib()
        for _ in range(_LOADS):
            status, text = mesh.get("/v2/repository/models/broken_one/load", "POST", body)
            assert status == HTTPStatus.BAD_REQUEST, text
        until(lambda: resident_mib() - before < _FILE_MIB, "the files are freed", limit_s=10)
