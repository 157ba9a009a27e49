"""Python models that bring their packages."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.support.mesh.commands import say
from tests.support.mesh.mesh import Mesh, has_ended, running, until
from tests.support.models import python_models
from tests.support.models.wheels import save_source, save_wheel

pytestmark = pytest.mark.slow

SOURCE = """
import sys

import numpy as np
import alpha
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        reply = f"{alpha.VERSION} {alpha.BETA} {sys.prefix} {np.__name__}"
        tensor = pb_utils.Tensor("REPLY", np.array([reply], np.object_))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""
COMPLETES = """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "COMMAND", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "REPLY", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(0)
        return config
"""
SCRIPT = """# /// script
# requires-python = ">=3.9"
# dependencies = ["alpha==2.0"]
# ///
"""
_PYLOCK = 'lock-version = "1.0"\ncreated-by = "hand"\n'
_PYLOCK_PACKAGE = """
[[packages]]
name = "{name}"
version = "1.0"
wheels = [{{ path = "wheels/{name}-1.0-py3-none-any.whl", hashes = {{ sha256 = "{digest}" }} }}]
"""
_PROJECT = """
[project]
name = "m"
version = "0"
requires-python = ">=3.11"
dependencies = ["alpha"]
[tool.uv]
no-index = true
find-links = ["{find_links}"]
"""
# Notes that a build runs, and goes on for ever.
ENDLESS = """
import os, pathlib, threading
def get_requires_for_build_wheel(settings=None): return []
def build_wheel(*_):
    with open(os.environ["UV_TEST_NOTES"], "a") as notes:
        notes.write(f"{os.getpid()}\\n")
    threading.Event().wait()
def prepare_metadata_for_build_wheel(folder, settings=None):
    name = "endless-1.0.dist-info"
    (pathlib.Path(folder) / name).mkdir()
    (pathlib.Path(folder) / name / "METADATA").write_text(
        "Metadata-Version: 2.1\\nName: endless\\nVersion: 1.0\\n"
    )
    return name
"""


def add_model(repository: Path, name: str, requirements: str = "", head: str = "") -> Path:
    """Add a model whose code imports alpha."""
    directory = python_models.save(repository, "talk", python_models.TALK, name)
    (directory / "1" / "model.py").write_text(head + SOURCE)
    if requirements:
        (directory / "requirements.txt").write_text(requirements)
    return directory


def save_wheels(folder: Path) -> None:
    for version in ("1.0", "2.0"):
        beta = f"beta=={version}"
        code = f"from beta import VERSION as BETA\nVERSION = {version!r}\n"
        save_wheel(folder, "alpha", version, code, (beta,))
        save_wheel(folder, "beta", version)


def test_versions_of_one_package_side_by_side(tmp_path: Path) -> None:
    repository, wheels = tmp_path / "repository", tmp_path / "wheels"
    save_wheels(wheels)
    add_model(repository, "old", "alpha<2\n# a comment\nbeta\n")
    script = add_model(repository, "script", head=SCRIPT)
    add_model(repository, "same", "alpha<2\n# a comment\nbeta\n")
    (script / "2").mkdir()
    (script / "2" / "model.py").write_text(SOURCE)
    (script / "2" / "requirements.txt").write_text("alpha==1.0")
    config = (script / "config.pbtxt").read_text()
    (script / "config.pbtxt").write_text(config + "version_policy { all {} }\n")
    add_model(repository, "broken", "alpha==7")
    completes = add_model(repository, "completes", "alpha")
    (completes / "1" / "model.py").write_text(SOURCE + COMPLETES)
    (completes / "config.pbtxt").write_text('backend: "python"\n')
    add_model(repository, "without")
    flags = (
        f"--model-wheelhouse={wheels}",
        f"--model-environment-directory={tmp_path / 'kept'}",
    )
    with running(repository, tmp_path / "log", *flags, executors=2) as mesh:
        old = say(mesh, "x", "old").split()
        assert old[:2] == ["1.0", "1.0"]
        assert old[3] == "numpy"
        assert say(mesh, "x", "same").split() == old
        assert say(mesh, "x", "script", model_version="1").split()[:2] == ["2.0", "2.0"]
        assert say(mesh, "x", "script", model_version="2").split()[:2] == ["1.0", "1.0"]
        assert say(mesh, "x", "completes").split()[:2] == ["2.0", "2.0"]
        assert b"EXECUTION_ENV_PATH" not in mesh.get("/v2/models/completes/config")[1]
        reason = mesh.index()["broken"]["reason"]
        assert reason.startswith("Internal: model 'broken': the packages of ")
        assert "alpha==7" in reason
        assert "No module named 'alpha'" in mesh.index()["without"]["reason"]
    # Both executors use what one of them has built.
    assert mesh.log.read_text().count("packages are installed") == 4
    names = {path.name for path in (tmp_path / "kept").iterdir()}
    assert names == {"environments", "locks"}
    assert len(list((tmp_path / "kept" / "environments").iterdir())) == 4


