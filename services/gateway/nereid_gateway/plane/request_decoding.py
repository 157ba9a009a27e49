"""Decoding of requests for both fronts: what one turn of the event loop may do, and what waits.

A front calls `decode_now` with each message. If that returns None, the front runs `decode` as a
task, whose steps wait for a turn, a decoder process, or a thread.
"""

# layout: compiled

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, Protocol

from nereid.core.errors import Internal, NereidError
from nereid.core.wire.messages import ErrorStatus
from nereid.pb import kserve_pb2
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.tensors import string_elements
from nereid_gateway.core.tensors.tensor_memory import tensor_bytes
from nereid_gateway.plane.decoding.large_texts import LargeTexts
from nereid_gateway.plane.decoding.limits import LARGE_BYTES, SMALL_BYTES
from nereid_gateway.plane.decoding.turns import LoopTurns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.core.request_handle import OnResponse, RequestHandle
    from nereid_gateway.core.request_head import CheckedHead
    from nereid_gateway.core.tensors.jobs import Blob, JobFunction, RunJob
    from nereid_gateway.core.tensors.string_elements import StringInput
    from nereid_gateway.core.tensors.tensor_memory import TensorMemory
    from nereid_gateway.plane.client_shm.regions import Regions
    from nereid_gateway.plane.decoding.pool import DecoderPool

    # Inputs in regions are not read yet, and strings are not checked.
    Decoded = tuple[ClientRequest, CheckedHead]


# The scheduler's error for an inquiry about a model that it has.
_MODEL_FOUND: Final = ErrorStatus(
    Internal.code, "the model was found, and its request was not sent"
)


class InferMessage:
    """Message of a protocol with a request. An invalid message becomes a request with an error.

    It is no Protocol: compiled code calls methods of a Protocol slowly.
    """

    __slots__ = ("decoded", "text_bytes")

    # None until the message is decoded.
    decoded: Decoded | None
    # Bytes that have to be parsed, so without binary tensors.
    text_bytes: int

    @property
    def naming_head(self) -> bytes:
        """Head that names only the model; empty if the message shows no model."""
        raise NotImplementedError

    @property
    def request_id(self) -> str:
        """The client's id of the request, as far as it is known."""
        raise NotImplementedError

    def decode(self) -> Decoded:
        """Return the request, and what is to be checked. An invalid request has its error.

        The scheduler gets the error, because it reports an unknown model first. Raises Internal if
        the message cannot be parsed.
        """
        raise NotImplementedError

    async def decode_in_process(self, run_job: RunJob) -> Decoded:
        """Decode the message in a decoder process. Raises NereidError if that fails."""
        raise NotImplementedError

    def error_request(self, error: NereidError) -> ClientRequest:
        """Return the request to submit in place of one that is invalid.

        Raises Internal again if the message could not be parsed.
        """
        raise NotImplementedError


class Client(Protocol):
    """Call of a client that waits for its request to be decoded."""

    @property
    def peer(self) -> str:
        """The client's address."""

    def hold(self, size_bytes: int) -> None:
        """Charge the client for bytes that are kept. May raise the protocol's error."""


class RequestSink(Protocol):
    """Last step of the data plane, as far as decoding needs it."""

    def infer(self, request: ClientRequest, on_response: OnResponse, /) -> RequestHandle:
        """Send a request to a scheduler, or refuse it."""

    @property
    def tensors(self) -> TensorMemory:
        """Memory for large tensors."""

    def size_of(self, request: ClientRequest) -> int:
        """Return a request's bytes. Raises InvalidArgument if it is too large in any case."""


