"""The console's facts and their stream, on a real mesh."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from nereid.facts.document import Document
from nereid_explain import command as explain
from nereid_gateway.guards.auth.api_key import make_key
from tests.support.console.console_client import console, fetch
from tests.support.console.typed_documents import check
from tests.support.gateway.auth_config import key_entry
from tests.support.mesh.mesh import Mesh, ask, running, until
from tests.support.models.e2e_models import save_multiplier, save_scaler
from tests.support.models.scaler import rows

pytestmark = pytest.mark.slow

# Nobody escapes it on the way: it is for the page to show as text.
_SCRIPT = "<img src=x onerror=alert(1)>"
_CONFIG = "max_batch_size: 16\ndynamic_batching { }\n"
_EVIL = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
_UNLOAD = "/v2/repository/models/scaler/unload"
_LOAD = "/v2/repository/models/scaler/load"


def make_models(root: Path) -> Path:
    save_scaler(root, "scaler", 3, _CONFIG)
    save_scaler(root, _SCRIPT, 3, _CONFIG)
    (root / "broken" / "1").mkdir(parents=True)
    (root / "broken" / "config.pbtxt").write_text('backend: "<script>alert(2)</script>"\n')
    return root


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("console")
    flags = "--console", "--model-control-mode=explicit", "--load-model=*"
    with running(make_models(root / "models"), root / "log", *flags) as started:
        yield started


def _is_up(mesh: Mesh) -> bool:
    with contextlib.suppress(OSError):
        return ask(f"127.0.0.1:{mesh.metrics_port}", "/v2/health/live")[0] == HTTPStatus.OK
    return False


def infer(mesh: Mesh, count: int = 1) -> None:
    with http_client.InferenceServerClient(mesh.http) as client:
        tensor = http_client.InferInput("INPUT0", [1, 8], "FP32")
        tensor.set_data_from_numpy(rows(1))
        for number in range(count):
            client.infer("scaler", [tensor], request_id=f"r-{number}")


def facts(mesh: Mesh, query: str = "", **headers: str) -> dict[str, Any]:
    response, body = fetch(mesh.http, f"/console/facts{query}", headers=headers)
    assert response.status == HTTPStatus.OK, body
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    document: dict[str, Any] = json.loads(body)
    check(document, Document)
    return document


def test_the_facts(mesh: Mesh) -> None:
    document = facts(mesh)
    rows_of = document["models"]["rows"]
    by_name = {each["name"]: each for each in rows_of.values()}
    assert document["models"]["keys"][0] == "broken/1"
    assert by_name["broken"]["health"] == "failed"
    assert "<script>alert(2)</script>" in by_name["broken"]["reason"]
    assert by_name["broken"]["statements"][0]["problem"]
    assert by_name["scaler"]["instances"]["free"] > 0
    assert by_name[_SCRIPT]["state"] == "READY"
    (executor,) = document["executors"].values()
    tenants = {each["model"] for device in executor["devices"] for each in device["tenants"]}
    assert tenants == {"scaler", _SCRIPT}
    assert [each["reachable"] for each in document["schedulers"].values()] == [True]
    assert document["summary"]["failed"] == 1
    assert document["permissions"]["may_load"]
    assert "cache" not in document


def test_one_model_in_detail_and_what_explain_says(
    mesh: Mesh, capsys: pytest.CaptureFixture[str]
) -> None:
    document = facts(mesh, "?model=scaler")
    details = document["details"]
    assert list(document["models"]["rows"]) == ["scaler/1"]
    differing = {each["field"]: each for each in details["versions"]["1"]["differences"]}
    assert "declared" not in differing.get("backend", {"effective": "onnxruntime"})
    assert details["versions"]["1"]["effective"]["max_batch_size"] == 16
    metrics = f"--metrics-url=127.0.0.1:{mesh.metrics_port}"
    explain.main(["scaler", f"--url={mesh.http}", metrics, "--json"])
    assert details["explanation"] == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("?query=SCAL", ["scaler"]),
        ("?limit=1&offset=1", [_SCRIPT]),
        ("?query=nothing", []),
    ],
)
def test_pages(mesh: Mesh, query: str, names: list[str]) -> None:
    models = facts(mesh, query)["models"]
    assert [models["rows"][key]["name"] for key in models["keys"]] == names
    assert models["total"] == 3


def test_the_stream_says_what_changes(mesh: Mesh) -> None:
    with console(mesh.http, "?query=scaler") as client:
        client.read_event()
        infer(mesh, 20)
        busy = client.until(lambda each: each["models"]["rows"]["scaler/1"]["rates"]["requests"])
        assert busy > 0
        slow = client.document["slow_requests"][0]
        assert slow["model"] == "scaler"
        assert slow["request_id"].startswith("r-")
        assert slow["phases_us"]["inference"] > 0
        assert slow["batch_size"] == 1
        fetch(mesh.http, _UNLOAD, "POST")
        client.until(lambda each: each["models"]["rows"]["scaler/1"]["state"] == "UNAVAILABLE")
        row = client.document["models"]["rows"]["scaler/1"]
        assert row["statements"][0]["code"] == "unloaded"
        assert "rates" not in row
        fetch(mesh.http, _LOAD, "POST")
        client.until(lambda each: each["models"]["rows"]["scaler/1"].get("instances"))
        assert client.events[0] == "snapshot"
        assert set(client.events[1:]) == {"patch"}
        document = client.document
    check(document, Document)


def test_requests_are_forgotten_while_nobody_looks(mesh: Mesh) -> None:
    until(lambda: facts(mesh)["server"]["consoles"] == 1, "the other consoles to be closed")
    infer(mesh)
    assert facts(mesh)["slow_requests"] == []


def test_consoles_with_different_views_see_their_own(mesh: Mesh) -> None:
    with ExitStack() as stack:
        clients = [
            stack.enter_context(console(mesh.http, query))
            for query in ("", "?query=scaler", "?limit=0", "?model=scaler")
        ]
        for _ in range(2):
            keys = [each.read_event()["models"]["keys"] for each in clients]
        assert [len(each) for each in keys] == [3, 1, 0, 1]
        assert clients[0].document["server"]["consoles"] >= 1
        assert "details" in clients[3].document
        for each in clients:
            check(each.document, Document)


def test_pages_of_other_origins_change_nothing(mesh: Mesh) -> None:
    for headers in (_EVIL, {"Origin": "http://evil.example"}, {"Origin": "null"}):
        response, body = fetch(mesh.http, _UNLOAD, "POST", headers)
        assert (response.status, b"another origin" in body) == (HTTPStatus.FORBIDDEN, True)
        response, _ = fetch(mesh.http, "/v2/models/scaler/infer", "POST", headers)
        assert response.status == HTTPStatus.FORBIDDEN
    assert mesh.index()["scaler"]["state"] == "READY"
    own = {"Origin": f"http://{mesh.http}", "Sec-Fetch-Site": "same-origin"}
    assert fetch(mesh.http, _LOAD, "POST", own)[0].status == HTTPStatus.OK
    # No other origin's page can read it.
    response, _ = fetch(mesh.http, "/console/facts", headers=_EVIL)
    assert "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize(
    ("target", "method", "status"),
    [
        ("/console/facts?limit=-1", "GET", 400),
        ("/console/stream?model=" + "m" * 2000, "GET", 400),
        ("/console/facts?" + "q" * 30000, "GET", 400),
        ("/console/facts", "POST", 405),
        ("/console/static/none.js", "GET", 404),
        ("/console/", "GET", 404),
    ],
)
def test_what_is_refused(mesh: Mesh, target: str, method: str, status: int) -> None:
    response, body = fetch(mesh.http, target, method)
    assert response.status == status
    assert b"error" in body


def test_a_flood_of_consoles_is_bounded(mesh: Mesh) -> None:
    with ExitStack() as stack:
        refused = None
        for _ in range(200):
            try:
                stack.enter_context(console(mesh.http))
            except AssertionError as error:
                refused = str(error)
                break
        assert refused is not None
        assert "too many consoles" in refused
        response, _ = fetch(mesh.http, "/console/facts")
        assert response.status == HTTPStatus.SERVICE_UNAVAILABLE
        assert int(response.headers["Retry-After"]) > 0
        infer(mesh)
    until(
        lambda: fetch(mesh.http, "/console/facts")[0].status == HTTPStatus.OK,
        "the consoles to be closed",
    )


def test_a_gateway_that_stops_ends_its_consoles_and_begins_without_them(tmp_path: Path) -> None:
    save_scaler(tmp_path / "models", "scaler", 2, _CONFIG)
    with running(tmp_path / "models", tmp_path / "log") as mesh:
        assert fetch(mesh.http, "/console")[0].status == HTTPStatus.NOT_FOUND
        assert fetch(mesh.http, "/console/facts")[0].status == HTTPStatus.NOT_FOUND
        # What changes the mesh is not for pages of other origins, with a console or without.
        assert fetch(mesh.http, _LOAD, "POST", _EVIL)[0].status == HTTPStatus.FORBIDDEN
    with running(tmp_path / "models", tmp_path / "log", "--console") as mesh:
        with console(mesh.http) as client:
            client.read_event()
            mesh.process.terminate()
            with pytest.raises(EOFError):
                client.until(lambda _: False)
        assert mesh.process.wait(20) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_one_of_many_models_that_fails_is_seen(tmp_path: Path) -> None:
    """Totals are of all models, whatever is listed, and the worst comes first."""
    models = tmp_path / "models"
    for number in range(250):
        (models / f"idle{number}").mkdir(parents=True)
        (models / f"idle{number}" / "config.pbtxt").write_text('backend: "identity"\n')
    save_multiplier(models, "zebra", 3, 'backend: "onnxruntime"\n')
    flags = "--console", "--model-control-mode=explicit", "--load-model=zebra"
    with running(models, tmp_path / "log", *flags) as mesh:
        # No row of this view has the model that has requests.
        with console(mesh.http, "?limit=1") as client:
            client.read_event()
            for value in (1, 1000):
                tensor = {"name": "I", "datatype": "INT64", "shape": [1], "data": [value]}
                body = json.dumps({"inputs": [tensor]}).encode()
                mesh.get("/v2/models/zebra/infer", "POST", body)
            client.until(lambda each: each["summary"]["requests_per_s"])
            assert "zebra/1" not in client.document["models"]["rows"]
            assert client.document["summary"]["latency_us"]["request"] > 0
        [row] = facts(mesh, "?limit=1&sort=errors")["models"]["rows"].values()
        assert (row["name"], row["health"]) == ("zebra", "problem")
        assert (row["recent"]["requests"], row["recent"]["errors"]) == (1, 1)
        assert row["recent"]["p99_us"] > 0
        # Nobody wants the idle ones.
        assert not [
            each
            for each in facts(mesh, "?limit=200")["models"]["rows"].values()
            if each["health"] != "out"
        ]


def test_two_schedulers_and_what_each_owns(tmp_path: Path) -> None:
    for number in range(6):
        save_scaler(tmp_path / "models", f"scaler{number}", 2, _CONFIG)
    with running(tmp_path / "models", tmp_path / "log", "--console", "--schedulers=2") as mesh:
        document = facts(mesh)
        owners = document["schedulers"]
        assert len(owners) == 2
        assert sorted(name for each in owners.values() for name in each["owned"]) == [
            f"scaler{number}" for number in range(6)
        ]
        for row in document["models"]["rows"].values():
            assert row["name"] in owners[row["scheduler"]]["owned"]
        (executor,) = document["executors"].values()
        assert executor["instances"] >= 6
        hosted = [each["model"] for each in executor["devices"][0]["tenants"]]
        assert sorted(hosted) == [f"scaler{number}" for number in range(6)]


def test_events_say_who_has_asked(tmp_path: Path) -> None:
    operator, viewer = make_key(), make_key()
    auth = tmp_path / "auth.toml"
    auth.write_text(
        key_entry("alice", operator, "console", "model-repository", "health")
        + key_entry("viewer", viewer, "console", more='models = ["none"]')
    )
    save_scaler(tmp_path / "models", "scaler", 3, _CONFIG)
    flags = "--console", f"--auth-config={auth}", "--model-control-mode=explicit"
    mesh = Mesh(tmp_path / "models", tmp_path / "log", "--executors=1", *flags)
    key = {"x-api-key": operator}
    try:
        until(lambda: _is_up(mesh), "the mesh to serve")
        with console(mesh.http, "?events=9", key) as client:
            client.until(lambda document: document["executors"])
            assert fetch(mesh.http, _LOAD, "POST", key)[0].status == HTTPStatus.OK
            with grpc_client.InferenceServerClient(mesh.grpc) as triton:
                triton.unload_model("scaler", headers=key)
            client.until(lambda each: "unload" in _seen(each))
            mesh.kill("nereid_executor")
            document = client.until(lambda each: "executor lost" in _seen(each) and each)
        events = sorted(document["events"].values(), key=lambda event: event["time_s"])
        assert [event["what"] for event in events][:5] == [
            "scheduler started",
            "executor joined",
            "load",
            "unload",
            "executor lost",
        ]
        assert [event.get("principal") for event in events[:5]] == [
            None,
            None,
            *["alice"] * 2,
            None,
        ]
        assert events[2]["cause"] == "a client loads it"
        assert events[4]["problem"]
        # A viewer of some models sees their events alone, and nobody sees any without asking.
        assert facts(mesh, "?events=9", **{"x-api-key": viewer})["events"] == {}
        assert "events" not in facts(mesh, **key)
    finally:
        mesh.terminate()


def _seen(document: dict[str, Any]) -> set[str]:
    return {event["what"] for event in document["events"].values()}


def test_rights(tmp_path: Path) -> None:
    viewer, nobody = make_key(), make_key()
    auth = tmp_path / "auth.toml"
    limited = key_entry("viewer", viewer, "console", more='models = ["scal*"]')
    other = key_entry("nobody", nobody, "inference")
    auth.write_text(limited + other)
    flags = "--console", f"--auth-config={auth}"
    mesh = Mesh(make_models(tmp_path / "models"), tmp_path / "log", "--executors=1", *flags)
    try:
        key = {"x-api-key": viewer}
        until(lambda: _is_up(mesh), "the mesh to serve")
        with console(mesh.http, headers=key) as client:
            document = client.until(lambda each: each["models"]["keys"] and each)
            # The page itself is open; it has no data.
            assert fetch(mesh.http, "/console/static/x.js")[0].status == HTTPStatus.NOT_FOUND
            assert fetch(mesh.http, "/console/facts")[0].status == HTTPStatus.UNAUTHORIZED
            denied, _ = fetch(mesh.http, "/console/stream", headers={"x-api-key": nobody})
            assert denied.status == HTTPStatus.FORBIDDEN
            assert [each["name"] for each in document["models"]["rows"].values()] == ["scaler"]
            assert document["models"]["rows"]["scaler/1"]["may"] == []
            assert document["permissions"]["rights"] == ["console"]
            # Nowhere else does it see the other models.
            document = facts(mesh, f"?model={quote(_SCRIPT)}", **key)
            assert "details" not in document
            assert _SCRIPT not in json.dumps(document)
            assert not document["permissions"]["may_load"]
            assert fetch(mesh.http, _UNLOAD, "POST", key)[0].status == HTTPStatus.FORBIDDEN
            # A right that is withdrawn ends the stream.
            auth.write_text(other)
            with pytest.raises(EOFError):
                client.until(lambda _: False)
    finally:
        mesh.terminate()