def test_locks_of_uv(tmp_path: Path) -> None:
    repository, wheels = tmp_path / "repository", tmp_path / "elsewhere"
    save_wheels(wheels)
    digests = {
        name: hashlib.sha256((wheels / f"{name}-1.0-py3-none-any.whl").read_bytes()).hexdigest()
        for name in ("alpha", "beta")
    }
    packages = "".join(_PYLOCK_PACKAGE.format(name=name, digest=digests[name]) for name in digests)
    pylock = add_model(repository, "pylock")
    (pylock / "pylock.toml").write_text(_PYLOCK + packages)
    shutil.copytree(wheels, pylock / "wheels")
    broken = add_model(repository, "broken")
    (broken / "pylock.toml").write_text(_PYLOCK + packages.replace(digests["beta"], "0" * 64))
    shutil.copytree(wheels, broken / "wheels")
    # One is synchronised with the sources that its project names, one has a wheelhouse.
    for name, find_links in (("project", wheels), ("packed", Path("wheels"))):
        project = add_model(repository, name)
        if name == "packed":
            shutil.copytree(wheels, project / "wheels")
        (project / "pyproject.toml").write_text(_PROJECT.format(find_links=find_links))
        lock = [find_uv_bin(), "lock", "--quiet", "--resolution=lowest"]
        subprocess.run(lock, cwd=project, check=True)
    with running(
        repository, tmp_path / "log", f"--model-environment-directory={tmp_path / 'kept'}"
    ) as mesh:
        for name in ("pylock", "project", "packed"):
            assert say(mesh, "x", name).split()[:2] == ["1.0", "1.0"]
        assert "Hash mismatch for `beta==1.0`" in mesh.index()["broken"]["reason"]


def test_a_killed_build_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, wheels, notes = tmp_path / "repository", tmp_path / "wheels", tmp_path / "notes"
    save_wheels(wheels)
    source = save_source(wheels, "endless", "1.0", ENDLESS)
    add_model(repository, "m", "alpha==1.0\nendless")
    monkeypatch.setenv("UV_TEST_NOTES", str(notes))
    kept = tmp_path / "kept"
    flags = (f"--model-wheelhouse={wheels}", f"--model-environment-directory={kept}")
    mesh = Mesh(repository, tmp_path / "log", "--executors=1", *flags)
    try:
        until(notes.exists, "the build to begin")
        until(lambda: "installing 3 packages" in mesh.index()["m"]["reason"], "its progress")
        assert mesh.index()["m"]["state"] == "LOADING"
        # The package can be built now, but the content of the wheelhouse is another one.
        source.unlink()
        save_wheel(wheels, "endless", "1.0")
        mesh.kill("nereid_executor")
        assert say(mesh, "x", "m").split()[:2] == ["1.0", "1.0"]
        (build,) = {int(line) for line in notes.read_text().split()}
        until(lambda: has_ended(build), "the build to end")
    finally:
        assert mesh.terminate() == 0
    assert len(list((kept / "environments").iterdir())) == 1
