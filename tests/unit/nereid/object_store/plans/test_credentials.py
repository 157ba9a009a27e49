"""Which credentials count for a URL, and what a store's file system is given of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nereid.object_store.plans.credentials import (
    CREDENTIAL_FILE,
    CredentialError,
    StoreAccess,
    access_to,
    read_credentials,
    select_credential,
)
from nereid.object_store.plans.urls import parse_store_url

KEYS = {"key_id": "k", "secret_key": "s", "session_token": "", "region": "eu", "profile": ""}


def access(url: str, document: Any, tmp_path: Path) -> StoreAccess:
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return access_to(parse_store_url(url), {CREDENTIAL_FILE: str(path)})


def test_the_longest_prefix_counts() -> None:
    document = {"s3": {"": 0, "s3://b": 1, "s3://b/models": 2, "s3://other": 3}, "gs": {"": 4}}
    for url, expected in (
        ("s3://b/models/x", 2),
        ("s3://b/m", 1),
        ("s3://c", 0),
        ("gs://b", 4),
        ("as://a/c", None),
    ):
        assert select_credential(parse_store_url(url), document) == expected
    assert select_credential(parse_store_url("gs://b"), {"gs": {"gs://c": 1}}) is None


def test_a_section_must_be_an_object() -> None:
    with pytest.raises(CredentialError, match="'s3' is not a JSON object"):
        select_credential(parse_store_url("s3://b"), {"s3": []})


def test_without_the_variable_the_environment_counts() -> None:
    assert read_credentials({}) is None
    assert access_to(parse_store_url("s3://b"), {}) == StoreAccess()
    assert access_to(parse_store_url("gs://b"), {}) == StoreAccess()


@pytest.mark.parametrize(("text", "reason"), [("{", "is not JSON"), ("[]", "is not a JSON object")])
def test_damaged_files(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "credentials.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CredentialError, match=reason):
        read_credentials({CREDENTIAL_FILE: str(path)})


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CredentialError, match="No such file"):
        read_credentials({CREDENTIAL_FILE: str(tmp_path / "none")})


def test_s3(tmp_path: Path) -> None:
    found = access("s3://b/models", {"s3": {"": KEYS}}, tmp_path)
    assert found.arguments == {
        "key": "k",
        "secret": "s",
        "client_kwargs": {"region_name": "eu"},
    }
    # Not in logs.
    assert "s" not in repr(found).replace("StoreAccess", "").replace("managed_identity=None", "")
    found = access("s3://host:1/b", {"s3": {"": {"profile": "p"}}}, tmp_path)
    assert found.arguments == {
        "profile": "p",
        "endpoint_url": "http://host:1",
        "config_kwargs": {"s3": {"addressing_style": "path"}},
    }


@pytest.mark.parametrize("entry", ["text", {"key_id": 1}], ids=["text", "number"])
def test_entries_of_other_shapes(tmp_path: Path, entry: Any) -> None:
    with pytest.raises(CredentialError, match="no object of texts"):
        access("s3://b", {"s3": {"": entry}}, tmp_path)


def test_gcs(tmp_path: Path) -> None:
    assert access("gs://b", {"gs": {"": "/key.json"}}, tmp_path).arguments == {"token": "/key.json"}
    assert access("gs://b", {"gs": {"": ""}}, tmp_path) == StoreAccess()
    with pytest.raises(CredentialError, match="no path"):
        access("gs://b", {"gs": {"": {}}}, tmp_path)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {}),
        ({"AZURE_STORAGE_ACCOUNT": "a", "AZURE_STORAGE_KEY": "k"}, {"account_key": "k"}),
        ({"AZURE_STORAGE_KEY": "k"}, {"account_key": "k"}),
        ({"AZURE_STORAGE_ACCOUNT": "other", "AZURE_STORAGE_KEY": "k"}, {}),
        ({"AZURE_STORAGE_KEY": "k", "AZURE_STORAGE_AUTH_TYPE": "default"}, {}),
    ],
    ids=["nothing", "account", "key", "other-account", "default"],
)
def test_azure_by_environment(environ: dict[str, str], expected: dict[str, str]) -> None:
    found = access_to(parse_store_url("as://a/c"), environ)
    assert found == StoreAccess({"account_name": "a"} | expected)


def test_azure_by_file(tmp_path: Path) -> None:
    def of(entry: dict[str, str]) -> StoreAccess:
        return access("as://a/c", {"as": {"": entry}}, tmp_path)

    assert of({"account_str": "a", "account_key": "k"}).arguments["account_key"] == "k"
    managed = of({"auth_type": "managed_identity", "client_id": "id"})
    assert managed == StoreAccess({"account_name": "a"}, "id")
    with pytest.raises(CredentialError, match="auth_type"):
        of({"auth_type": "password"})
