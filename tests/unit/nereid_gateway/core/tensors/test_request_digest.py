"""Which requests the gateway digests."""

from typing import Any

import pytest

from nereid.core.tensors.digest import DIGEST_BYTES
from nereid.core.wire.messages import ErrorStatus, InferRequest
from nereid.pb import kserve_pb2
from nereid.shm.reference import SharedMemory
from nereid_gateway.core.tensors.request_digest import Digester


def head(*shape: int) -> bytes:
    message = kserve_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(name="I", datatype="UINT8", shape=shape)
    return message.SerializeToString()


KEY = b"k" * 32
BASE: dict[str, Any] = {
    "id": 1,
    "head": head(4),
    "payloads": [b"abcd"],
    "parameters": {"a": 1, "b": "x"},
}


def digest(digester: Digester | None = None, **fields: Any) -> bytes:
    return (digester or Digester(["m"], KEY)).digest(InferRequest(**{**BASE, **fields}))


@pytest.mark.parametrize(
    "fields", [{"head": head(2, 2)}, {"payloads": [b"abce"]}, {"parameters": None}]
)
def test_the_digest_depends_on_what_the_response_depends_on(fields: dict[str, Any]) -> None:
    assert len(digest(**fields)) == DIGEST_BYTES
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
def test_the_digest_depends_on_nothing_else(fields: dict[str, Any]) -> None:
    assert digest(**fields) == digest()


def test_no_digest_for_other_models_errors_or_data_in_clients_memory() -> None:
    assert Digester(["other"], KEY).digest(InferRequest(**BASE)) == b""
    assert digest(head=b"\xff") == b""
    assert digest(error_status=ErrorStatus(3, "bad")) == b""
    assert digest(payloads=[]) == b""
    assert digest(payloads=[SharedMemory("s", 0, 4)]) == b""


def test_large_requests_are_left_to_the_scheduler() -> None:
    digester = Digester(["m"], KEY, max_bytes=4)
    assert digest(digester, payloads=[b"abcd"]) == digest()
    assert digest(digester, payloads=[b"abcde"]) == b""


def test_the_table_of_heads_is_bounded() -> None:
    digester = Digester(["m"], KEY, cached_heads=2)
    for size in range(5):
        assert digester.digest(InferRequest(1, head(size), [b"a" * size]))
    assert len(digester._layouts) <= 2
