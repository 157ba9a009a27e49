"""A store that wants harm: bounded requests, bytes and time, and a StoreError."""

from __future__ import annotations

import gzip
import itertools
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from nereid.object_store.errors import ObjectChangedError, StoreError
from nereid.object_store.plans.listing import StoredObject
from nereid.object_store.plans.urls import parse_store_url
from nereid.object_store.store import ObjectStore
from nereid.object_store.stores import CachePlace, ModelStores
from tests.support.object_stores.s3_server import BUCKET, Reply, S3Server, s3_server

KEY = "m/1/data"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    # botocore waits between attempts.
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with s3_server() as it:
        it.put(f"models/{KEY}", b"content")
        yield it


@pytest.fixture
def store(server: S3Server) -> ObjectStore:
    return ObjectStore(parse_store_url(server.url("models")), {})


def reply_of_object(body: bytes | Iterator[bytes], stored: StoredObject, **more: str) -> Reply:
    headers = [("ETag", f'"{stored.tag}"'), *more.items()]
    return Reply(HTTPStatus.PARTIAL_CONTENT, body, "binary/octet-stream", tuple(headers))


@pytest.mark.parametrize(
    ("status", "elsewhere"),
    [(HTTPStatus.MOVED_PERMANENTLY, False), (HTTPStatus.TEMPORARY_REDIRECT, True)],
    ids=["in a circle", "to another host"],
)
def test_redirects_are_not_followed(
    server: S3Server, store: ObjectStore, status: HTTPStatus, elsewhere: bool
) -> None:
    stored = store.list_model("m").files["1/data"]
    with s3_server() as other:
        place = other if elsewhere else server
        location = f"{place.endpoint}/{BUCKET}/models/{KEY}"
        server.fail = lambda _: Reply(status, b"", headers=(("Location", location),))
        other.requests.clear()
        server.requests.clear()
        with pytest.raises(StoreError, match="the store redirects"):
            store.read(KEY, stored, 0, stored.size)
        # s3fs's own attempts.
        assert len(server.requests) <= 5
        # Where a request goes, its credentials go.
        assert other.requests == []


def test_an_object_without_end_is_read_up_to_its_size(server: S3Server, store: ObjectStore) -> None:
    stored = store.list_model("m").files["1/data"]
    sent = itertools.count()

    def without_end() -> Iterator[bytes]:
        while True:
            next(sent)
            yield b"x" * 65536

    server.fail = lambda _: reply_of_object(without_end(), stored)
    with pytest.raises(StoreError, match="sends more than it was asked for"):
        store.read(KEY, stored, 0, stored.size)
    # What the sockets hold.
    assert next(sent) < 1000


def test_an_object_that_inflates_is_read_up_to_its_size(
    server: S3Server, store: ObjectStore
) -> None:
    stored = store.list_model("m").files["1/data"]
    bomb = gzip.compress(bytes(1 << 24))
    more = {"Content-Encoding": "gzip"}
    server.fail = lambda _: reply_of_object(bomb, stored, **more)
    with pytest.raises(StoreError, match=f"received {len(bomb)} bytes of {stored.size}"):
        store.read_whole(KEY, stored)


PAGE = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>
<Prefix>models/</Prefix><KeyCount>1</KeyCount><MaxKeys>1</MaxKeys>
<IsTruncated>false</IsTruncated><NextContinuationToken>{number}</NextContinuationToken>
<Contents><Key>models/{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>
<ETag>"{number}"</ETag><Size>{size}</Size></Contents></ListBucketResult>"""


@pytest.mark.parametrize("size", [3, 1 << 50, -1])
def test_sizes_that_differ_from_the_listing(
    server: S3Server, store: ObjectStore, tmp_path: Path, size: int
) -> None:
    tag = store.list_model("m").files["1/data"].tag
    text = PAGE.format(number=tag, key=KEY, size=size)
    server.fail = lambda request: (
        Reply(HTTPStatus.OK, text.encode()) if "list-type=2" in request else None
    )
    stores = ModelStores({}, CachePlace(tmp_path, tmp_path))
    digest = store.list_model("m").digest("1")
    with pytest.raises(StoreError):
        stores.fetch(f"{store.url}/m/1", digest, threading.Event())
    assert not [each for each in tmp_path.rglob("*") if each.is_file() and each.stat().st_size > 8]


def test_a_listing_that_changes_while_it_is_fetched(
    server: S3Server, store: ObjectStore, tmp_path: Path
) -> None:
    digest = store.list_model("m").digest("1")
    numbers = itertools.count()

    def change(_: str) -> None:
        server.put(f"models/{KEY}", b"%07d" % next(numbers))

    server.fail = change
    stores = ModelStores({}, CachePlace(tmp_path, tmp_path))
    with pytest.raises(ObjectChangedError):
        stores.fetch(f"{store.url}/m/1", digest, threading.Event())
    server.fail = lambda _: None
    digest = store.list_model("m").digest("1")
    lease = stores.fetch(f"{store.url}/m/1", digest, threading.Event())
    assert (lease.path / "1/data").read_bytes() == b"%07d" % (next(numbers) - 1)
