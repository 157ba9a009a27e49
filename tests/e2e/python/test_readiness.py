"""model.py files that say themselves whether they are ready, through the whole mesh."""

import http.client
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models import python_models

pytestmark = [pytest.mark.slow, pytest.mark.unconfined("its model writes to its folder")]

MODELS = ("moody", "waiting")
ASYNC = 'parameters { key: "async" value { string_value: "1" } }\n'


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repository")
    python_models.save(path, "moody", python_models.TALK)
    python_models.save(path, "moody", python_models.TALK + ASYNC, "waiting")
    python_models.save(path, "identity")
    for model in MODELS:
        set_mood(path, model, "yes")
    return path


@pytest.fixture(scope="module")
def mesh(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    with running(root, tmp_path_factory.mktemp("mesh") / "log") as mesh:
        yield mesh


def set_mood(root: Path, model: str, mood: str) -> None:
    """All of it at once: the model may be reading."""
    path = root / model / "1" / "mood"
    new = path.with_suffix(".new")
    new.write_text(mood)
    new.rename(path)


def is_ready(mesh: Mesh, model: str) -> set[bool]:
    """As each protocol has it, of the model and of its version."""
    with (
        tritonclient.http.InferenceServerClient(mesh.http) as over_http,
        tritonclient.grpc.InferenceServerClient(mesh.grpc) as over_grpc,
    ):
        clients = (over_http, over_grpc)
        return {each.is_model_ready(model, version) for each in clients for version in ("", "1")}


def say(mesh: Mesh) -> str:
    with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
        tensor = tritonclient.grpc.InferInput("COMMAND", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([""], np.object_))
        return str(client.infer("moody", [tensor]).as_numpy("REPLY")[0].decode())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mood", ["no", "vague", "number", "there is no such mood"])
def test_a_model_is_ready_when_it_says_so(mesh: Mesh, root: Path, model: str, mood: str) -> None:
    assert is_ready(mesh, model) == {True}
    assert mesh.get("/v2/health/ready")[0] == http.client.OK
    set_mood(root, model, mood)
    assert is_ready(mesh, model) == {False}
    assert mesh.get(f"/v2/models/{model}/ready")[0] == http.client.BAD_REQUEST
    assert mesh.get("/v2/health/ready")[0] == http.client.BAD_REQUEST
    # It is asked, and nothing else follows from it.
    assert is_ready(mesh, "identity") == {True}
    assert say(mesh) == "done"
    set_mood(root, model, "yes")
    assert is_ready(mesh, model) == {True}


def test_a_model_is_asked_while_it_executes(mesh: Mesh, root: Path) -> None:
    folder = root / "moody" / "1"
    (folder / "executing").unlink(missing_ok=True)
    (folder / "busy").touch()
    with ThreadPoolExecutor(1) as pool:
        try:
            reply = pool.submit(say, mesh)
            until((folder / "executing").exists, "the model to execute")
            assert is_ready(mesh, "moody") == {True}
            set_mood(root, "moody", "no")
            assert is_ready(mesh, "moody") == {False}
            assert not reply.done()
        finally:
            set_mood(root, "moody", "yes")
            (folder / "busy").unlink()
        assert reply.result() == "done"


def test_a_model_that_does_not_respond_is_not_ready_and_blocks_no_other(
    mesh: Mesh, root: Path
) -> None:
    folder = root / "moody" / "1"
    (folder / "asked").unlink(missing_ok=True)
    set_mood(root, "moody", "hang")
    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(mesh.get, path) for path in ("/v2/models/moody/ready",) * 2]
        until((folder / "asked").exists, "the model to be asked")
        assert say(mesh) == "done"
        assert is_ready(mesh, "identity") == is_ready(mesh, "waiting") == {True}
        assert {each.result()[0] for each in asking} == {http.client.BAD_REQUEST}
    # All of them were one question.
    assert (folder / "asked").read_text() == "x"
    set_mood(root, "moody", "yes")
    until(lambda: is_ready(mesh, "moody") == {True}, "the model to be ready again")


def test_a_model_that_dies_of_the_question_is_not_ready_until_it_is_back(
    mesh: Mesh, root: Path
) -> None:
    set_mood(root, "moody", "die")
    assert mesh.get("/v2/models/moody/ready")[0] == http.client.BAD_REQUEST
    set_mood(root, "moody", "yes")
    until(lambda: is_ready(mesh, "moody") == {True}, "the model to be ready again")
    assert say(mesh) == "done"
