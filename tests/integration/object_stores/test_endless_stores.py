"""Stores of each kind that do not end: bounded requests and bytes, and a StoreError."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

import pytest

from nereid.object_store.errors import StoreError
from nereid.object_store.plans.urls import parse_store_url
from nereid.object_store.store import ObjectStore
from tests.support.object_stores.s3_server import Reply
from tests.support.object_stores.scripted_server import (
    KINDS,
    Kind,
    ScriptedServer,
    scripted_server,
)

KEY = "m/1/data"
CONTENT = b"content"
SIZE = len(CONTENT)
MISSING = Reply(HTTPStatus.NOT_FOUND, b"")


@pytest.fixture(params=KINDS, ids=[kind.scheme for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    pytest.importorskip(kind.module, reason=f"needs {kind.module}")
    return kind


@pytest.fixture
def server(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    with scripted_server() as it:
        for name, text in kind.environ(it.port).items():
            monkeypatch.setenv(name, text)
        yield it


@pytest.fixture
def store(kind: Kind, server: ScriptedServer) -> ObjectStore:
    return ObjectStore(parse_store_url(kind.url(server.port)), {})


def listed(kind: Kind, store: ObjectStore, server: ScriptedServer) -> None:
    """Serve and read a listing of three pages."""

    def respond(request: str) -> Reply:
        if not kind.is_listing(request):
            return MISSING
        query = parse_qs(urlsplit(request).query)
        number = int(query.get(kind.token, ["0"])[0])
        return kind.page(f"m/{number}/data", SIZE, str(number + 1) if number < 2 else "")

    server.respond = respond
    files = store.list_model("m").files
    assert sorted(files) == ["0/data", "1/data", "2/data"]


def without_end(start: bytes = b"") -> Iterator[bytes]:
    yield start
    while True:
        yield b" " * 65536


def test_a_listing_that_repeats_a_page(
    kind: Kind, server: ScriptedServer, store: ObjectStore
) -> None:
    listed(kind, store, server)
    server.requests.clear()
    page = kind.page(KEY, SIZE, "1")
    server.respond = lambda request: page if kind.is_listing(request) else MISSING
    with pytest.raises(StoreError, match="the store's listing does not end: it repeats a page"):
        store.list_model("m")
    assert len(server.requests) < 20


def test_a_page_without_end(kind: Kind, server: ScriptedServer, store: ObjectStore) -> None:
    listed(kind, store, server)
    server.sent = 0
    page = kind.page(KEY, SIZE)
    assert isinstance(page.body, bytes)
    endless = page._replace(body=without_end(page.body))
    server.respond = lambda request: endless if kind.is_listing(request) else MISSING
    with pytest.raises(StoreError, match="sends more than it was asked for"):
        store.list_model("m")
    # Also with attempts of the library.
    assert server.sent < 300 << 20


def test_a_page_that_inflates(kind: Kind, server: ScriptedServer, store: ObjectStore) -> None:
    page = kind.page(KEY, SIZE)
    assert isinstance(page.body, bytes)
    bomb = gzip.compress(page.body + bytes(1 << 27))
    server.respond = lambda _: page._replace(body=bomb, headers=(("Content-Encoding", "gzip"),))
    with pytest.raises(StoreError):
        store.list_model("m")


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in a circle", "to another host"])
def test_redirects_are_not_followed(
    kind: Kind, server: ScriptedServer, store: ObjectStore, elsewhere: bool
) -> None:
    listed(kind, store, server)
    stored = store.list_model("m").files["1/data"]
    with scripted_server() as other:
        port = other.port if elsewhere else server.port
        location = ("Location", f"http://127.0.0.1:{port}/bucket/models/{KEY}")
        # A header that S3's client knows.
        region = ("x-amz-bucket-region", "eu-west-1")
        headers = (location,) if kind.scheme == "s3" else (location, region)
        server.respond = lambda _: Reply(HTTPStatus.TEMPORARY_REDIRECT, b"", headers=headers)
        server.requests.clear()
        for read in (lambda: store.read(KEY, stored, 0, SIZE), lambda: store.list_model("m")):
            with pytest.raises(StoreError, match=r"the store redirects \(307\)"):
                read()
        assert len(server.requests) <= 10
        assert other.requests == []


def test_an_object_without_end(kind: Kind, server: ScriptedServer, store: ObjectStore) -> None:
    listed(kind, store, server)
    stored = store.list_model("m").files["1/data"]
    server.respond = lambda _: kind.contents(CONTENT, SIZE)
    assert store.read_whole(KEY, stored) == CONTENT
    server.sent = 0
    server.respond = lambda _: kind.contents(without_end(), SIZE)
    with pytest.raises(StoreError, match="sends more than it was asked for"):
        store.read_whole(KEY, stored)
    assert server.sent < 64 << 20


@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1])
def test_an_object_of_another_size(
    kind: Kind, server: ScriptedServer, store: ObjectStore, size: int
) -> None:
    listed(kind, store, server)
    stored = store.list_model("m").files["1/data"]
    server.respond = lambda _: kind.contents(bytes(size), SIZE)
    with pytest.raises(StoreError):
        store.read_whole(KEY, stored)


def test_an_object_that_inflates(kind: Kind, server: ScriptedServer, store: ObjectStore) -> None:
    listed(kind, store, server)
    stored = store.list_model("m").files["1/data"]
    reply = kind.contents(gzip.compress(bytes(1 << 27)), SIZE)
    headers = (*reply.headers, ("Content-Encoding", "gzip"))
    server.respond = lambda _: reply._replace(headers=headers)
    with pytest.raises(StoreError):
        store.read_whole(KEY, stored)
