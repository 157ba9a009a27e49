"""Meshes of a test's own: other model control modes, loads with a cache, a start that fails."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models.e2e_models import save_scaler
from tests.support.models.scaler import CONFIG, LOAD, UNLOAD, scaled


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    save_scaler(tmp_path / "models", "scaler", 1, CONFIG)
    return tmp_path / "models"


def test_polling_follows_the_files(tmp_path: Path, repository: Path) -> None:
    flags = ("--model-control-mode=poll", "--repository-poll-secs=0.1")
    with running(repository, tmp_path / "log", *flags) as mesh:
        assert [mesh.get(path, "POST")[0] for path in (LOAD, UNLOAD)] == [503, 503]
        assert scaled(mesh) == 1
        save_scaler(repository, "scaler", 2, CONFIG)
        until(lambda: scaled(mesh) == 2, "the new weights")
        save_scaler(repository, "another", 3, CONFIG)
        until(lambda: mesh.index().get("another", {}).get("state") == "READY", "the new model")
        (repository / "scaler" / "1" / "model.onnx").write_bytes(b"this is no model")
        until(lambda: "failed to load" in mesh.log.read_text(), "the failure to be told")
        assert scaled(mesh) == 2
        (repository / "bad").mkdir()
        (repository / "bad" / "config.pbtxt").write_text("nonsense: 1")
        shutil.rmtree(repository / "another")
        until(lambda: "another" not in mesh.index(), "the deleted model to go")
        assert "has no field named" in mesh.index()["bad"]["reason"]
        assert mesh.get("/v2/health/ready")[0] == 200
        save_scaler(repository, "scaler", 4, CONFIG)
        until(lambda: scaled(mesh) == 4, "the repaired model")


@pytest.mark.parametrize("join", ["scheduler", pytest.param("none", marks=pytest.mark.nightly)])
def test_a_start_that_fails_may_end_the_mesh(tmp_path: Path, repository: Path, join: str) -> None:
    (repository / "scaler" / "1" / "model.onnx").write_bytes(b"this is no model")
    mesh = Mesh(repository, tmp_path / "log", "--exit-on-error=true", f"--join={join}")
    try:
        assert mesh.process.wait(60) == 3
    finally:
        mesh.process.kill()
    assert "failed to load all models" in mesh.log.read_text()
