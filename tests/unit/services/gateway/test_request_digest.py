"""Which requests the gateway digests."""

import dataclasses
from typing import Any

import pytest

from nereid.core.messages import ErrorStatus, InferRequest, SharedMemory
from nereid.pb import kserve_pb2
from nereid.services.gateway.request_digest import Digester


def head(*shape: int) -> bytes:
    message = kserve_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(name="I", datatype="UINT8", shape=shape)
    return message.SerializeToString()


BASE = InferRequest(1, head(4), [b"abcd"], parameters={"a": 1, "b": "x"})


def digest(**fields: Any) -> bytes:
    return Digester(["m"]).digest(dataclasses.replace(BASE, **fields))


@pytest.mark.parametrize(
    "fields", [{"head": head(2, 2)}, {"payloads": [b"abce"]}, {"parameters": None}]
)
def test_what_the_response_depends_on_tells_requests_apart(fields: dict[str, Any]) -> None:
    assert len(digest(**fields)) == 16
    assert digest(**fields) != digest()


@pytest.mark.parametrize(
    "fields",
    [
        {"id": 2},
        {"request_id": "other"},
        {"deadline": 1.0},
        {"priority": 1},
        {"timeout_us": 5},
        {"trace_context": b"t" * 26},
    ],
)
def test_what_it_does_not_depend_on_is_left_out(fields: dict[str, Any]) -> None:
    assert digest(**fields) == digest()


def test_nothing_is_computed_where_nobody_asked_or_data_lie_elsewhere() -> None:
    assert Digester(["other"]).digest(BASE) == b""
    assert digest(head=b"\xff") == b""
    assert digest(error_status=ErrorStatus(3, "bad")) == b""
    assert digest(payloads=[]) == b""
    assert digest(payloads=[SharedMemory("s", 0, 4)]) == b""


def test_what_would_hold_up_the_gateway_is_left_to_the_scheduler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nereid.services.gateway.request_digest._MOST_BYTES", 4)
    assert digest(payloads=[b"abcd"]) == digest()
    assert digest(payloads=[b"abcde"]) == b""


def test_the_table_of_heads_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nereid.services.gateway.request_digest._MOST_HEADS", 2)
    digester = Digester(["m"])
    for size in range(5):
        assert digester.digest(InferRequest(1, head(size), [b"a" * size]))
    assert len(digester._layouts) <= 2
