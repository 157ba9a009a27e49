"""Serves the console's page with a document that the test says: for states that a mesh is hard to
bring into. Its headers are the gateway's.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from nereid_gateway.extras.console.static_files import INDEX, package_files, read_files

_SAMPLE = Path(__file__).with_name("sample.json")
_JSON = MappingProxyType({"content-type": "application/json"})


def sample() -> dict[str, Any]:
    """A document that has everything."""
    document: dict[str, Any] = json.loads(_SAMPLE.read_text())
    return document


class FactsServer:
    """document: what is streamed; publish() sends what it has become."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._files = read_files(package_files())
        # Response instead of the stream: status and text.
        self.refusal: tuple[int, str] | None = None
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self._changed = threading.Condition()
        self._version = 0
        self._ended = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.respond(self)

            def do_POST(self) -> None:
                outer.respond(self)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.origin = f"http://127.0.0.1:{self.server.server_port}"

    def publish(self) -> None:
        """Send the document, as it is now, to all who listen."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def drop(self) -> None:
        """End all streams."""
        with self._changed:
            self._version = -1
            self._changed.notify_all()

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        headers = {name.lower(): each for name, each in handler.headers.items()}
        self.requests.append((handler.command, handler.path, headers))
        name = parts.path.removeprefix("/console/static/")
        if file := self._files.get(INDEX if parts.path == "/console" else name):
            lines = file.lines.decode().splitlines()
            own = dict(each.split(": ", 1) for each in lines)
            self._send(handler, 200, file.body, {**own, "content-type": file.content_type.decode()})
        elif parts.path == "/console/stream":
            self._stream(handler, {key: values[0] for key, values in parse_qs(parts.query).items()})
        elif parts.path == "/v2/nereid/timeline":
            self._send(handler, 200, b"timeline", {"content-type": "application/octet-stream"})
        elif parts.path.startswith("/v2/"):
            self._send(handler, 200, self.infer(body))
        else:
            self._send(handler, 404, b'{"error": "not found"}')

    def infer(self, body: bytes) -> bytes:
        """Each input comes back as an output."""
        request = json.loads(body)
        return json.dumps({"model_name": "echo", "outputs": request.get("inputs", [])}).encode()

    def view(self, query: dict[str, str]) -> dict[str, Any]:
        """The document as the gateway pages it."""
        document = {**self.document}
        models = document["models"]
        keys: list[str] = models["keys"]
        offset, limit = int(query.get("offset", 0)), int(query.get("limit", 50))
        if model := query.get("model"):
            keys = [key for key in keys if models["rows"][key]["name"] == model]
        else:
            document.pop("details", None)
            wanted = query.get("query", "")
            keys = [key for key in keys if wanted in models["rows"][key]["name"]]
        page = keys[offset : offset + limit]
        document["models"] = {
            **models,
            "query": query.get("query", ""),
            "offset": offset,
            "limit": limit,
            "matched": len(keys),
            "keys": page,
            "rows": {key: models["rows"][key] for key in page},
        }
        return document

    def _send(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        headers: Mapping[str, str] = _JSON,
    ) -> None:
        handler.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    def _stream(self, handler: BaseHTTPRequestHandler, query: dict[str, str]) -> None:
        if self.refusal is not None:
            status, text = self.refusal
            self._send(handler, status, json.dumps({"error": text}).encode())
            return
        handler.close_connection = True
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("connection", "close")
        handler.end_headers()
        with contextlib.suppress(OSError), self._changed:
            self._version = max(self._version, 0)
            while not self._ended and (version := self._version) >= 0:
                data = json.dumps(self.view(query))
                handler.wfile.write(f"event: snapshot\ndata: {data}\n\n".encode())
                handler.wfile.flush()
                self._changed.wait_for(lambda: self._version != version)

    @classmethod
    @contextlib.contextmanager
    def running(cls, document: dict[str, Any] | None = None) -> Iterator[FactsServer]:
        """Serve the sample if no document is given."""
        site = cls(sample() if document is None else document)
        thread = threading.Thread(target=site.server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield site
        finally:
            site._ended = True
            site.publish()
            site.server.shutdown()
            site.server.server_close()
            thread.join()
