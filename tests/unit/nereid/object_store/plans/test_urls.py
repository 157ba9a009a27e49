"""Triton's forms of repositories' URLs."""

from __future__ import annotations

import pytest

from nereid.object_store.plans.urls import StoreUrl, is_store_url, parse_store_url


@pytest.mark.parametrize(
    ("text", "scheme", "path", "endpoint", "account"),
    [
        ("s3://bucket", "s3", "bucket", "", ""),
        ("s3://bucket/a/b/", "s3", "bucket/a/b", "", ""),
        ("s3://host:9000/bucket/a", "s3", "bucket/a", "http://host:9000", ""),
        ("s3://[::1]:9000/bucket", "s3", "bucket", "http://[::1]:9000", ""),
        ("s3://http://host:9000/bucket/a", "s3", "bucket/a", "http://host:9000", ""),
        ("s3://https://host/bucket", "s3", "bucket", "https://host", ""),
        (
            "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/name/a",
            "s3",
            "arn:aws:s3:eu-west-1:123456789012:accesspoint/name/a",
            "",
            "",
        ),
        ("gs://bucket/models", "gs", "bucket/models", "", ""),
        ("as://account/container/models", "as", "container/models", "", "account"),
    ],
)
def test_forms(text: str, scheme: str, path: str, endpoint: str, account: str) -> None:
    url = parse_store_url(text)
    assert url == StoreUrl(text.rstrip("/"), scheme, path, endpoint, account)
    assert str(url) == text.rstrip("/")


@pytest.mark.parametrize(
    "text",
    ["s3://", "s3:///", "s3://host:9000/", "gs://a//b", "gs://a/../b", "as://account", "as:///c"],
)
def test_without_a_bucket_or_with_odd_components(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected (s3|gs|as)://"):
        parse_store_url(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("s3://b", True), ("gs://b", True), ("as://a/b", True), ("/s3://b", False), ("s3:/b", False)],
)
def test_paths_are_no_urls(text: str, expected: bool) -> None:
    assert is_store_url(text) is expected


def test_children_and_parents() -> None:
    url = parse_store_url("s3://http://host:1/bucket/models")
    child = url.child("m").child("1")
    assert child.text == "s3://http://host:1/bucket/models/m/1"
    assert child == parse_store_url(child.text)
    assert child.name == "1"
    assert child.parent().parent() == url
