"""`nereid adopt --check` of servers that lack Triton's extensions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from nereid_adopt.forecast.check import check_server
from tests.support.peers.http_server import http_server

_ABOUT = {"name": "other", "version": "1", "extensions": []}
# MLServer's index, and the list of KServe's own server.
_INDEX = {"/v2/repository/index": [{"name": "m", "version": "v0.1", "state": "READY"}]}
_NAMES = {"/v2/models": {"models": ["m"]}}


@contextmanager
def serving(documents: dict[str, object]) -> Iterator[str]:
    """Run a server with its metrics on the port of HTTP; return its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = {"/v2": _ABOUT, **documents}.get(self.path)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(b"# HELP x" if self.path == "/metrics" else json.dumps(found).encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert (self.headers["Content-Type"], body) == ("application/json", b"{}")
            self.do_GET()

    with http_server(Handler) as address:
        yield f"http://{address}"


@pytest.mark.parametrize(
    ("documents", "title"), [(_INDEX, "m version v0.1"), (_NAMES, "m")], ids=["mlserver", "kserve"]
)
def test_models_without_a_configuration_need_one(
    documents: dict[str, object], title: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving({**documents, "/metrics": ""}) as url:
        assert check_server(url, "", [], as_json=False) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "other 1: 1 models"
    assert lines[1] == f"{title}: would not be served"
    assert "a mesh needs a model repository with its configuration: http://" in lines[2]
    assert "responds with 404" in lines[2]


def test_a_server_without_any_list_of_models_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"/metrics": ""}) as url:
        assert check_server(url, "", [], as_json=False) == 2
    assert f"{url}/v2/repository/index responds with 404" in capsys.readouterr().err
