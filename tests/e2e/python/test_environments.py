"""Python models with a Python of their own, and with limits on what they may take."""

import tarfile
from pathlib import Path

import pytest

from nereid.core.files.temporary_directories import PYTHON_ENV
from tests.support.mesh.commands import refusal, say
from tests.support.mesh.mesh import running, until
from tests.support.models import python_models
from tests.support.models.environments import make_environment

pytestmark = pytest.mark.slow

SOURCE = """
import sys

import numpy as np
import only_here
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        reply = f"{only_here.WORD} {sys.prefix}"
        tensor = pb_utils.Tensor("REPLY", np.array([reply], np.object_))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""
SLEEPY = """
import threading


class TritonPythonModel:
    def initialize(self, args):
        threading.Event().wait()

    def execute(self, requests):
        pass
"""


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'


def test_environments_packed_and_as_directories(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    make_environment(tmp_path / "env")
    packed = tmp_path / "env.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(tmp_path / "env", ".")
    paths = {
        "packed": str(packed),
        "folder": "$$TRITON_MODEL_DIRECTORY/env",
        "none": str(tmp_path / "nothing"),
        "empty": str(tmp_path),
    }
    for name, path in paths.items():
        config = python_models.TALK + parameter("EXECUTION_ENV_PATH", path)
        directory = python_models.save(repository, "talk", config, name)
        (directory / "1" / "model.py").write_text(SOURCE)
    make_environment(repository / "folder" / "env")
    with running(repository, tmp_path / "log") as mesh:
        word, prefix = say(mesh, "x", "packed").split()
        assert word == "here"
        assert Path(prefix).parent.name.startswith(PYTHON_ENV)
        assert say(mesh, "x", "folder") == f"here {repository}/folder/env"
        reason = f"Internal: Failed to get the canonical path for {tmp_path}/nothing."
        assert mesh.index()["none"]["reason"] == reason
        assert mesh.index()["empty"]["reason"].endswith("has no Python (bin/python) in it")
    assert not Path(prefix).parent.exists()


def test_what_a_killed_executor_unpacked_is_removed_by_the_next(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    make_environment(tmp_path / "env")
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "env", ".")
    config = python_models.TALK + parameter("EXECUTION_ENV_PATH", str(tmp_path / "env.tar.gz"))
    directory = python_models.save(repository, "talk", config)
    (directory / "1" / "model.py").write_text(SOURCE)
    with running(repository, tmp_path / "log") as mesh:
        left = Path(say(mesh, "x").split()[1]).parent
        mesh.kill("nereid_executor")
        assert Path(say(mesh, "x").split()[1]).parent != left
        until(lambda: not left.exists(), "what it left to be removed")


def test_limits(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    for name, config in {
        "sleepy": parameter("initialize-timeout-seconds", "0.5"),
        "odd": parameter("execute-timeout-seconds", "soon"),
        "talk": parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "no"),
    }.items():
        directory = python_models.save(repository, "talk", python_models.TALK + config, name)
        if name == "sleepy":
            (directory / "1" / "model.py").write_text(SLEEPY)
    flag = "--backend-config=python,execute-timeout-seconds=2"
    with running(repository, tmp_path / "log", flag) as mesh:
        reasons = {name: entry.get("reason", "") for name, entry in mesh.index().items()}
        assert "did not get ready within 0.5 s" in reasons["sleepy"]
        assert "is 'soon', expected a number of seconds" in reasons["odd"]
        assert "within 2 s" in refusal(mesh, "hang")[1]
        assert say(mesh, "echo back") == "back"
