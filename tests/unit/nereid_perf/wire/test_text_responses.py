"""Usage and streams of OpenAI's API."""

import json
from typing import Any

import pytest

from nereid_perf.request import Request
from nereid_perf.wire.client import PendingRequest
from nereid_perf.wire.text_responses import TextEvents, error_text, read_usage


def _pending() -> PendingRequest:
    return PendingRequest(Request(b"{}"), 1)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 5, "total_tokens": 5}, (5, 0)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}, (5, 2)),
        ({"input_tokens": 5, "output_tokens": 2}, (5, 2)),
        ({"total_tokens": 9}, (9, 0)),
        ({"prompt_tokens": -1, "completion_tokens": "x"}, (0, 0)),
        ([5], (0, 0)),
        (None, (0, 0)),
    ],
)
def test_the_usage_of_a_body(usage: Any, tokens: tuple[int, int]) -> None:
    pending = _pending()
    body = {"data": [{"text": 'its "usage": 3'}], "usage": usage, "id": "x"}
    read_usage(pending, json.dumps(body).encode())
    assert (pending.input_tokens, pending.output_tokens) == tokens


@pytest.mark.parametrize("body", [b"", b"[1]", b'{"usage"', b'{"usage":' + b"[" * 100_000])
def test_bodies_without_usage(body: bytes) -> None:
    pending = _pending()
    read_usage(pending, body)
    assert pending.input_tokens == 0


def _event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def _delta(**fields: Any) -> bytes:
    return _event(choices=[{"delta": fields}])


def test_events_with_text_are_responses() -> None:
    events, pending = TextEvents(), _pending()
    events.feed(pending, _delta(role="assistant", content=""), 10)
    events.feed(pending, _delta(content="a") + _delta(content="b")[:9], 20)
    events.feed(pending, _delta(content="b")[9:] + b": keepalive\n\n", 30)
    events.feed(pending, _event(choices=[{"text": "c", "index": 0}]), 40)
    assert events.error == "the stream ended without [DONE]"
    usage = {"prompt_tokens": 4, "completion_tokens": 3}
    events.feed(pending, _event(choices=[], usage=usage) + b"data: [DONE]\n\n", 50)
    assert events.error == ""
    assert (pending.responses, pending.first_ns, pending.last_ns) == (3, 20, 40)
    assert pending.between == [10, 10]
    assert (pending.input_tokens, pending.output_tokens) == (4, 3)


def test_an_error_in_a_stream_is_its_outcome() -> None:
    events = TextEvents()
    events.feed(_pending(), _event(error={"message": "too long"}) + b"data: [DONE]\n\n", 1)
    assert events.error == "too long"
    events = TextEvents()
    events.feed(_pending(), b"data: nonsense\n\n", 1)
    assert events.error == "no JSON in the stream: nonsense"


def test_texts_of_errors() -> None:
    assert error_text("plain") == "plain"
    assert error_text({"message": "m", "code": 3}) == "m"
