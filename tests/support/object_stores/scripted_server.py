"""Servers of each kind of store that send what a test says, over plain HTTP."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from tests.support.object_stores.s3_server import ENVIRON, Reply

_S3_PAGE = """<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>
<Prefix>models/</Prefix><KeyCount>1</KeyCount><MaxKeys>1</MaxKeys>
<IsTruncated>{more}</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>
<Contents><Key>models/{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>
<ETag>"1"</ETag><Size>{size}</Size></Contents></ListBucketResult>"""
_AZURE_PAGE = """<?xml version="1.0" encoding="utf-8"?>
<EnumerationResults ServiceEndpoint="http://127.0.0.1/" ContainerName="bucket">
<Prefix>models/</Prefix><Blobs><Blob><Name>models/{key}</Name><Properties>
<Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified><Etag>1</Etag>
<Content-Length>{size}</Content-Length><BlobType>BlockBlob</BlobType></Properties></Blob></Blobs>
<NextMarker>{token}</NextMarker></EnumerationResults>"""


class Kind(NamedTuple):
    """A kind of store. token: the parameter that names a listing's page."""

    scheme: str
    module: str
    token: str

    def url(self, port: int) -> str:
        places = {"s3": f"http://127.0.0.1:{port}/bucket", "gs": "bucket", "as": "account/bucket"}
        return f"{self.scheme}://{places[self.scheme]}/models"

    def environ(self, port: int) -> dict[str, str]:
        """Variables that lead the store's library to a port of this host."""
        endpoint = f"http://127.0.0.1:{port}"
        connection = (
            "DefaultEndpointsProtocol=http;AccountName=account;AccountKey=a2V5;"
            f"BlobEndpoint={endpoint}/account;"
        )
        return {
            "s3": {**ENVIRON, "AWS_MAX_ATTEMPTS": "1"},
            "gs": {"STORAGE_EMULATOR_HOST": endpoint},
            "as": {"AZURE_STORAGE_CONNECTION_STRING": connection},
        }[self.scheme]

    def is_listing(self, request: str) -> bool:
        return any(part in request for part in ("list-type=2", "comp=list", "/o?", "/o/?"))

    def page(self, key: str, size: int, token: str = "") -> Reply:
        """A page with one object. token: of the next page."""
        if self.scheme == "gs":
            item = {"name": f"models/{key}", "size": str(size), "generation": "1"}
            document = {"kind": "storage#objects", "items": [item]}
            if token:
                document["nextPageToken"] = token
            return Reply(HTTPStatus.OK, json.dumps(document).encode(), "application/json")
        form = _S3_PAGE if self.scheme == "s3" else _AZURE_PAGE
        text = form.format(key=key, size=size, token=token, more="true" if token else "false")
        return Reply(HTTPStatus.OK, text.encode())

    def contents(self, body: bytes | Iterator[bytes], size: int) -> Reply:
        """An object's bytes, of a size that may be another one's."""
        headers = (
            ("ETag", '"1"'),
            ("Content-Range", f"bytes 0-{size - 1}/{size}"),
            ("x-ms-blob-type", "BlockBlob"),
            ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
        )
        return Reply(HTTPStatus.PARTIAL_CONTENT, body, "application/octet-stream", headers)


KINDS = (
    Kind("s3", "s3fs", "continuation-token"),
    Kind("gs", "gcsfs", "pageToken"),
    Kind("as", "adlfs", "marker"),
)


class ScriptedServer:
    """respond: what a request (method, path and query) gets. requests: all so far."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.respond: Callable[[str], Reply] = lambda _: Reply(HTTPStatus.NOT_FOUND, b"")
        # Body bytes that were sent.
        self.sent = 0
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                request = f"{self.command} {self.path}"
                scripted.requests.append(request)
                reply = scripted.respond(request)
                self.send_response(reply.status)
                self.send_header("Content-Type", reply.type)
                for header in reply.headers:
                    self.send_header(*header)
                self.send_header("Connection", "close")
                pieces = reply.body
                if isinstance(pieces, bytes):
                    self.send_header("Content-Length", str(len(pieces)))
                    pieces = [pieces]
                self.end_headers()
                self.close_connection = True
                if self.command == "HEAD":
                    return
                with contextlib.suppress(OSError):
                    for piece in pieces:
                        self.wfile.write(piece)
                        scripted.sent += len(piece)

            def do_HEAD(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextlib.contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    try:
        yield server
    finally:
        server.close()
