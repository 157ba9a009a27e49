"""`nereid serve --auth-config`: a mesh whose clients need keys, and a key that is withdrawn."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.mesh.mesh import Mesh, until
from tests.support.models.e2e_models import save_scaler

pytestmark = pytest.mark.slow


def make_key(name: str, rights: str) -> tuple[str, str]:
    """A key and its entry, from the command."""
    nereid = Path(sys.executable).with_name("nereid")
    made = subprocess.run(
        [str(nereid), "api-key", name, f"--rights={rights}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return made.stderr.strip(), made.stdout


def status(mesh: Mesh, target: str, key: str = "", method: str = "GET") -> int:
    url = f"http://127.0.0.1:{mesh.http_port}{target}"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers, method=method), timeout=10
        ) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        # Not started yet.
        return 0


def test_keys_rights_and_withdrawal(tmp_path: Path) -> None:
    save_scaler(tmp_path / "models", "scaler", 2, 'output { name: "OUTPUT0" }\n')
    config, log = tmp_path / "auth.toml", tmp_path / "log"
    caller, caller_entry = make_key("caller", "metadata")
    operator, operator_entry = make_key("operator", "all")
    anonymous = '[anonymous]\nrights = ["health"]\n'
    config.write_text(anonymous + caller_entry + operator_entry)
    mesh = Mesh(tmp_path / "models", log, f"--auth-config={config}", "--hardened", "--executors=1")
    try:
        until(lambda: status(mesh, "/v2/health/ready") == 200, "the mesh to be ready")
        assert status(mesh, "/v2/models/scaler") == 401
        assert status(mesh, "/v2/models/scaler", caller) == 200
        assert status(mesh, "/v2/models/scaler/config", caller) == 403
        assert status(mesh, "/v2/logging", caller) == 403
        # Closed by --hardened to all but those with a key for it.
        assert status(mesh, "/v2/logging", operator) == 200
        # The greeting needs no credentials to be complete.
        until(lambda: "KServe v2 over HTTP" in log.read_text(), "the greeting")
        config.write_text(anonymous + operator_entry)
        until(lambda: status(mesh, "/v2/models/scaler", caller) == 401, "the key to be withdrawn")
        assert status(mesh, "/v2/models/scaler", operator) == 200
    finally:
        assert mesh.terminate() == 0
    text = log.read_text()
    assert caller not in text
    assert operator not in text
    assert text.count("reason=not_permitted") == 1, text
