"""What one turn of the event loop decodes, and what waits."""

from __future__ import annotations

import asyncio
from typing import Any

from nereid.core.errors import InvalidArgument, NereidError, NotFound
from nereid.core.tensors.byte_elements import join_bytes
from nereid.core.wire.messages import ErrorStatus, InferRequest, InferResponse, error_status_of
from nereid_gateway.core.request_head import CheckedHead
from nereid_gateway.core.tensors.jobs import RunJob
from nereid_gateway.core.tensors.region_ranges import RegionRange, RegionRanges
from nereid_gateway.core.tensors.string_elements import StringInput
from nereid_gateway.core.tensors.tensor_memory import TensorMemory
from nereid_gateway.plane.client_shm.regions import SYSTEM, Regions, Registration
from nereid_gateway.plane.decoding.pool import DecoderPool, PoolLimits
from nereid_gateway.plane.request_decoding import RequestDecoding

Decoded = tuple[InferRequest, CheckedHead]
_LARGE = (1 << 20) + 1


class Zeros:
    def read(self, offset: int, size_bytes: int) -> bytes:
        return bytes(size_bytes)

    def write(self, offset: int, data: Any) -> bool:
        raise AssertionError((offset, data))

    def close(self) -> None:
        pass


class Message:
    """Decoded as `payloads`, of which the strings and ranges are to be checked and read."""

    naming_head, request_id = b"m", "id"

    def __init__(self, text_bytes: int, payload: bytes = b"", **checked: Any) -> None:
        self.text_bytes = text_bytes
        self.decoded: Decoded | None = None
        self.decodings: list[str] = []
        self._payload = payload
        self._checked = CheckedHead(b"head", ("X",), **{"strings": (), **checked})

    def decode(self) -> Decoded:
        self.decodings.append("here")
        return InferRequest(0, b"head", [self._payload]), self._checked

    async def decode_in_process(self, run_job: RunJob) -> Decoded:
        self.decodings.append("process")
        return InferRequest(0, b"head", [self._payload]), self._checked

    def error_request(self, error: NereidError) -> InferRequest:
        return InferRequest(0, b"m", [], error_status=error_status_of(error))


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
        self.inquiries: list[bytes] = []
        self._refusal = refusal
        regions = Regions(allowed=True)
        regions.register(Registration(SYSTEM, "r", _LARGE, "k"), Zeros)
        upstream: Any = self
        pool = DecoderPool(PoolLimits(processes=0))
        self.decoding = RequestDecoding(upstream, regions, pool)

    def infer(self, request: InferRequest, on_response: Any) -> None:
        self.inquiries.append(request.head)
        on_response(InferResponse(1, error=self._refusal or request.error_status))

    def size_of(self, request: InferRequest) -> int:
        return len(request.payloads)


async def test_text_that_is_not_small_is_charged_to_the_turn() -> None:
    site = Site()
    small = [Message(8192) for _ in range(20)]
    medium = [Message(30_000) for _ in range(3)]
    assert all(site.decoding.decode_now(message) for message in small)
    assert [bool(site.decoding.decode_now(message)) for message in medium] == [True, True, False]
    request = await asyncio.wait_for(site.decoding.decode(medium[2], Client()), 5)
    assert (request.head, medium[2].decodings, site.inquiries) == (b"head", ["here"], [])


async def test_large_text_is_decoded_elsewhere_once_the_model_is_known() -> None:
    site = Site()
    message = Message(40_000)
    assert site.decoding.decode_now(message) is None
    assert (await site.decoding.decode(message, Client())).head == b"head"
    assert (message.decodings, site.inquiries) == (["process"], [b"m"])


async def test_large_text_for_an_unknown_model_is_not_decoded() -> None:
    refusal = error_status_of(NotFound("there is none", accepted=True))
    message = Message(40_000)
    request = await Site(refusal).decoding.decode(message, Client())
    assert (request.error_status, request.request_id) == (refusal, "id")
    assert message.decodings == []


async def test_large_inputs_in_regions_are_read_after_a_message_is_decoded_once() -> None:
    site, client = Site(), Client()
    ranges = RegionRanges(((0, RegionRange("r", 0, _LARGE)),), ())
    message = Message(1, regions=ranges)
    assert site.decoding.decode_now(message) is None
    request = await site.decoding.decode(message, client)
    assert request.payloads == [bytes(_LARGE)]
    assert (message.decodings, client.held_bytes) == (["here"], _LARGE)


async def test_large_strings_are_checked_elsewhere_and_small_ones_at_once() -> None:
    site = Site()
    strings = (StringInput(0, "X", "m", 10_001),)
    message = Message(1, join_bytes([b""] * 10_000), strings=strings)
    assert site.decoding.decode_now(message) is None
    request = await site.decoding.decode(message, Client())
    assert request.error_status is not None
    assert request.error_status.code == InvalidArgument.code
    assert (message.decodings, site.inquiries) == (["here"], [b"m"])
    small = site.decoding.decode_now(Message(1, b"\1", strings=strings))
    assert small is not None
    assert small.error_status is not None
