"""What a worker gets of a request beside its tensors."""

import json
from typing import Any

import pytest

from nereid.backends import Request, RequestSpec
from nereid_executor.backends.python.messages.request_metadata import KnownSpecs, meta_of

_SPEC = RequestSpec((), ())
_EMPTY_FORM = b'{"inputs": [], "outputs": []}'


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


def test_a_form_is_sent_once_and_again_when_there_are_too_many() -> None:
    sent: list[list[bytes]] = []
    specs = KnownSpecs(sent.append)
    assert specs.number_of(_SPEC) == specs.number_of(_SPEC) == 1
    assert sent == [[(1).to_bytes(8, "little"), _EMPTY_FORM]]
    others = [RequestSpec((), ()) for _ in range(1024)]
    assert [specs.number_of(each) for each in others] == [*range(2, 1025), 1]
    # The worker forgets its specs.
    assert sent[-2] == [bytes(8)]
    assert specs.number_of(_SPEC) == 2
    specs.clear()
    assert specs.number_of(_SPEC) == 1


def test_a_trace_context_becomes_w3cs_headers() -> None:
    context = b"\0" + b"\xab" * 16 + b"\xcd" * 8 + b"\1"
    parent = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    for state, headers in ((b"", parent), (b"a=1", parent | {"tracestate": "a=1"})):
        meta = json.loads(meta_of(Request(_SPEC, (), "", {}, context + state, 0, 0)))
        assert json.loads(meta["trace"]) == headers
