"""What one turn of the event loop decodes, and what waits."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import InvalidArgument, NotFound
from nereid.core.tensors.byte_elements import join_bytes
from nereid.core.wire.messages import ErrorStatus, InferRequest, InferResponse, error_status_of
from nereid_gateway.core.tensors.tensor_memory import TensorMemory
from nereid_gateway.fronts.http.inference.infer_request import HttpMessage, InferRequestDecoder
from nereid_gateway.plane.client_shm.regions import SYSTEM, Regions, Registration
from nereid_gateway.plane.decoding.pool import DecoderPool, PoolLimits
from nereid_gateway.plane.request_decoding import RequestDecoding

_LARGE = (1 << 20) + 1


class Zeros:
    def read(self, offset: int, size_bytes: int) -> bytes:
        return bytes(size_bytes)

    def write(self, offset: int, data: Any) -> bool:
        raise AssertionError((offset, data))

    def close(self) -> None:
        pass


class Client:
    peer = "a:1"

    def __init__(self) -> None:
        self.held_bytes = 0

    def hold(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes


class Site:
    """Knows the model, unless there is a refusal."""

    def __init__(self, refusal: ErrorStatus | None = None) -> None:
        self.tensors = TensorMemory(0)
        self.inquiries = 0
        self._refusal = refusal
        regions = Regions(allowed=True)
        regions.register(Registration(SYSTEM, "r", _LARGE, "k"), Zeros)
        upstream: Any = self
        pool = DecoderPool(PoolLimits(processes=0))
        self.decoding = RequestDecoding(upstream, regions, pool)
        self._decoder = InferRequestDecoder("m", "", BoundedCache(16), regions)

    def infer(self, request: InferRequest, on_response: Any) -> None:
        self.inquiries += 1
        on_response(InferResponse(1, error=self._refusal or request.error_status))

    def size_of(self, request: InferRequest) -> int:
        return len(request.payloads)

    def message(self, note_bytes: int = 0, raw: bytes = b"", **fields: Any) -> HttpMessage:
        tensor: dict[str, Any] = {"name": "X", "datatype": "UINT8", "shape": [len(raw)]}
        tensor |= {"parameters": {"binary_data_size": len(raw)}, **fields}
        document = {"inputs": [tensor], "parameters": {"note": "n" * note_bytes}}
        text = json.dumps(document).encode()
        return HttpMessage(self._decoder, text + raw, b"%d" % len(text))


async def test_text_that_is_not_small_is_charged_to_the_turn() -> None:
    site = Site()
    small = [site.message(8000) for _ in range(20)]
    medium = [site.message(30_000) for _ in range(3)]
    assert all(site.decoding.decode_now(message) for message in small)
    assert [bool(site.decoding.decode_now(message)) for message in medium] == [True, True, False]
    request = await asyncio.wait_for(site.decoding.decode(medium[2], Client()), 5)
    assert (request.error_status, site.inquiries) == (None, 0)


async def test_large_text_is_decoded_once_the_model_is_known() -> None:
    site = Site()
    message = site.message(40_000, b"abc")
    assert site.decoding.decode_now(message) is None
    request = await site.decoding.decode(message, Client())
    assert (request.payloads, site.inquiries) == ([b"abc"], 1)
    ((_, times),) = site.decoding.large_texts.by_model.items()
    assert times.count == 1
    assert times.ns > 0


async def test_large_text_for_an_unknown_model_is_not_decoded() -> None:
    refusal = error_status_of(NotFound("there is none", accepted=True))
    site = Site(refusal)
    message = site.message(40_000)
    assert (await site.decoding.decode(message, Client())).error_status == refusal
    assert message.decoded is None
    assert not site.decoding.large_texts.by_model


async def test_large_inputs_in_regions_are_read_after_the_message_is_decoded() -> None:
    site, client = Site(), Client()
    place = {"shared_memory_region": "r", "shared_memory_byte_size": _LARGE}
    message = site.message(shape=[_LARGE], parameters=place)
    assert site.decoding.decode_now(message) is None
    assert message.decoded is not None
    request = await site.decoding.decode(message, client)
    assert request is message.decoded[0]
    assert (request.payloads, client.held_bytes) == ([bytes(_LARGE)], _LARGE)


async def test_large_strings_are_checked_once_the_model_is_known_and_small_ones_at_once() -> None:
    site = Site()
    strings = {"datatype": "BYTES", "shape": [10_001]}
    message = site.message(0, join_bytes([b""] * 10_000), **strings)
    assert site.decoding.decode_now(message) is None
    request = await site.decoding.decode(message, Client())
    assert request.error_status is not None
    assert (request.error_status.code, site.inquiries) == (InvalidArgument.code, 1)
    small = site.decoding.decode_now(site.message(0, b"\1", **strings))
    assert small is not None
    assert small.error_status is not None
