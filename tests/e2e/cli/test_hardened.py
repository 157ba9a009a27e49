"""`nereid serve --hardened`."""

from __future__ import annotations

import base64
import json
import re
import socket
from pathlib import Path

import pytest

from tests.support.mesh.mesh import Mesh, running
from tests.support.models import python_models
from tests.support.models.e2e_models import save_scaler

pytestmark = pytest.mark.slow


@pytest.fixture
def models(tmp_path: Path) -> Path:
    save_scaler(tmp_path / "models", "scaler", 2, 'output { name: "OUTPUT0" }\n')
    python_models.save(tmp_path / "models", "identity")
    return tmp_path / "models"


def load(mesh: Mesh, model: str, parameters: dict[str, str] | None = None) -> tuple[int, str]:
    body = json.dumps({"parameters": parameters or {}}).encode()
    status, text = mesh.get(f"/v2/repository/models/{model}/load", "POST", body)
    return status, text.decode()


def exposure(log: Path) -> str:
    (line,) = [line for line in log.read_text().splitlines() if ": open to " in line]
    return line


def is_open(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def test_a_hardened_mesh_serves_and_does_nothing_else(models: Path, tmp_path: Path) -> None:
    explicit = ("--model-control-mode=explicit", "--load-model=scaler")
    with running(models, tmp_path / "log", "--hardened", *explicit) as mesh:
        assert mesh.get("/v2/models/scaler/ready")[0] == 200
        assert load(mesh, "identity")[0] == 403
        assert mesh.get("/v2/logging")[0] == 403
        # The metrics port is this machine's; 127.0.0.2 stands for another interface.
        assert is_open("127.0.0.1", mesh.metrics_port)
        assert not is_open("127.0.0.2", mesh.metrics_port)
        assert is_open("127.0.0.2", mesh.http_port)
        line = exposure(tmp_path / "log")
        assert re.search(
            r"to any client of \S+ and \S+: inference, metadata, statistics; to any client of"
            r" 127\.0\.0\.1:\d+: metrics; to processes of this user at unix:\S+: the mesh$",
            line,
        )
    # A flag that is given opens its own again, and no other.
    with running(models, tmp_path / "log", "--hardened", "--open-control-apis", *explicit) as mesh:
        status, text = load(mesh, "identity")
        assert status == 400
        assert "backend 'python' of model 'identity' is not allowed" in text
        files = {"file:1/model.py": base64.b64encode(b"x").decode(), "config": "{}"}
        status, text = load(mesh, "new", files)
        assert status == 400
        assert "--allow-model-files" in text


def test_an_open_mesh_says_so(mesh: Mesh) -> None:
    line = exposure(mesh.log)
    assert "inference, metadata, statistics, model control, trace settings" in line
    assert is_open("127.0.0.2", mesh.metrics_port)
