"""Calls of confined models by the rights of the clients whose requests they execute."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

import pytest

from nereid_executor.backends.python.sandbox.policy import missing_protection, provided_protection
from nereid_gateway.guards.auth.api_key import digest_of, make_key
from nereid_scheduler.control.shards.members.ownership import owner_of
from tests.support.mesh.mesh import Mesh, ask, until
from tests.support.models import python_models

pytestmark = pytest.mark.slow

ALICE, BOB, ROOT = make_key(), make_key(), make_key()
RELAYS = '"relay", "deep", "pairs", "late", "cached", "steps"'
AUTH = f"""
[anonymous]
rights = ["health"]
[[keys]]
name = "alice"
sha256 = "{digest_of(ALICE)}"
rights = ["inference"]
models = [{RELAYS}, "a_*"]
[[keys]]
name = "bob"
sha256 = "{digest_of(BOB)}"
rights = ["inference"]
models = [{RELAYS}, "b_*"]
[[keys]]
name = "root"
sha256 = "{digest_of(ROOT)}"
rights = ["all"]
"""
PAIRS = "dynamic_batching { preferred_batch_size: [2] max_queue_delay_microseconds: 20000000 }"
DECOUPLED = "model_transaction_policy { decoupled: true }"
STEPS = """
platform: "ensemble"
max_batch_size: 2
input { name: "PATH" data_type: TYPE_STRING dims: [1] }
output { name: "REPLY" data_type: TYPE_STRING dims: [1] }
ensemble_scheduling { step {
  model_name: "relay" model_version: -1
  input_map { key: "PATH" value: "PATH" }
  output_map { key: "REPLY" value: "REPLY" }
} }
"""
REFUSAL = (
    "Model {0} - Error when running inference: the confined model may not call model '{0}':"
    " the client of a request has no right to use the API 'inference' with it (--sandbox-call)"
)


SCHEDULERS = ("scheduler-0", "scheduler-1")


def leaf(client: str, caller: str) -> str:
    """Return a model of a client that another scheduler has than the caller, if there are two."""
    names = (f"{client}_leaf", f"{client}_1")
    return next(
        name for name in names if owner_of(name, SCHEDULERS) != owner_of(caller, SCHEDULERS)
    )


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        root = Path(directory)
        if missing := missing_protection(provided_protection(root)):
            pytest.skip("; ".join(missing))
        (root / "auth.toml").write_text(AUTH)
        models = root / "models"
        more = {"pairs": PAIRS, "late": DECOUPLED, "cached": "response_cache { enable: true }"}
        for name in ("relay", "deep", "a_leaf", "a_1", "b_leaf", "b_1", *more):
            config = python_models.RELAY + more.get(name, "")
            python_models.save(models, "relay", config, name)
        (models / "steps" / "1").mkdir(parents=True)
        (models / "steps" / "config.pbtxt").write_text(STEPS)
        yield root


@contextlib.contextmanager
def serving(root: Path, *flags: str) -> Iterator[Mesh]:
    mesh = Mesh(
        root / "models",
        root / "log",
        f"--auth-config={root / 'auth.toml'}",
        "--cache-config=local,size=1048576",
        "--executors=1",
        *flags,
    )
    try:
        until(lambda: is_ready(mesh), "the mesh to be ready")
        yield mesh
    finally:
        mesh.terminate()


def is_ready(mesh: Mesh) -> bool:
    with contextlib.suppress(OSError):
        return ask(mesh.http, "/v2/health/ready")[0] == HTTPStatus.OK
    return False


@pytest.fixture(scope="module", params=[1, 2], ids=["one scheduler", "two schedulers"])
def mesh(root: Path, request: pytest.FixtureRequest) -> Iterator[Mesh]:
    with serving(root, "--sandbox-models", f"--schedulers={request.param}") as mesh:
        yield mesh


def relay(mesh: Mesh, key: str, path: str, model: str = "relay") -> tuple[int, str]:
    """Return the status and the reply, or the error, of a request that names models to call."""
    headers = {"Authorization": f"Bearer {key}"}
    if model == "late":
        body = json.dumps({"PATH": path}).encode()
        status, response = ask(mesh.http, f"/v2/models/{model}/generate", "POST", body, headers)
        document = json.loads(response)
        return status, document["REPLY" if status == HTTPStatus.OK else "error"]
    tensor = {"name": "PATH", "datatype": "BYTES", "shape": [1, 1], "data": [path]}
    body = json.dumps({"inputs": [tensor]}).encode()
    status, response = ask(mesh.http, f"/v2/models/{model}/infer", "POST", body, headers)
    if status == HTTPStatus.OK:
        return status, json.loads(response)["outputs"][0]["data"][0]
    return status, response.decode()


LEAF = (HTTPStatus.OK, "leaf")


def assert_refused(refused: tuple[int, str], called: str, model: str = "relay") -> None:
    """Check that the model was refused the call, and has passed the error on."""
    # The routes for texts respond to all errors of models with 400, as on Triton.
    status = HTTPStatus.BAD_REQUEST if model == "late" else HTTPStatus.FORBIDDEN
    assert refused[0] == status
    assert REFUSAL.format(called) in refused[1]


@pytest.mark.parametrize("model", ["relay", "late", "steps"])
def test_a_call_needs_its_clients_right(mesh: Mesh, model: str) -> None:
    """Also a call that is made after execute() has returned, and a call of an ensemble's step."""
    # The ensemble has the scheduler of its only step's model.
    caller = "relay" if model == "steps" else model
    a, b = leaf("a", caller), leaf("b", caller)
    assert relay(mesh, ALICE, a, model) == LEAF
    assert_refused(relay(mesh, ALICE, b, model), b, model)
    assert relay(mesh, BOB, b, model) == LEAF
    assert relay(mesh, ROOT, b, model) == LEAF


