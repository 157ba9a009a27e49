"""Control calls of two servers that respond with given documents."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from nereid_adopt.forecast.control_calls import compare_control_calls
from nereid_perf.endpoint import Endpoint
from tests.support.peers.http_server import http_server

_STATS: dict[str, Any] = {
    "model_stats": [{"name": "m", "batch_stats": [], "response_stats": {}, "inference_stats": {}}]
}


def _documents(**changes: Any) -> dict[str, Any]:
    """What a server with one model responds with, by path."""
    model = "/v2/models/m/versions/1"
    return {
        "/v2": {"name": "triton", "version": "1", "extensions": ["sequence"]},
        "/v2/repository/index": [{"name": "m", "version": "1", "state": "READY"}],
        f"{model}/ready": None,
        model: {"name": "m", "versions": ["1"], "platform": "onnxruntime_onnx"},
        f"{model}/config": {"name": "m", "max_batch_size": 8},
        f"{model}/stats": _STATS,
    } | {path.replace("MODEL", model): document for path, document in changes.items()}


@contextmanager
def _server(documents: Mapping[str, Any], status: int = 400) -> Iterator[Endpoint]:
    """Serve documents; respond to requests for others with a status."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            is_known = self.path in documents
            body = json.dumps(documents.get(self.path)).encode() if is_known else b"no such path"
            self.send_response(200 if is_known else status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            # As MLServer requires it.
            assert self.headers["Content-Type"] == "application/json"
            assert json.loads(self.rfile.read(int(self.headers["Content-Length"]))) == {}
            self.do_GET()

    with http_server(Handler) as address:
        yield Endpoint("http", address)


def _compare(old: Mapping[str, Any], new: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    with _server(old) as of_old, _server(new) as of_new:
        return compare_control_calls(of_old, of_new, threading.Event(), **options)


def _found(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(item["call"], item["difference"]) for item in document["differences"]]


def test_equal_servers_have_no_differences() -> None:
    new = _documents()
    new["/v2"] = {**new["/v2"], "version": "another"}
    assert _compare(_documents(), new) == {
        "models": 1,
        "not_asked": 0,
        "differences": [],
        "unavailable": "",
    }


def test_differences_of_each_call_are_found() -> None:
    stats = {"model_stats": [{"name": "m", "batch_stats": [{"batch_size": 1}], "more": {"a": 1}}]}
    new = _documents(
        **{
            "MODEL": {"name": "m", "versions": ["1"], "platform": "other"},
            "MODEL/config": {"name": "m", "max_batch_size": 4, "input": []},
            "MODEL/stats": stats,
        }
    )
    new["/v2"] = {"name": "nereid", "extensions": ["sequence"]}
    del new["/v2/models/m/versions/1/ready"]
    assert _found(_compare(_documents(), new)) == [
        ("server metadata", 'name: "triton" -> "nereid"'),
        ("ready", "200 -> 400"),
        ("metadata", 'platform: "onnxruntime_onnx" -> "other"'),
        ("configuration", "max_batch_size: 8 -> 4"),
        ("statistics", "only the old server has .model_stats.inference_stats"),
        ("statistics", "only the old server has .model_stats.response_stats"),
        ("statistics", "only the mesh has .model_stats.more"),
    ]


def test_statistics_without_batches_or_responses_say_nothing_about_them() -> None:
    def stats(number: str) -> Any:
        response = {number: {"success": {"count": 1}}}
        batch = [{"batch_size": 1, "compute": {"ns": 1}}]
        model = {**_STATS["model_stats"][0], "response_stats": response, "batch_stats": batch}
        return {"model_stats": [model]}

    cases = (_STATS, stats("0"), stats("7"))
    for old in cases:
        for new in cases:
            changes = [{"MODEL/stats": each} for each in (old, new)]
            assert _found(_compare(*(_documents(**change) for change in changes))) == []


def test_models_of_one_server_are_named_with_the_reason() -> None:
    def index(*entries: tuple[str, str]) -> dict[str, Any]:
        names = [{"name": name, "version": "1", "state": state} for name, state in entries]
        names[-1]["reason"] = "does not implement `execute` method"
        return _documents(**{"/v2/repository/index": names})

    old = index(("a", "READY"), ("m", "READY"), ("p", "READY"), ("z", "UNAVAILABLE"))
    new = index(("b", "READY"), ("m", "READY"), ("p", "UNAVAILABLE"))
    document = _compare(old, new)
    assert _found(document) == [
        ("ready", "only the old server serves it: the mesh has no such version"),
        ("ready", "only the mesh serves it: the old server has no such version"),
        ("ready", "only the old server serves it: does not implement `execute` method"),
    ]
    known = [item["known"] for item in document["differences"]]
    assert known == ["", "", "Python models that cannot work are refused at load"]


def test_what_the_time_does_not_allow_is_counted() -> None:
    assert _compare(_documents(), _documents(), limit_s=-1)["not_asked"] == 1


def test_a_server_that_cannot_be_asked_is_named() -> None:
    with _server(_documents()) as old:
        nobody = Endpoint("http", "127.0.0.1:1")
        document = compare_control_calls(old, nobody, threading.Event())
    assert document["unavailable"].startswith("control calls were not compared: ")
    # Its index is of another form.
    assert _compare(_documents(), _documents(**{"/v2/repository/index": [1]}))["unavailable"]


def test_members_of_configurations_come_in_any_order() -> None:
    steps = [{"model_name": "add", "map": {"A": "X", "B": "W"}}, {"model_name": "add", "map": {}}]
    turned = [{"map": dict(reversed(step["map"].items())), "model_name": "add"} for step in steps]  # type: ignore[attr-defined]
    new = _documents(**{"MODEL/config": {"name": "m", "step": turned}})
    assert _found(_compare(_documents(**{"MODEL/config": {"name": "m", "step": steps}}), new)) == []


@pytest.mark.parametrize("has_index", [True, False])
def test_models_of_other_servers_have_no_versions(has_index: bool) -> None:
    """MLServer's index may lack them, KServe's own server has names only."""
    old = {
        "/v2": _documents()["/v2"],
        "/v2/models/m/ready": {"ready": True},
        "/v2/models/m": {"name": "m", "platform": ""},
        "/v2/repository/index": [{"name": "m", "version": "", "state": "READY"}],
        "/v2/models": {"models": ["m"]},
    }
    if not has_index:
        del old["/v2/repository/index"]
    new = _documents()
    for path in ("", "/ready", "/config", "/stats"):
        new[f"/v2/models/m{path}"] = new[f"/v2/models/m/versions/1{path}"]
    with _server(old, 404) as of_old, _server(new) as of_new:
        document = compare_control_calls(of_old, of_new, threading.Event())
    # Configurations and statistics are extensions of Triton's.
    assert _found(document) == [
        ("metadata", 'platform: "" -> "onnxruntime_onnx"'),
        ("metadata", 'versions: null -> ["1"]'),
    ]
    assert (document["models"], document["unavailable"]) == (1, "")


def test_a_server_without_any_list_of_models_is_named() -> None:
    old = {"/v2": _documents()["/v2"]}
    with _server(old, 404) as of_old, _server(_documents()) as of_new:
        document = compare_control_calls(of_old, of_new, threading.Event())
    assert "/v2/repository/index responds with 404" in document["unavailable"]
