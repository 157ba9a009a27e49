"""Listings and downloads of each kind of store, by its library, from a server of its kind."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nereid.object_store.errors import (
    AccessRefusedError,
    MissingObjectError,
    ObjectChangedError,
    StoreError,
)
from nereid.object_store.plans.urls import parse_store_url
from nereid.object_store.store import ObjectStore
from nereid.object_store.stores import CachePlace, ModelStores
from tests.support.mesh.mesh import free_port, until
from tests.support.object_stores.s3_server import (
    BROKEN,
    PAGE,
    REFUSED,
    error_reply,
    s3_server,
)

OBJECTS = {
    "models/m/config.pbtxt": b'backend: "identity"',
    "models/m/1/data": bytes(range(256)) * 100,
    "models/m/labels.txt": b"cat",
    "elsewhere/x": b"",
}
AZURE_ACCOUNT = "devstoreaccount1"
# The emulators' own, which everybody knows.
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


class Server(NamedTuple):
    """url: of a bucket. put: an object's content, by its key."""

    url: str
    put: Callable[[str, bytes], Any]


def s3() -> Iterator[Server]:
    with s3_server() as server:
        yield Server(f"s3://{server.endpoint}/bucket", server.put)


def gcs() -> Iterator[Server]:
    emulator = pytest.importorskip(
        "gcp_storage_emulator.server", reason="needs gcp-storage-emulator"
    )
    gcsfs = pytest.importorskip("gcsfs.core", reason="needs gcsfs")
    port = free_port()
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    server.start()
    os.environ["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:{port}"
    try:
        files = gcsfs.GCSFileSystem(token="anon", skip_instance_cache=True)
        yield Server("gs://bucket", lambda key, content: files.pipe_file(f"bucket/{key}", content))
    finally:
        del os.environ["STORAGE_EMULATOR_HOST"]
        server.stop()


def azure() -> Iterator[Server]:
    pytest.importorskip("adlfs", reason="needs adlfs")
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("needs azurite-blob (npm install azurite)")
    from azure.storage.blob import BlobServiceClient  # noqa: PLC0415

    port = free_port()
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};"
        f"BlobEndpoint=http://127.0.0.1:{port}/{AZURE_ACCOUNT};"
    )
    flags = (f"--blobPort={port}", "--inMemoryPersistence", "--skipApiVersionCheck", "--silent")
    process = subprocess.Popen([program, *flags], stdout=subprocess.DEVNULL)
    os.environ["AZURE_STORAGE_CONNECTION_STRING"] = connection
    try:
        service = BlobServiceClient.from_connection_string(connection, retry_total=0)

        def listens() -> bool:
            try:
                service.create_container("bucket")
            except OSError:
                return False
            except Exception as error:
                if "ServiceRequestError" not in type(error).__name__:
                    raise
                return False
            return True

        until(listens, "azurite to listen")

        def put(key: str, content: bytes) -> None:
            service.get_blob_client("bucket", key).upload_blob(content, overwrite=True)

        yield Server(f"as://{AZURE_ACCOUNT}/bucket", put)
    finally:
        del os.environ["AZURE_STORAGE_CONNECTION_STRING"]
        process.terminate()
        process.wait()


@pytest.fixture(scope="module", params=[s3, gcs, azure], ids=["s3", "gs", "as"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    yield from request.param()


@pytest.fixture
def store(server: Server) -> ObjectStore:
    for key, content in OBJECTS.items():
        server.put(key, content)
    return ObjectStore(parse_store_url(f"{server.url}/models"), {})


def test_listings(store: ObjectStore) -> None:
    assert store.model_names() == ["m"]
    (listing,) = store.list_models().values()
    assert listing == store.list_model("m")
    assert {path: stored.size for path, stored in listing.files.items()} == {
        "config.pbtxt": 19,
        "1/data": 25600,
        "labels.txt": 3,
    }
    assert all(stored.md5 for stored in listing.files.values())
    assert store.list_model("none").files == {}


def test_a_version_is_fetched(store: ObjectStore, tmp_path: Path) -> None:
    digest = store.list_model("m").digest("1")
    stores = ModelStores({}, CachePlace(tmp_path, tmp_path))
    lease = stores.fetch(f"{store.url}/m/1", digest, threading.Event())
    assert (lease.path / "1/data").read_bytes() == OBJECTS["models/m/1/data"]
    assert (lease.path / "labels.txt").read_bytes() == b"cat"


def test_a_changed_object_is_another(store: ObjectStore, server: Server, tmp_path: Path) -> None:
    listing = store.list_model("m")
    server.put("models/m/labels.txt", b"cow")
    assert store.list_model("m").digest("1") != listing.digest("1")
    if server.url.startswith("gs:"):
        return  # the emulator knows no generations
    with pytest.raises(ObjectChangedError, match="has changed since it was listed"):
        store.read("m/labels.txt", listing.files["labels.txt"], 0, 3)


@pytest.mark.parametrize("where", ["bucket/none", "nobucket/models"])
def test_what_is_not_there_is_no_empty_repository(
    store: ObjectStore, server: Server, where: str
) -> None:
    missing = ObjectStore(parse_store_url(server.url.rpartition("/")[0] + f"/{where}"), {})
    with pytest.raises(MissingObjectError, match="no such object or bucket"):
        missing.list_models()
    with pytest.raises(MissingObjectError, match="no such object or bucket"):
        missing.model_names()


def test_failures_of_an_s3_server(tmp_path: Path) -> None:
    with s3_server() as server:
        server.put("models/m/1/data", b"x")
        store = ObjectStore(parse_store_url(server.url("models")), {})
        stored = store.list_model("m").files["1/data"]
        server.fail = lambda _: REFUSED
        with pytest.raises(AccessRefusedError, match="access was refused: Access Denied"):
            store.read("m/1/data", stored, 0, 1)
        with pytest.raises(AccessRefusedError, match="access was refused"):
            store.list_models()
        server.fail = lambda _: BROKEN
        with pytest.raises(StoreError, match="out of order"):
            store.list_models()
        server.fail = lambda _: PAGE
        for list_ in (store.list_models, store.model_names):
            with pytest.raises(StoreError, match="the response is no listing"):
                list_()
        server.fail = lambda _: error_reply(HTTPStatus.OK, "InternalError", "We failed.")
        with pytest.raises(StoreError, match="the response is no object: it has no ETag"):
            store.read("m/1/data", stored, 0, 1)
        server.fail = lambda _: None
        assert store.read_whole("m/1/data", stored) == b"x"


def test_an_s3_server_without_entity_tags(tmp_path: Path) -> None:
    with s3_server() as server:
        server.omitted = "ETag"
        server.put("models/m/1/data", b"old")
        store = ObjectStore(parse_store_url(server.url("models")), {})
        before = store.list_model("m")
        stored = before.files["1/data"]
        assert store.read_whole("m/1/data", stored) == b"old"

        def is_noticed() -> bool:
            # Dates are in seconds.
            server.put("models/m/1/data", b"new")
            return store.list_model("m").digest("1") != before.digest("1")

        until(is_noticed, "another second")
        with pytest.raises(ObjectChangedError, match="has changed since it was listed"):
            store.read("m/1/data", stored, 0, 3)
