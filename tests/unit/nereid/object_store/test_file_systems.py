"""What stores' libraries say of objects and of errors, in our words."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from nereid.object_store.errors import (
    AccessRefusedError,
    MissingObjectError,
    ObjectChangedError,
    StoreError,
)
from nereid.object_store.file_systems import (
    AzureFiles,
    GcsFiles,
    S3Files,
    StoreFiles,
    missing_package,
    open_files,
    store_error,
)
from nereid.object_store.plans.listing import StoredObject
from nereid.object_store.plans.urls import parse_store_url
from nereid.object_store.store import ObjectStore

MD5 = "9e107d9d372bb6826bd81d3542a419d6"


class Refusal(Exception):
    def __init__(self, **fields: int) -> None:
        super().__init__("text\nmore")
        self.__dict__.update(fields)


NoCredentialsError = type("NoCredentialsError", (Exception,), {})
ResourceModifiedError = type("ResourceModifiedError", (Exception,), {})


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (PermissionError("Access Denied"), AccessRefusedError, "u: access was refused: Access"),
        (NoCredentialsError(), AccessRefusedError, "u: access was refused: NoCredentialsError"),
        (Refusal(code=403), AccessRefusedError, "u: access was refused: text"),
        (Refusal(status_code=401), AccessRefusedError, "u: access was refused: text"),
        (Refusal(status=500), StoreError, "u: Refusal: text"),
        (FileNotFoundError("x"), MissingObjectError, "u: there is no such object"),
        (ResourceModifiedError(), ObjectChangedError, "u has changed"),
        (TimeoutError(), StoreError, "u: TimeoutError: no response in time"),
        (StoreError("ours"), StoreError, "ours"),
    ],
    ids=lambda each: getattr(each, "__name__", type(each).__name__),
)
def test_errors(raised: Exception, kind: type[StoreError], text: str) -> None:
    error = store_error("u", raised)
    assert type(error) is kind
    assert str(error).startswith(text)
    assert error.strerror == error.text
    assert "more" not in error.text


@pytest.mark.parametrize(
    ("files", "info", "stored"),
    [
        (S3Files, {"name": "b/k", "size": 3, "ETag": f'"{MD5}"'}, (3, MD5, MD5)),
        (S3Files, {"name": "b/k", "size": 3, "ETag": f'"{MD5}-2"'}, (3, f"{MD5}-2", "")),
        (S3Files, {"name": "b--x-s3/k", "size": 3, "ETag": MD5}, (3, MD5, "")),
        (
            GcsFiles,
            {"name": "b/k", "size": "3", "generation": "12", "md5Hash": "nhB9nTcrtoJr2B01QqQZ1g=="},
            (3, "12", MD5),
        ),
        (GcsFiles, {"name": "b/k", "size": 3, "generation": "12"}, (3, "12", "")),
        (
            AzureFiles,
            {
                "size": 3,
                "etag": '"0x1"',
                "content_settings": {"content_md5": bytearray.fromhex(MD5)},
            },
            (3, '"0x1"', MD5),
        ),
        (AzureFiles, {"size": 3, "etag": '"0x1"', "content_settings": {}}, (3, '"0x1"', "")),
        (
            S3Files,
            {"name": "b/k", "size": 3, "LastModified": datetime(1970, 1, 1, 0, 1, tzinfo=UTC)},
            (3, "date 60", ""),
        ),
        (
            GcsFiles,
            {"name": "b/k", "size": 3, "md5Hash": "nhB9nTcrtoJr2B01QqQZ1g=="},
            (3, f"md5 {MD5}", MD5),
        ),
        (GcsFiles, {"name": "b/k", "size": 3, "updated": "1970"}, (3, "date 1970", "")),
        (AzureFiles, {"size": 3, "etag": None, "last_modified": "1970"}, (3, "date 1970", "")),
    ],
    ids=[
        *("s3", "s3-parts", "s3-directory", "gs", "gs-composed", "as", "as-unknown"),
        *("s3-date", "gs-md5", "gs-date", "as-date"),
    ],
)
def test_objects(
    files: type[StoreFiles], info: Mapping[str, Any], stored: tuple[int, str, str]
) -> None:
    assert files(None).describe(info) == StoredObject(*stored)


@pytest.mark.parametrize("files", [S3Files, GcsFiles, AzureFiles])
def test_an_object_of_which_nothing_changes_with_its_content(files: type[StoreFiles]) -> None:
    with pytest.raises(StoreError, match="b/k: the store says neither ETag nor date of it"):
        files(None).describe({"name": "b/k", "size": 3})


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("s3://b", "s3:// requires s3fs: pip install 'nereid-mesh[s3]'"),
        ("gs://b", "gs:// requires gcsfs: pip install 'nereid-mesh[gcs]'"),
        ("as://a/c", "as:// requires adlfs: pip install 'nereid-mesh[azure]'"),
    ],
)
def test_a_missing_package_is_named(url: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = parse_store_url(url)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert missing_package(parsed) == text
    with pytest.raises(StoreError) as caught:
        open_files(parsed, {})
    assert caught.value.text == text


def test_credentials_that_are_wrong_in_form(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if it were installed.
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    with pytest.raises(AccessRefusedError, match="TRITON_CLOUD_CREDENTIAL_PATH: '/none': No such"):
        open_files(parse_store_url("s3://b"), {"TRITON_CLOUD_CREDENTIAL_PATH": "/none"})


def test_names_are_those_of_folders() -> None:
    class Listing:
        """What fsspec's file systems respond."""

        def invalidate_cache(self) -> None:
            pass

        def ls(self, path: str, *, detail: bool, timeout: float) -> list[dict[str, str]]:
            assert detail
            assert timeout > 0
            return [
                {"name": f"{path}/n/", "type": "directory"},
                {"name": f"{path}/m", "type": "directory"},
                {"name": f"{path}/.git", "type": "directory"},
                {"name": f"{path}/README.md", "type": "file"},
            ]

    store = ObjectStore(parse_store_url("s3://b/models"), {}, lambda *_: S3Files(Listing()))
    assert store.model_names() == ["m", "n"]


def test_keys_that_lead_out_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(S3Files):
        def forget_listings(self) -> None:
            pass

        def find(self, path: str) -> dict[str, Mapping[str, Any]]:
            keys = ["m/../../x", "m/1/", "m//x", "", "m/2"]
            kinds = ["file", "file", "file", "directory", "directory"]
            return {
                f"{path}/{key}": {"type": kind, "size": 0}
                for key, kind in zip(keys, kinds, strict=True)
            }

    store = ObjectStore(parse_store_url("s3://b/models"), {}, lambda *_: Odd(None))
    (listing,) = store.list_models().values()
    assert listing.files == {}
    assert listing.subfolders() == {"1", "2"}
    assert "is no path; it is ignored" in caplog.text


def test_refused_credentials_are_read_again_once() -> None:
    opened = []

    class Refusing(S3Files):
        def find(self, path: str) -> dict[str, Mapping[str, Any]]:
            raise PermissionError("expired")

        def forget_listings(self) -> None:
            pass

    def open_again(*_: object) -> StoreFiles:
        opened.append(1)
        return Refusing(None)

    store = ObjectStore(parse_store_url("s3://b"), {}, open_again)
    with pytest.raises(AccessRefusedError, match="expired"):
        store.list_models()
    assert len(opened) == 2