def test_a_nested_call_needs_the_first_clients_right(mesh: Mesh) -> None:
    a, b = leaf("a", "deep"), leaf("b", "deep")
    assert relay(mesh, ALICE, f"deep>{a}") == LEAF
    assert_refused(relay(mesh, ALICE, f"deep>{b}"), b)
    assert relay(mesh, ROOT, f"deep>{b}") == LEAF


@pytest.mark.parametrize(
    ("other", "is_refused"), [(BOB, True), (ROOT, False)], ids=["limited", "of all models"]
)
def test_each_client_of_a_batch_needs_the_right(mesh: Mesh, other: str, is_refused: bool) -> None:
    a = leaf("a", "pairs")
    with ThreadPoolExecutor(2) as threads:
        caller = threads.submit(relay, mesh, ALICE, a, "pairs")
        batched = threads.submit(relay, mesh, other, "", "pairs")
        assert batched.result() == LEAF
        if is_refused:
            assert_refused(caller.result(), a)
        else:
            assert caller.result() == LEAF


def test_open_requests_of_other_clients_count(mesh: Mesh) -> None:
    a = leaf("a", "late")
    connection = HTTPConnection(mesh.http, timeout=20)
    headers = {"Authorization": f"Bearer {BOB}"}
    connection.request("POST", "/v2/models/late/generate_stream", '{"PATH": "hold"}', headers)
    response = connection.getresponse()
    assert b"held" in response.readline()
    assert_refused(relay(mesh, ALICE, a, "late"), a, "late")
    assert relay(mesh, BOB, "release", "late") == LEAF
    response.read()
    response.close()
    connection.close()
    assert relay(mesh, ALICE, a, "late") == LEAF


def test_clients_of_other_rights_share_no_cached_responses(mesh: Mesh) -> None:
    a = leaf("a", "cached")
    assert relay(mesh, ALICE, a, "cached") == LEAF
    assert_refused(relay(mesh, BOB, a, "cached"), a)
    assert relay(mesh, ALICE, a, "cached") == LEAF


def test_a_models_own_right_suffices(root: Path) -> None:
    with serving(root, "--sandbox-models", "--sandbox-call=relay:b_*") as mesh:
        assert relay(mesh, ALICE, "b_leaf") == LEAF
        status, text = relay(mesh, ALICE, "a_leaf")
        assert status == HTTPStatus.FORBIDDEN
        assert "the confined model may not call model 'a_leaf' (--sandbox-call)" in text


def test_models_out_of_the_sandbox_call_any(root: Path) -> None:
    with serving(root, "--sandbox-models=false") as mesh:
        assert relay(mesh, ALICE, "deep>b_leaf") == LEAF
