"""Clients with API keys who attack each other, and what a million mistakes leave in the log."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc
import pytest

from nereid.pb import kserve_pb2
from nereid_gateway.guards.auth.api_key import digest_of, make_key
from tests.support.hostile.raw_clients import HttpClient, post
from tests.support.mesh.mesh import Mesh, ask, until
from tests.support.models.e2e_models import save_echo

pytestmark = pytest.mark.slow

ALICE, BOB, ROOT = make_key(), make_key(), make_key()
_ANONYMOUS = """
[anonymous]
rights = ["health"]
"""
_TENANT = """
[[keys]]
name = "{name}"
sha256 = "{digest}"
rights = ["inference", "model-repository"]
models = ["mine*", "sums"]
"""
_ROOT = f"""
[[keys]]
name = "root"
sha256 = "{digest_of(ROOT)}"
rights = ["all"]
"""
_SUMS_CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [-1] }
output { name: "SUM" data_type: TYPE_FP32 dims: [1] }
instance_group [{ count: 2 kind: KIND_CPU }]
sequence_batching { max_sequence_idle_microseconds: 60000000 direct { } }
"""
# Kept by correlation id, as many models do.
_SUMS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.add(request) for request in requests]

    def add(self, request):
        which, flags = request.correlation_id(), request.flags()
        total = 0.0 if flags & 1 else self.sums.get(which, float("nan"))
        total += float(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().sum())
        self.sums[which] = total
        if flags & 2:
            del self.sums[which]
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("SUM", np.array([[total]], np.float32))]
        )
