"""What is kept, and what is believed of what comes back."""

import pytest

from nereid.core.wire.messages import ErrorStatus, InferResponse, Payload
from nereid.pb import nereid_pb2 as pb
from nereid.shm.reference import SharedMemory
from nereid_scheduler.versions.caching.cached_values import ValueSeal, read_cached, write_cached

KEY = b"k" * 64
SEAL = ValueSeal(b"s" * 32)


def test_a_response_comes_back_as_it_was() -> None:
    value = write_cached(InferResponse(7, b"head", [b"one", b""]))
    assert value is not None
    response = read_cached(value)
    assert response is not None
    assert (response.id, response.head, response.payloads) == (0, b"head", [b"one", b""])


def test_a_value_is_the_message_that_others_read() -> None:
    payloads = [b"x" * 1000, b"y"]
    message = pb.CachedResponse(head=b"head" * 50, payloads=payloads)
    response = InferResponse(7, message.head, [*payloads])
    assert write_cached(response) == message.SerializeToString()


@pytest.mark.parametrize("payload", [SharedMemory("1.2.3", 0, 4), memoryview(b"view")])
def test_what_is_not_inline_is_not_written(payload: Payload) -> None:
    assert write_cached(InferResponse(7, b"head", [b"one", payload])) is None
    assert write_cached(InferResponse(7, b"head", error=ErrorStatus(13, "no"))) is None


def test_a_reference_to_shared_memory_is_not_read() -> None:
    reference = pb.Payload(shared_memory={"segment_name": "1.2.3", "size_bytes": 4})
    forged = pb.InferResponse(head=b"head", payloads=[reference]).SerializeToString()
    assert read_cached(forged) is None
    # Beside a response of the right form it is nothing.
    kept = write_cached(InferResponse(7, b"head", [b"one"]))
    assert kept is not None
    both = read_cached(kept + forged)
    assert both is not None
    assert both.payloads == [b"one"]
    assert both.segment_name == ""


@pytest.mark.parametrize("size", [0, 10, 100_000])
def test_only_what_was_sealed_under_the_same_key_opens(size: int) -> None:
    value = b"v" * size
    sealed = SEAL.seal(KEY, value)
    assert SEAL.open(KEY, sealed) == value
    assert SEAL.open(KEY[:-1] + b"l", sealed) is None
    assert SEAL.open(KEY[:-1], sealed[:16] + KEY[-1:] + sealed[16:]) is None
    assert ValueSeal(b"t" * 32).open(KEY, sealed) is None
    for changed in (sealed[:-1], sealed + b"x", b"\0" + sealed[1:], value, sealed[:3], b""):
        assert SEAL.open(KEY, changed) is None
