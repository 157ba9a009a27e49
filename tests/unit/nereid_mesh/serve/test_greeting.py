"""What `nereid serve` prints of models whose names and texts come from clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

from nereid_mesh.serve.greeting import greet

FORGED = "2026-01-01 00:00:00,000 ERROR nereid: all is lost"
READY = "it's $(one)\nmodel"
LONG_RESPONSE = "m"


class Endpoint(BaseHTTPRequestHandler):
    """The part of KServe v2 that the greeting asks."""

    def do_GET(self) -> None:
        name = unquote(self.path.split("/")[3])
        if name not in (READY, LONG_RESPONSE):
            self.send_error(HTTPStatus.NOT_FOUND)
        elif self.path.endswith("/config"):
            self._send({"max_batch_size": 4})
        else:
            # What is read best is not what is typed fastest.
            elements, inputs = (-1, 1) if name == LONG_RESPONSE else (99, 2)
            self._send(
                {
                    "inputs": [{"name": "it's", "shape": [-1, inputs], "datatype": "FP32"}],
                    "outputs": [{"name": "y", "shape": [-1, elements], "datatype": "FP32"}],
                }
            )

    def do_POST(self) -> None:
        self._send(
            [
                {"name": f"x\n{FORGED}", "version": f"1\n{FORGED}", "state": "UNAVAILABLE"},
                {"name": "y", "version": "1", "state": "UNAVAILABLE", "reason": f"no\r{FORGED}"},
                {"name": READY, "version": "1", "state": "READY"},
                {"name": LONG_RESPONSE, "version": "1", "state": "READY"},
            ]
        )

    def _send(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_names_and_reasons_forge_no_line(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await greet({"http": address})
    text = capsys.readouterr().out
    assert text.count(FORGED) == 3
    assert not [line for line in text.splitlines() if line.startswith(FORGED)]


async def test_the_command_quotes_what_a_shell_would_read(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await greet({"http": address})
    command = capsys.readouterr().out.splitlines()[-1].strip()
    assert command.startswith(
        f"curl http://{address}/v2/models/it%27s%20%24%28one%29%0Amodel/infer"
    )
    assert """'{"inputs":[{"name":"it'"'"'s",""" in command