"""
# Of "sums": two instances with four each, of which one client may have a half.
_SLOTS = 8
# Of warnings and errors of one class of mistakes, however many they are; 0.6 MB without a limit.
_MAX_LOGGED_BYTES = 100_000
_MISTAKES = 3000


def ensemble(*models: str) -> dict[str, Any]:
    """A configuration: each step reads what the one before it has made."""
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    names = ["INPUT0", *(f"between_{number}" for number in range(1, len(models))), "OUTPUT0"]
    steps = [
        {
            "model_name": model,
            "model_version": -1,
            "input_map": {"INPUT0": names[number]},
            "output_map": {"OUTPUT0": names[number + 1]},
        }
        for number, model in enumerate(models)
    ]
    return {
        "platform": "ensemble",
        "max_batch_size": 8,
        "input": [{"name": "INPUT0", **tensor}],
        "output": [{"name": "OUTPUT0", **tensor}],
        "ensemble_scheduling": {"step": steps},
    }


def save_ensemble(root: Path, name: str, step: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(
        'platform: "ensemble"\nmax_batch_size: 8\n'
        'input { name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }\n'
        'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }\n'
        f'ensemble_scheduling {{ step {{ model_name: "{step}" model_version: -1'
        ' input_map { key: "INPUT0" value: "INPUT0" }'
        ' output_map { key: "OUTPUT0" value: "OUTPUT0" } } }\n'
    )


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("tenants")
    models = root / "models"
    for name in ("secret", "mine_echo", "mine_overridden"):
        save_echo(models, name)
    save_ensemble(models, "mine_stored", "secret")
    save_ensemble(models, "mine_nested", "mine_stored")
    save_ensemble(models, "mine_own", "mine_echo")
    (models / "sums" / "1").mkdir(parents=True)
    (models / "sums" / "config.pbtxt").write_text(_SUMS_CONFIG)
    (models / "sums" / "1" / "model.py").write_text(_SUMS)
    auth = root / "auth.toml"
    tenants = (
        _TENANT.format(name=name, digest=digest_of(key))
        for name, key in (("alice", ALICE), ("bob", BOB))
    )
    auth.write_text("".join((_ANONYMOUS, *tenants, _ROOT)))
    flags = (
        f"--auth-config={auth}",
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in ("secret", "mine_echo", "mine_overridden", "sums")),
        "--client-sequence-percent=50",
    )
    started = Mesh(models, root / "log", *flags, "--executors=1")
    try:
        until(lambda: is_ready(started), "the mesh to be ready")
        yield started
    finally:
        started.terminate()


def is_ready(mesh: Mesh) -> bool:
    with contextlib.suppress(OSError):
        return ask(mesh.http, "/v2/health/ready")[0] == HTTPStatus.OK
    return False


def load(mesh: Mesh, key: str, model: str, config: dict[str, Any] | None = None) -> tuple[int, str]:
    parameters = {} if config is None else {"parameters": {"config": json.dumps(config)}}
    path = f"/v2/repository/models/{model}/load"
    status, body = ask(mesh.http, path, "POST", json.dumps(parameters).encode(), {"x-api-key": key})
    return status, body.decode()


def load_by_grpc(mesh: Mesh, key: str, model: str, config: dict[str, Any]) -> None:
    request = kserve_pb2.RepositoryModelLoadRequest(model_name=model)
    request.parameters["config"].string_param = json.dumps(config)
    # What only gateways write.
    request.parameters["nereid_permitted_models"].string_param = '{"principal":"x","models":["*"]}'
    with grpc.insecure_channel(mesh.grpc) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")
        call(request.SerializeToString(), timeout=20, metadata=(("x-api-key", key),))


@dataclass(frozen=True)
class Load:
    """One load request, and what becomes of it."""

    key: str
    model: str
    config: dict[str, Any] | None
    status: int
    # What the refusal says.
    text: str = ""


_REFUSAL = (
    "'alice' has no right to use model 'secret', a step of ensemble '{}': its grant is for"
    " 'mine*', 'sums'"
)
# Each with its harmless twin.
LOADS = {
    "a step of another's": Load(
        ALICE, "mine_overridden", ensemble("secret"), 403, _REFUSAL.format("mine_overridden")
    ),
    "a step of one's own": Load(ALICE, "mine_overridden", ensemble("mine_echo"), 200),
    "one step of two": Load(
        ALICE,
        "mine_overridden",
        ensemble("mine_echo", "secret"),
        403,
        _REFUSAL.format("mine_overridden"),
    ),
    "a stored step of another's": Load(
        ALICE, "mine_stored", None, 403, _REFUSAL.format("mine_stored")
    ),
    "a stored step of one's own": Load(ALICE, "mine_own", None, 200),
    "a step of a step": Load(ALICE, "mine_nested", None, 403, _REFUSAL.format("mine_stored")),
    "a step of an override's step": Load(
        ALICE, "mine_overridden", ensemble("mine_stored"), 403, _REFUSAL.format("mine_stored")
    ),
    "by whoever may": Load(ROOT, "mine_nested", None, 200),
}


@pytest.mark.parametrize("name", LOADS)
def test_an_ensemble_uses_what_its_client_may(mesh: Mesh, name: str) -> None:
    row = LOADS[name]
    status, body = load(mesh, row.key, row.model, row.config)
    assert status == row.status, body
    assert row.text in body


def test_likewise_over_grpc(mesh: Mesh) -> None:
    with pytest.raises(grpc.RpcError, match="has no right to use model 'secret'") as caught:
        load_by_grpc(mesh, ALICE, "mine_overridden", ensemble("secret"))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    load_by_grpc(mesh, ALICE, "mine_overridden", ensemble("mine_echo"))


def add(
    mesh: Mesh, key: str, which: int | str, value: float, flags: str = "", model: str = "sums"
) -> tuple[int, Any]:
    """One request of a sequence: the status, and the sum so far or the error."""
    document = {
        "inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [value]}],
        "outputs": [{"name": "SUM"}],
        "parameters": {
            "sequence_id": which,
            "sequence_start": "s" in flags,
            "sequence_end": "e" in flags,
        },
    }
    status, body = ask(
        mesh.http,
        f"/v2/models/{model}/infer",
        "POST",
        json.dumps(document).encode(),
        {"x-api-key": key},
    )
    reply = json.loads(body)
    return status, reply["outputs"][0]["data"][0] if status == 200 else reply["error"]


def test_a_sequence_is_its_principals(mesh: Mesh) -> None:
    """Neither continued nor read nor ended by another key, whether that has one of the same id."""
    assert add(mesh, ALICE, 7, 1, "s") == (200, 1)
    for flags in ("", "e"):
        status, error = add(mesh, BOB, 7, 100, flags)
        assert (status, "must specify the START flag" in error) == (400, True)
    assert add(mesh, BOB, 7, 100, "s") == (200, 100)
    assert add(mesh, ALICE, 7, 2) == (200, 3)
    assert add(mesh, BOB, 7, 100, "e") == (200, 200)
    assert add(mesh, ALICE, 7, 3) == (200, 6)
    # The twin: the same key on another connection.
    assert add(mesh, ALICE, 7, 4, "e") == (200, 10)


def test_a_client_has_a_share_of_the_slots(mesh: Mesh) -> None:
    opened = [add(mesh, ALICE, 1000 + number, 1, "s")[0] for number in range(_SLOTS)]
    assert opened == [200] * (_SLOTS // 2) + [503] * (_SLOTS // 2)
    assert add(mesh, BOB, 1000, 5, "s") == (200, 5)
    assert add(mesh, BOB, 1000, 5, "e") == (200, 10)
    for number in range(_SLOTS // 2):
        assert add(mesh, ALICE, 1000 + number, 1, "e") == (200, 2)


def _start(number: int) -> bytes:
    """Conflicts with the one before it: that has not ended."""
    body = json.dumps(
        {
            "inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [number]}],
            "parameters": {"sequence_id": 5, "sequence_start": True},
        }
    )
    return post("/v2/models/sums/infer", body.encode(), f"x-api-key: {ALICE}")


def _by_root(path: str, body: bytes = b"") -> Callable[[int], bytes]:
    return lambda number: post(path.format(number), body, f"x-api-key: {ROOT}")


# Requests that are logged as warnings or errors.
MISTAKES: dict[str, Callable[[int], bytes]] = {
    "STARTs of a sequence that is open": _start,
    "loads of unknown models": _by_root("/v2/repository/models/none_{}/load"),
    "loads that fail": _by_root(
        "/v2/repository/models/mine_overridden/load",
        json.dumps({"parameters": {"config": '{"backend": "nonesuch"}'}}).encode(),
    ),
    "unknown keys": lambda number: post("/v2/logging", b"", f"x-api-key: {number}"),
    "keys without the right": lambda number: post(
        f"/v2/models/{number}/infer", b"", f"x-api-key: {ALICE}"
    ),
    "bodies that are no requests": _by_root("/v2/models/secret/infer", b"{"),
}


def logged_bytes(log: Path) -> int:
    """Of warnings and errors, with the lines below them."""
    found, counts = 0, False
    for line in log.read_text().splitlines():
        if line[:1].isdigit():
            counts = " WARNING " in line[:40] or " ERROR " in line[:40]
        found += counts * (len(line) + 1)
    return found


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_do_not_fill_the_log(mesh: Mesh, name: str) -> None:
    before = logged_bytes(mesh.log)
    client = HttpClient(mesh.http, "127.0.0.2")
    client.pipelined = True
    try:
        requests = b"".join(map(MISTAKES[name], range(_MISTAKES)))
        responded = lambda: client.body_bytes  # noqa: E731
        client.pump(requests, until=responded, limit_s=30)
        # The last one ends the connection, once all have their response.
        client.pump(
            post("/v2/health/live", b"", "Connection: close"), until=lambda: False, limit_s=2
        )
    finally:
        client.close()
    assert logged_bytes(mesh.log) - before < _MAX_LOGGED_BYTES
