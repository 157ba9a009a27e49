"""Decodes messages without long turns of the event loop. Decoder processes take large messages."""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from nereid.core.errors import Internal, NereidError
from nereid.core.wire.messages import InferRequest
from nereid_gateway.core import request_head
from nereid_gateway.core.tensors import string_elements
from nereid_gateway.fronts.grpc import infer_codec, wire_format
from nereid_gateway.plane.client_shm.regions import ReadLaterError
from nereid_gateway.plane.decoding.limits import LARGE_BYTES
from nereid_gateway.plane.decoding.turns import TurnSpentError

if TYPE_CHECKING:
    from nereid.rpc import Call
    from nereid_gateway.core.tensors.string_elements import StringInput
    from nereid_gateway.core.tensors.tensor_memory import MessageBuffer
    from nereid_gateway.fronts.grpc.wire_format import Outline
    from nereid_gateway.plane.data_plane import DataPlane


class BoundedDecoder:
    """Decodes the gRPC requests of one gateway."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        self._decoder = infer_codec.GrpcDecoder(data_plane.regions, data_plane.turns)

    def decode_now(self, message: bytes | MessageBuffer) -> InferRequest | None:
        """Return the request, or None to call decode_later. Raises Internal if unreadable."""
        try:
            if len(message) <= LARGE_BYTES and isinstance(message, bytes):
                return self._decoder.decode(message)
            if _is_large(_outline(message)):
                return None
            unchecked: list[StringInput] = []
            request = self._decode(message, unchecked)
        except (TurnSpentError, ReadLaterError):
            return None
        return None if unchecked else request

    async def decode_later(
        self, message: bytes | MessageBuffer, call: Call, *, accepts_many: bool = False
    ) -> InferRequest:
        """Return the request in a message. It is decoded in a later turn or in a decoder process.

        call: memory that is kept is charged to it. Raises Internal if the message cannot be parsed,
        and RpcError if the client holds too many bytes.
        """
        outline = _outline(message)
        if len(message) <= LARGE_BYTES:
            return await self._decode_in_turn(message, call, outline)
        if outline.model:
            head = request_head.naming(outline.model, outline.version)
            refusal = await self._data_plane.find_model(head, accepts_many=accepts_many)
            if refusal is not None:
                return InferRequest(0, head, [], outline.request_id, error_status=refusal)
        if _is_large(outline):
            return await self._decode_by_pool(message, call, outline)
        return await self._decode_in_turn(message, call, outline)

    def _decode(
        self,
        message: bytes | MessageBuffer,
        unchecked: list[StringInput],
        *,
        charged: bool = False,
    ) -> InferRequest:
        if isinstance(message, bytes):
            return self._decoder.decode(message, unchecked, charged=charged)
        return self._decoder.decode_buffer(message, unchecked, charged=charged)

    async def _decode_in_turn(
        self, message: bytes | MessageBuffer, call: Call, outline: Outline
    ) -> InferRequest:
        try:
            await self._data_plane.turns.wait(call.peer, outline.rest_bytes)
        except NereidError as error:
            return _error_request(outline, error)
        unchecked: list[StringInput] = []
        regions = self._data_plane.regions
        try:
            request = self._decode(message, unchecked, charged=True)
        except ReadLaterError as later:
            try:
                inputs = await regions.read(later.named, self._data_plane.tensors, call.hold)
            except NereidError as error:
                return _error_request(outline, error)
            with regions.having(inputs):
                request = self._decode(message, unchecked, charged=True)
        if unchecked:
            run_job = self._data_plane.decoders.for_peer(call.peer)
            try:
                self._data_plane.check_size(request)
                await string_elements.check_large(request, unchecked, run_job)
            except NereidError as error:
                infer_codec.fail_request(request, outline.model, outline.version, error)
        return request

    async def _decode_by_pool(
        self, message: bytes | MessageBuffer, call: Call, outline: Outline
    ) -> InferRequest:
        regions = self._data_plane.regions
        blob = message if isinstance(message, bytes) else message.view
        try:
            decoded, payloads = await self._data_plane.decoders.run(
                call.peer, infer_codec.decode_job, regions.allowed, blobs=[blob]
            )
        except Internal:
            raise
        except NereidError as error:
            return _error_request(outline, error)
        request: InferRequest
        request, named, strings = decoded
        request.payloads = list(payloads)
        try:
            if named is not None and request.error_status is None:
                inputs = await regions.read(named, self._data_plane.tensors, call.hold)
                with regions.having(inputs):
                    regions.resolve_ranges(request, named)
            if strings:
                run_job = self._data_plane.decoders.for_peer(call.peer)
                await string_elements.check_large(request, strings, run_job)
            await self._data_plane.tensors.stage_in_thread(request)
        except NereidError as error:
            infer_codec.fail_request(request, outline.model, outline.version, error)
        return request


def _is_large(outline: Outline) -> bool:
    return outline.unread or outline.rest_bytes > LARGE_BYTES


def _outline(message: bytes | MessageBuffer) -> Outline:
    try:
        return wire_format.outline(
            memoryview(message) if isinstance(message, bytes) else message.view
        )
    except DecodeError:
        # The message is damaged or unusual: a decoder process parses it and reports errors.
        return wire_format.Outline("", "", "", len(message), unread=True)


def _error_request(outline: Outline, error: NereidError) -> InferRequest:
    request = InferRequest(0, b"", [], outline.request_id)
    infer_codec.fail_request(request, outline.model, outline.version, error)
    return request
