"""JSON of servers that are not what they should be, and what tools make of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from nereid.core.files.json_document import (
    MAX_BYTES,
    error_text,
    parse_document,
    read_document,
    read_document_lines,
)
from nereid_explain import command
from tests.support.peers.http_server import http_server

DEEP = b"[" * 100_000
LONG = b"[" + b"[]," * (MAX_BYTES // 3) + b"[]]"


@contextmanager
def server_of(body: bytes) -> Iterator[str]:
    """The address of a server that responds with this to whatever it is asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.do_POST()

    with http_server(Handler) as address:
        yield address


@pytest.mark.parametrize("body", [DEEP, LONG, b"{", b"\xff"])
def test_what_is_no_document(body: bytes) -> None:
    with pytest.raises(ValueError):
        parse_document(body)
    assert len(error_text(body)) <= 200


def test_what_is_one() -> None:
    assert parse_document(b'{"error": "why"}') == {"error": "why"}
    assert error_text(b'{"error": "why"}') == "why"


@pytest.mark.parametrize("body", [DEEP, LONG, b"5", b"[5]"])
def test_a_tool_says_what_is_wrong(body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with server_of(body) as address:
        assert command.main(["model", f"--url={address}"]) == 2
    assert "responds with" in capsys.readouterr().err


def test_files_are_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "document"
    path.write_text("{}\n[]", encoding="utf-8-sig")
    assert read_document(path) == "{}\n[]"
    path.write_text("{}\n[]")
    assert read_document(path) == "{}\n[]"
    assert [*read_document_lines(path)] == [b"{}\n", b"[]"]
    with pytest.raises(ValueError, match="more than 3 bytes"):
        read_document(path, 3)
    for read in (read_document, lambda endless: [*read_document_lines(endless)]):
        with pytest.raises(ValueError, match=f"more than {MAX_BYTES} bytes"):
            read(Path("/dev/zero"))