class RequestDecoding:
    """Decodes the requests of one gateway."""

    def __init__(self, upstream: RequestSink, regions: Regions, decoders: DecoderPool) -> None:
        self._upstream = upstream
        self._regions = regions
        self._decoders = decoders
        self._turns = LoopTurns()
        self.large_texts = LargeTexts()

    def decode_now(self, message: InferMessage) -> ClientRequest | None:
        """Return the request in a message, or None if it needs a step of decode() that waits.

        Raises Internal if the message cannot be parsed.
        """
        text_bytes = message.text_bytes
        if text_bytes > SMALL_BYTES and (
            text_bytes > LARGE_BYTES or not self._turns.spend(text_bytes)
        ):
            return None
        decoded = message.decoded = message.decode()
        request, checked = decoded
        if not checked.strings and checked.regions is None:
            return request
        try:
            return request if self.complete_now(request, checked) else None
        except NereidError as error:
            return message.error_request(error)

    def complete_now(self, request: ClientRequest, checked: CheckedHead) -> bool:
        """Read inputs from regions and check strings. Return False if that has to wait."""
        regions = checked.regions
        if regions is not None and not self._regions.resolve_ranges(request, regions):
            return False
        return not _check_small_strings(request, checked.strings)

    async def decode(
        self, message: InferMessage, client: Client, *, accepts_many: bool = False
    ) -> ClientRequest:
        """Return the request in a message, or one with an error.

        Raises Internal if the message cannot be parsed, and the error of client.hold().
        """
        began_ns = monotonic_ns()
        run_job = self._decoders.for_peer(client.peer)
        text_bytes = message.text_bytes
        try:
            if message.decoded is not None:
                request, checked = message.decoded
            elif text_bytes > LARGE_BYTES:
                refusal = await self._find_model(message.naming_head, accepts_many=accepts_many)
                if refusal is not None:
                    return _refused(message, refusal)
                request, checked = message.decoded = await message.decode_in_process(run_job)
                named = kserve_pb2.ModelInferRequest.FromString(message.naming_head)
                self.large_texts.record(named.model_name, monotonic_ns() - began_ns)
            else:
                if text_bytes > SMALL_BYTES:
                    await self._turns.wait(client.peer, text_bytes)
                request, checked = message.decoded = message.decode()
            regions = checked.regions
            if (
                regions is not None
                and request.region_use is None
                and not self._regions.resolve_ranges(request, regions)
            ):
                await self._regions.read(request, regions, self._upstream.tensors, client.hold)
            large = _check_small_strings(request, checked.strings)
            if large:
                if text_bytes <= LARGE_BYTES:
                    head = message.naming_head
                    refusal = await self._find_model(head, accepts_many=accepts_many)
                    if refusal is not None:
                        return _refused(message, refusal)
                # A request that is too large in any case is refused before the work.
                self._upstream.size_of(request)
                await string_elements.check_large(request, large, run_job)
            await self._upstream.tensors.stage_in_thread(request)
        except NereidError as error:
            return message.error_request(error)
        return request

    async def run_text_job(
        self, peer: str, text: Blob, function: JobFunction, *arguments: Any
    ) -> tuple[Any, Sequence[Any]]:
        """Return function([text], *arguments), which a decoder process runs if the text is large.

        function: defined at a module's top level. Raises NereidError if the function did, or if
        too many jobs are waiting.
        """
        if len(text) > LARGE_BYTES:
            return await self._decoders.run(peer, function, *arguments, blobs=[text])
        if len(text) > SMALL_BYTES:
            await self._turns.wait(peer, len(text))
        return function([text], *arguments)

    async def _find_model(self, head: bytes, *, accepts_many: bool) -> ErrorStatus | None:
        """Return the error with which the scheduler would refuse a request for a model, or None.

        A model that is loading at first may be loaded when the call returns.
        """
        if not head:
            return None
        refusal: asyncio.Future[ErrorStatus | None] = asyncio.get_running_loop().create_future()

        # The scheduler reports this status only if nothing else is wrong with the request.
        inquiry = ClientRequest(0, head, [], error_status=_MODEL_FOUND, accepts_many=accepts_many)
        handle = self._upstream.infer(inquiry, partial(_on_found, refusal))
        try:
            return await refusal
        except asyncio.CancelledError:
            handle.cancel()
            raise


def _check_small_strings(
    request: ClientRequest, strings: Iterable[StringInput]
) -> list[StringInput]:
    """Check the elements of small inputs. Return the large inputs."""
    large: list[StringInput] = []
    for tensor in strings:
        raw = tensor_bytes(request, request.payloads[tensor.position])
        if len(raw) > LARGE_BYTES:
            large.append(tensor)
        else:
            string_elements.check(raw, tensor, request.request_id)
    return large


def _refused(message: InferMessage, refusal: ErrorStatus) -> ClientRequest:
    return ClientRequest(0, message.naming_head, [], message.request_id, error_status=refusal)


def _on_found(refusal: asyncio.Future[ErrorStatus | None], response: InferResponse) -> None:
    if not refusal.done():
        error_status = response.error
        refusal.set_result(None if error_status == _MODEL_FOUND else error_status)
