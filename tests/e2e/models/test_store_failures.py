"""Stores that are out of order: what is served remains, the reason is one line, and it passes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models.e2e_models import save_scaler
from tests.support.models.scaler import CONFIG, scaled
from tests.support.object_stores.s3_server import (
    BUCKET,
    REFUSED,
    Reply,
    S3Server,
    error_reply,
    s3_server,
)

pytestmark = pytest.mark.slow

_SLOW_DOWN: Final = error_reply(
    HTTPStatus.SERVICE_UNAVAILABLE, "SlowDown", "Please reduce your request rate."
)
_GONE: Final = error_reply(HTTPStatus.NOT_FOUND, "NoSuchKey", "The key does not exist.")
_SKEWED: Final = error_reply(
    HTTPStatus.FORBIDDEN, "RequestTimeTooSkewed", "The difference of the times is too large."
)
_INTERNAL: Final = error_reply(HTTPStatus.OK, "InternalError", "We encountered an error.")
# Followed by itself, for ever.
_ENDLESS: Final = Reply(
    HTTPStatus.OK,
    f"""<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{BUCKET}</Name>
<Prefix>models/</Prefix><KeyCount>1</KeyCount><MaxKeys>1</MaxKeys><IsTruncated>true</IsTruncated>
<NextContinuationToken>next</NextContinuationToken><Contents><Key>models/x/1/a</Key>
<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"0"</ETag><Size>1</Size></Contents>
</ListBucketResult>""".encode(),
)

_SILENT: Final = re.compile(r"no response within|the store does not respond")

Respond = Callable[[str], Reply | int | None]


def listings(reply: Reply) -> Respond:
    return lambda request: reply if "list-type=2" in request else None


def reads(how: Reply | int, part: str) -> Respond:
    """Of objects with this in their keys."""
    return lambda request: (
        how if request.startswith("GET") and "list-type=2" not in request and part in request
        else None
    )  # fmt: skip


class StoreFailure(NamedTuple):
    """fail: S3Server's; reason: what the log says of it."""

    fail: Respond
    reason: str


FAILURES: Final = {
    "a listing that does not end": StoreFailure(listings(_ENDLESS), "listing does not end"),
    "a listing that is an error with status 200": StoreFailure(
        listings(_INTERNAL), "bucket/models: "
    ),
    "a clock that is wrong": StoreFailure(
        lambda _: _SKEWED, "The difference of the times is too large"
    ),
    "a prefix that may not be read": StoreFailure(
        reads(REFUSED, "models/scaler/"), "config.pbtxt: access was refused: Access Denied"
    ),
    "a configuration that is gone": StoreFailure(
        reads(_GONE, "config.pbtxt"), "config.pbtxt: there is no such object"
    ),
    "a configuration that is an error with status 200": StoreFailure(
        reads(_INTERNAL, "config.pbtxt"), "the response is no object"
    ),
    "a body that is shorter than its length": StoreFailure(
        reads(50, "model.onnx"), "Response payload is not completed"
    ),
    "a store that throttles": StoreFailure(lambda _: _SLOW_DOWN, "bucket/models: "),
}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


_FACTORS: Final = itertools.count(1)


def upload(s3: S3Server, root: Path, name: str = "scaler") -> int:
    """Another model, with another configuration, of this name: its factor."""
    factor = next(_FACTORS)
    save_scaler(root / str(factor), name, factor, f"{CONFIG}# {factor}\n")
    s3.upload(root / str(factor), "models")
    return factor


@pytest.fixture(scope="module")
def mesh(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("failures")
    for name in ("scaler", "other"):
        upload(s3, root, name)
    flags = (
        "--model-control-mode=poll",
        "--repository-poll-secs=0.3",
        f"--repository-cache-directory={root / 'cache'}",
    )
    with pytest.MonkeyPatch.context() as patch:
        # Of botocore, which waits longer from each to the next.
        patch.setenv("AWS_MAX_ATTEMPTS", "2")
        with running(s3.url("models"), root / "log", *flags) as it:
            yield it


def said(mesh: Mesh, at: int, reason: str) -> list[str]:
    """The errors in the log after its first bytes that have this reason."""
    lines = mesh.log.read_text()[at:].splitlines()
    return [each for each in lines if " ERROR " in each and reason in each]


# A store's library waits long where it is told to slow down. What the configuration is instead is
# told apart by tests of the object stores.
_NIGHTLY: Final = {
    "a store that throttles",
    "a configuration that is gone",
    "a configuration that is an error with status 200",
}


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(failure, id=name, marks=[pytest.mark.nightly] if name in _NIGHTLY else [])
        for name, failure in FAILURES.items()
    ],
)
def test_what_is_served_remains(
    mesh: Mesh, s3: S3Server, tmp_path: Path, failure: StoreFailure
) -> None:
    before, at = scaled(mesh), len(mesh.log.read_text())
    s3.fail = failure.fail
    try:
        factor = upload(s3, tmp_path)
        until(lambda: said(mesh, at, failure.reason), "the reason")
        seen = len(s3.requests)
        until(lambda: len(s3.requests) > seen + 3, "it to be tried again")
        assert scaled(mesh) == before
        assert {each["state"] for each in mesh.index().values()} == {"READY"}
        # The same in each poll, but for loads, which are tried and reported each time; and what
        # those who do not wait for the store's library to give up are told of it.
        errors = [each for each in said(mesh, at, "") if not _SILENT.search(each)]
        assert all(failure.reason in each for each in errors), errors
        assert len(errors) <= max(mesh.log.read_text()[at:].count("is LOADING"), 1), errors
    finally:
        s3.fail = lambda _: None
    until(lambda: scaled(mesh) == factor, "the new model")


def test_an_object_that_changes_before_it_is_read(mesh: Mesh, s3: S3Server, tmp_path: Path) -> None:
    factors: list[int] = []

    def change(request: str) -> None:
        if not factors and request.startswith("GET") and "scaler/1/model.onnx" in request:
            factors.append(upload(s3, tmp_path))

    at = len(mesh.log.read_text())
    s3.fail = change
    try:
        upload(s3, tmp_path)
        until(lambda: factors and scaled(mesh) == factors[0], "the last model")
    finally:
        s3.fail = lambda _: None
    (only,) = said(mesh, at, "")
    assert "model.onnx has changed since it was listed" in only


def test_a_store_that_throttles_now_and_then(mesh: Mesh, s3: S3Server, tmp_path: Path) -> None:
    requests, at = itertools.count(), len(mesh.log.read_text())
    s3.fail = lambda _: _SLOW_DOWN if next(requests) % 3 == 0 else None
    try:
        factor = upload(s3, tmp_path)
        until(lambda: scaled(mesh) == factor, "the new model")
    finally:
        s3.fail = lambda _: None
    assert not said(mesh, at, "")
