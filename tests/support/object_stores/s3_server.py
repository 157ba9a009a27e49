"""moto's S3 server with a bucket, and failures between it and its clients.

Needs the packages moto[s3], flask, flask-cors and s3fs; a test without them is skipped.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import pytest

BUCKET = "bucket"
ENVIRON = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class Reply(NamedTuple):
    """A response that is not the server's. body: its parts, if they are to be sent one by one."""

    status: HTTPStatus
    body: bytes | Iterable[bytes]
    type: str = "application/xml"
    headers: tuple[tuple[str, str], ...] = ()


def error_reply(status: HTTPStatus, code: str, message: str) -> Reply:
    """An error as S3 says it; also with a status of success."""
    text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Reply(status, f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode())


REFUSED = error_reply(HTTPStatus.FORBIDDEN, "AccessDenied", "Access Denied")
BROKEN = error_reply(HTTPStatus.NOT_IMPLEMENTED, "NotImplemented", "out of order")
# A proxy's.
PAGE = Reply(HTTPStatus.OK, b"<html><body>Down for maintenance</body></html>", "text/html")


class S3Server:
    """requests: method, path and query of all but the test's own. fail: given each of them, says
    how it goes: None, a Reply in place of the server's, or how many bytes are sent of the response.
    omitted: what objects have not, in headers and listings.
    """

    def __init__(self) -> None:
        server = pytest.importorskip("moto.server", reason="needs moto[s3], flask, flask-cors")
        pytest.importorskip("s3fs", reason="needs s3fs")
        boto3 = pytest.importorskip("boto3", reason="needs boto3")
        from werkzeug.serving import make_server  # noqa: PLC0415

        self._application = server.DomainDispatcherApplication(server.create_backend_app)
        self.requests: list[str] = []
        self.fail: Callable[[str], Reply | int | None] = lambda _: None
        self.omitted = ""
        self._server = make_server("127.0.0.1", 0, self._respond, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
        self.client.meta.events.register("before-sign.s3", _mark)
        # moto keeps the objects of earlier servers of this process.
        urllib.request.urlopen(f"{self.endpoint}/moto-api/reset", data=b"").close()
        self.requests.clear()
        self.client.create_bucket(Bucket=BUCKET)

    def url(self, prefix: str) -> str:
        return f"s3://{self.endpoint}/{BUCKET}/{prefix}"

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def upload(self, directory: Path, prefix: str) -> None:
        """All files of a directory."""
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(directory)}", path.read_bytes())

    def reads(self) -> list[str]:
        """The requests that are no listings."""
        return [each for each in self.requests if "list-type=2" not in each]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _respond(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{environ['QUERY_STRING']}"
        how: Reply | int | None = None
        if "HTTP_X_TEST" not in environ:
            self.requests.append(request)
            how = self.fail(request)
        if isinstance(how, Reply):
            headers = [("Content-Type", how.type), *how.headers]
            start_response(f"{how.status:d} {how.status.phrase}", headers)
            return [how.body] if isinstance(how.body, bytes) else how.body

        def start_without(status: str, headers: list[tuple[str, str]], *more: object) -> object:
            kept = [each for each in headers if each[0].lower() not in omitted]
            return start_response(status, kept, *more)

        # The body is shorter than the server says.
        omitted = {self.omitted.lower(), "content-length"} if self.omitted else set()
        content = b"".join(self._application(environ, start_without))
        if self.omitted:
            tag = self.omitted.encode()
            content = re.sub(rb"<%b>.*?</%b>" % (tag, tag), b"", content)
        if isinstance(how, int) and len(content) > how:
            return [content[:how]]
        return [content]


def _mark(request: Any, **_: object) -> None:
    request.headers["X-Test"] = "1"


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server, with an environment in which processes have credentials for it."""
    server = S3Server()
    former = {name: os.environ.get(name) for name in ENVIRON}
    os.environ.update(ENVIRON)
    try:
        yield server
    finally:
        server.close()
        for name, text in former.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text
