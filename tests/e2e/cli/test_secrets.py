"""No process of `nereid serve` shows a secret, in argv or in its environment, and each has its own
alone; and a mesh with a token serves.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nereid.mesh_auth.roles import Role
from nereid.mesh_auth.tokens import MeshToken
from tests.support.mesh.mesh import Mesh, free_port, running, until
from tests.support.mesh.separate_services import ready, service, workers
from tests.support.models import python_models

pytestmark = pytest.mark.slow

TOKEN = "correct horse battery staple"
HTTP_KEY, GRPC_KEY, REDIS_KEY, URL_KEY = "http-s3cret", "grpc-s3cret", "redis-s3cret", "url-s3cret"
SECRETS = (TOKEN, HTTP_KEY, GRPC_KEY, REDIS_KEY, URL_KEY)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    python_models.save(tmp_path / "models", "identity")
    return tmp_path / "models"


def descendants(process: int) -> list[int]:
    children = workers(process)
    return children + [each for child in children for each in descendants(child)]


def shown(process: int) -> str:
    """What others can see of a process."""
    folder = Path(f"/proc/{process}")
    return (folder / "cmdline").read_text() + (folder / "environ").read_text()


def name_of(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")


def infer(mesh: Mesh) -> int:
    tensor = {"name": "IN_FP32", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    body = json.dumps({"inputs": [tensor]}).encode()
    return mesh.get("/v2/models/identity/infer", "POST", body)[0]


@pytest.mark.parametrize("join", ["scheduler", "none"])
def test_children_show_no_secret(
    models: Path, tmp_path: Path, join: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEREID_MESH_TOKEN", TOKEN)
    monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", REDIS_KEY)
    monkeypatch.setenv("NEREID_HTTP_RESTRICTED_API", f"logging:key={HTTP_KEY}")
    port = free_port()
    # Nobody listens there: each lookup is a miss.
    url = f"redis,url=redis://u:{URL_KEY}@127.0.0.1:{free_port()}"
    flags = [f"--join={join}", f"--cache-config={url}", f"--scheduler-address=127.0.0.1:{port}"]
    # As given on a command line, which only the first process shows.
    flags.append(f"--grpc-restricted-protocol=logging:key={GRPC_KEY}")
    with running(models, tmp_path / "log", *flags) as mesh:
        until(lambda: infer(mesh) == 200, "the model")
        family = descendants(mesh.process.pid)
        names = [name_of(each) for each in family]
        for wanted in ("nereid_executor", "python/direct"):
            assert any(wanted in name for name in names), names
        for process in family:
            assert not [each for each in SECRETS if each in shown(process)], name_of(process)
            assert "nereid-role-" not in shown(process)
        # The restriction has arrived all the same.
        assert mesh.get("/v2/logging")[0] == 403
        # An executor of another machine, with its role's token.
        token = MeshToken(TOKEN).role_token(Role.EXECUTOR)
        monkeypatch.setenv("NEREID_MESH_TOKEN", token)
        dial = f"--scheduler-address=127.0.0.1:{port}"
        with service("executor", tmp_path / "executor", dial, "--name=remote"):
            log = tmp_path / "log"
            until(lambda: "'remote' joined" in log.read_text(), "the executor")
        monkeypatch.delenv("NEREID_MESH_TOKEN")
        with service("executor", tmp_path / "rogue", dial, "--name=rogue"):
            rogue = tmp_path / "rogue"
            until(lambda: "--mesh-token" in rogue.read_text(), "its refusal")
        lines = log.read_text().splitlines()
        assert len([line for line in lines if "was refused" in line]) == 1
        assert not any("'rogue' joined" in line for line in lines)


def test_a_model_sees_none_of_nereids_variables(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As an executor that somebody starts by hand: its own environment has them.
    monkeypatch.setenv("NEREID_CACHE_CONFIG", f"redis,host=h,password={REDIS_KEY}")
    monkeypatch.setenv("FOR_MODELS", "kept")
    address, http_port = f"127.0.0.1:{free_port()}", free_port()
    dial = f"--scheduler-address={address}"
    ports = [f"--http-port={http_port}", "--grpc-port=0", "--metrics-port=0"]
    monkeypatch.setenv("NEREID_MESH_TOKEN", TOKEN)
    with (
        service("scheduler", tmp_path / "scheduler", dial, f"--model-repository={models}"),
        service("gateway", tmp_path / "gateway", dial, *ports),
        service("executor", tmp_path / "executor", dial) as executor,
    ):
        until(lambda: ready(http_port, "identity"), "the model")
        family = descendants(executor.pid)
        assert family
        for worker in family:
            assert "NEREID_" not in shown(worker)
            assert "FOR_MODELS=kept" in shown(worker)
