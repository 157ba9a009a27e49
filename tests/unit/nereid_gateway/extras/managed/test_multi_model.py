"""Load requests of multi-model mode."""

from __future__ import annotations

import json

import pytest

from nereid.core.errors import InvalidArgument
from nereid_gateway.extras.managed.multi_model import parse_load


def test_a_load_request() -> None:
    body = {"model_name": "0a1b", "url": "/opt/ml/models/0a1b/model", "other": 1}
    assert parse_load(json.dumps(body).encode()) == ("0a1b", "/opt/ml/models/0a1b/model")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 60000, "not JSON"),
        (b"[]", "needs the texts"),
        (b'{"model_name": "a"}', "needs the texts"),
        (b'{"model_name": 1, "url": "/a"}', "needs the texts"),
        (b'{"model_name": "a/b", "url": "/a"}', "cannot be served"),
        (b'{"model_name": "a", "url": "/a\\u0000"}', "NUL"),
        (b" " * 65537, "at most 65536 bytes"),
    ],
    ids=["nothing", "no text", "nested", "list", "no url", "number", "name", "NUL", "large"],
)
def test_what_is_none(body: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        parse_load(body)
