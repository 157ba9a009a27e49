"""What a worker gets of a request beside its tensors."""

import json
from typing import Any

import pytest

from nereid.backends import Request, RequestSpec
from nereid.services.executor.backends.python.request_metadata import meta_of

_SPEC = RequestSpec((), ())


@pytest.mark.parametrize(
    ("parameters", "meta"),
    [
        ({"sequence_id": -1}, {"correlation_id": (1 << 64) - 1, "flags": 0}),
        ({"sequence_id": "x", "sequence_start": True}, {"correlation_id": "x", "flags": 1}),
        ({"sequence_end": True, "a": 1}, {"correlation_id": 0, "flags": 2, "parameters": {"a": 1}}),
    ],
    ids=["unsigned", "text", "no-id"],
)
def test_a_requests_place_in_its_sequence(parameters: dict[str, Any], meta: dict[str, Any]) -> None:
    request = Request(_SPEC, (), "", parameters, b"", 0, 0)
    assert json.loads(meta_of(request)) == meta
