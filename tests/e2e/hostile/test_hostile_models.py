"""Names and memory of Python models: neither reaches a shell, or a client by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from tests.support.hostile.attack import Target
from tests.support.hostile.model_names import command_name, load_request
from tests.support.hostile.sending import ask
from tests.support.mesh.commands import say
from tests.support.mesh.mesh import Mesh, running
from tests.support.models import python_models
from tests.support.models.environments import make_environment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("models")
    python_models.save(root, "identity")
    flags = ("--model-control-mode=explicit", "--load-model=*", "--allow-client-shm")
    with running(root, tmp_path_factory.mktemp("mesh") / "log", *flags) as started:
        yield started


@pytest.mark.parametrize("own_python", [False, True])
def test_a_models_name_is_no_command(mesh: Mesh, tmp_path: Path, own_python: bool) -> None:
    environment = tmp_path / "env" if own_python else None
    if environment is not None:
        make_environment(environment)
    marker = tmp_path / "made"
    name = command_name(marker)
    assert ask(Target(mesh.http, mesh.grpc, ""), load_request(name, environment)) == "status 200"
    # Its worker runs, under that name.
    assert say(mesh, "echo here", name) == "here"
    assert not marker.exists()


def _descriptors(root: int) -> dict[str, str]:
    """What the mesh's processes have open, by the paths of their descriptors."""
    opened: dict[str, str] = {}
    for folder in Path("/proc").glob("[0-9]*/task/*/children"):
        if int(folder.parts[2]) == root:
            for child in folder.read_text().split():
                opened |= _descriptors(int(child))
    for path in Path(f"/proc/{root}/fd").iterdir():
        opened[str(path)] = str(path.readlink())
    return opened


def test_models_memory_has_no_name_that_a_client_could_register(mesh: Mesh) -> None:
    array = np.zeros((1, 1 << 20), np.float32)
    with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
        tensor = tritonclient.grpc.InferInput("IN_FP32", list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        for _ in range(3):
            client.infer("identity", [tensor])
    opened = _descriptors(mesh.process.pid)
    segments = {path: link for path, link in opened.items() if "memfd:nereid-segment" in link}
    assert segments
    assert [link for link in opened.values() if link.startswith("/dev/shm")] == []
    path, link = next(iter(segments.items()))
    for key in (path, f"../..{path}", link, link.removesuffix(" (deleted)"), "nereid-segment"):
        body = json.dumps({"key": key, "offset": 0, "byte_size": 4096}).encode()
        status, text = mesh.get("/v2/systemsharedmemory/region/theirs/register", "POST", body)
        assert status != HTTPStatus.OK, key
        assert b"nereid-segment" not in text.replace(key.encode(), b"")
