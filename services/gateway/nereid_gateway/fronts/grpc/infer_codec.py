"""Codec of gRPC inference: decodes requests and encodes responses.

Each request is parsed once. Whatever differs from request to request is moved out of the message.
The rest is serialised as the head, and equal heads are checked only once.
"""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from nereid.bounded_cache import BoundedCache
from nereid.core import correlation_ids
from nereid.core.errors import Internal, InvalidArgument, NereidError
from nereid.core.wire.messages import ErrorStatus, InferResponse, Parameter, error_status_of
from nereid.core.wire.varint import encode_varint
from nereid.pb import kserve_pb2
from nereid_gateway.core import request_head
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.request_head import NOTHING_CHECKED, CheckedHead, HeadInput
from nereid_gateway.core.tensors import string_elements
from nereid_gateway.core.tensors.tensor_memory import tensor_bytes
from nereid_gateway.fronts.grpc import shared_memory, typed_contents, wire_format
from nereid_gateway.fronts.grpc.message_layouts import MessageLayouts
from nereid_gateway.plane.client_shm.regions import NO_REGIONS, Regions, UnresolvedRegions
from nereid_gateway.plane.decoding.limits import LARGE_BYTES
from nereid_gateway.plane.request_decoding import InferMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.shm.segments import Lease
    from nereid_gateway.core.tensors.jobs import RunJob
    from nereid_gateway.core.tensors.string_elements import StringInput
    from nereid_gateway.core.tensors.tensor_memory import MessageBuffer
    from nereid_gateway.fronts.grpc.wire_format import Outline

    Message = kserve_pb2.ModelInferRequest

_parse: Final = kserve_pb2.ModelInferRequest.FromString

_UINT64: Final = (1 << 64) - 1
_EMPTY_FINAL: Final = "triton_enable_empty_final_response"
_RESERVED: Final = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys"
    f" starting with 'triton_' are allowed: {_EMPTY_FINAL}"
)
# Key: a parameter that Nereid reads. Value: the fields that may hold it, and Triton's text for
# them.
_KINDS: Final[dict[str, tuple[frozenset[str], str]]] = {
    "sequence_id": (frozenset({"int64_param", "string_param"}), "int64_param or string_param"),
    "sequence_start": (frozenset({"bool_param"}), "bool_param"),
    "sequence_end": (frozenset({"bool_param"}), "bool_param"),
    "priority": (frozenset({"int64_param", "uint64_param"}), "int64_param or uint64_param"),
    "timeout": (frozenset({"int64_param"}), "int64_param"),
    _EMPTY_FINAL: (frozenset({"bool_param"}), "bool_param"),
}
_CUSTOM: Final = (
    frozenset({"int64_param", "bool_param", "string_param", "double_param"}),
    "int64_param, bool_param, or string_param",
)


class GrpcDecoder:
    """Checks heads of requests, and remembers the heads and the layouts of messages."""

    def __init__(self, regions: Regions = NO_REGIONS) -> None:
        self.regions = regions
        self.layouts = MessageLayouts()
        self._checked = BoundedCache[bytes, CheckedHead](
            request_head.CACHED_HEADS, request_head.MAX_CACHED_HEAD_BYTES
        )

    def complete_request(
        self, message: Message, request: ClientRequest, head: bytes
    ) -> tuple[CheckedHead, bool]:
        """Check a head, and give the request its head and payloads. Return whether it was known.

        Raises NereidError if the request is invalid.
        """
        checked = self._checked.get(head)
        known = checked is not None
        if checked is None:
            checked = self._check_head(message, head, request)
        request.head = checked.head
        if checked.regions is not None:
            shared_memory.place_payloads(request, checked, checked.regions, message.model_name)
        elif len(request.payloads) != len(checked.input_names):
            _match_payloads(request, checked, message.model_name)
        return checked, known

    def _check_head(self, message: Message, head: bytes, request: ClientRequest) -> CheckedHead:
        model = message.model_name
        request_head.check_count("inputs", len(message.inputs), model)
        request_head.check_count("outputs", len(message.outputs), model)
        counts = [len(tensor.parameters) for tensor in message.inputs]
        counts += [len(output.parameters) for output in message.outputs]
        request_head.check_count("parameters of a tensor", max(counts, default=0), model)
        typed = any(tensor.HasField("contents") for tensor in message.inputs)
        regions = shared_memory.region_use(message, self.regions)
        classes = _classes(message)
        if request.payloads and typed:
            name = next(tensor.name for tensor in message.inputs if tensor.HasField("contents"))
            raise InvalidArgument(
                f"contents field must not be specified when using raw_input_contents for '{name}'"
                f" for model '{model}'"
            )
        if not request.payloads:
            # The scheduler refuses a head without inputs. Missing tensor data is refused here.
            elsewhere = {position for position, _ in regions.inputs} if regions else ()
            request.payloads = [
                typed_contents.to_raw(tensor, model)
                for position, tensor in enumerate(message.inputs)
                if position not in elsewhere
            ]
        checked = request_head.build(
            model,
            message.model_version,
            [
                HeadInput(tensor.name, tensor.datatype, list(tensor.shape))
                for tensor in message.inputs
            ],
            [output.name for output in message.outputs],
            classes,
        )._replace(regions=regions)
        if not typed:
            self._checked.remember(head, checked)
        return checked


class GrpcMessage(InferMessage):
    """ModelInferRequest, as RequestDecoding decodes it."""

    __slots__ = (
        "_data",
        "_decoder",
        "_error",
        "_head",
        "_is_plain",
        "_message",
        "_outline",
        "_request",
    )

    # _parse() sets these.
    _request: ClientRequest
    _head: bytes

    def __init__(self, decoder: GrpcDecoder, data: bytes | MessageBuffer) -> None:
        """Parse data, unless it has much text. Raises Internal if it cannot be parsed."""
        self.decoded = None
        self._decoder = decoder
        self._data = data
        self._message: Message | None = None
        # Error in the parameters.
        self._error: NereidError | None = None
        # True if later messages may differ in nothing but their tensors.
        self._is_plain = True
        self._outline: Outline | None = None
        if len(data) > LARGE_BYTES:
            self._outline = _outline(_view(data))
            self.text_bytes = self._outline.rest_bytes
            if self.text_bytes > LARGE_BYTES:
                return
        self._parse()
        self.text_bytes = len(self._head)

    def _parse(self) -> Message:
        """Move all that differs from request to request from the message to a request."""
        data = self._data
        lease: Lease | None = None
        if isinstance(data, bytes):
            message, payloads = _read_fields(data)
        else:
            self._is_plain = False
            try:
                rest, places = wire_format.split_tensors(data.view)
                message = _parse(rest)
            except DecodeError:
                # protobuf parses a damaged or unusual message and reports its errors.
                message, payloads = _read_fields(bytes(data.view))
            else:
                payloads = [data[start:end] for start, end in places]
                lease = data.lease
        request = ClientRequest(0, b"", payloads, message.id, lease=lease)
        self._message, self._request, self._head = message, request, b""
        if request.request_id:
            message.ClearField("id")
            self._is_plain = False
        if message.parameters:
            self._is_plain = False
            try:
                _move_parameters(message, request)
            except NereidError as error:
                self._error = error
                return message
        self._head = message.SerializeToString()
        return message

    @property
    def naming_head(self) -> bytes:
        """Head that names only the model; empty if the message shows no model."""
        if self._message is not None:
            return request_head.naming(self._message.model_name, self._message.model_version)
        outline = self._outline
        return b"" if outline is None else request_head.naming(outline.model, outline.version)

    @property
    def request_id(self) -> str:
        """The client's id of the request, as far as it is known."""
        if self._message is None and self._outline is not None:
            return self._outline.request_id
        return self._request.request_id

    def decode(self) -> tuple[ClientRequest, CheckedHead]:
        """Return the request, and what is to be checked. An invalid request has its error.

        The scheduler gets the error, because it reports an unknown model first. Raises Internal if
        the message cannot be parsed.
        """
        message = self._parse() if self._message is None else self._message
        request, decoder = self._request, self._decoder
        try:
            if self._error is not None:
                raise self._error
            checked, known = decoder.complete_request(message, request, self._head)
        except NereidError as error:
            return self._failed_request(error), NOTHING_CHECKED
        data = self._data
        if (
            known
            and self._is_plain
            and isinstance(data, bytes)
            and not checked.strings
            and checked.regions is None
        ):
            decoder.layouts.remember(data, self._head, checked.head, request.payloads)
        return request, checked

    async def decode_in_process(self, run_job: RunJob) -> tuple[ClientRequest, CheckedHead]:
        """Decode the message in a decoder process. Raises NereidError if that fails."""
        data, regions = self._data, self._decoder.regions
        (decoded, checked), payloads = await run_job(
            decode_job, regions.allowed, blobs=[_view(data)]
        )
        request: ClientRequest = decoded
        request.payloads = list(payloads)
        return request, checked

    def error_request(self, error: NereidError) -> ClientRequest:
        """Return the request to submit in place of an invalid one.

        Raises Internal again: the message could not be parsed, so that there is no request.
        """
        if isinstance(error, Internal):
            raise error
        return self._failed_request(error)

    def _failed_request(self, error: NereidError) -> ClientRequest:
        return ClientRequest(
            0, self.naming_head, [], self.request_id, error_status=error_status_of(error)
        )


def _read_fields(data: bytes) -> tuple[Message, list[Any]]:
    """Return a message without its tensors, and the tensors."""
    try:
        message = _parse(data)
    except DecodeError as error:
        raise Internal("Unable to parse request") from error
    payloads = list(message.raw_input_contents)
    if payloads:
        message.ClearField("raw_input_contents")
    return message, payloads


def _outline(data: memoryview) -> Outline:
    try:
        return wire_format.outline(data)
    except DecodeError:
        # The message is damaged or unusual: a decoder process parses it and reports errors.
        return wire_format.Outline("", "", "", len(data))


def _view(data: bytes | MessageBuffer) -> memoryview:
    return memoryview(data) if isinstance(data, bytes) else data.view


def decode_job(
    messages: Sequence[bytes], shm_allowed: bool
) -> tuple[tuple[ClientRequest, CheckedHead], Sequence[Any]]:
    """Return the request, what is still to be checked, and payloads. A decoder process runs this.

    Strings in regions are still to be checked.
    """
    message = GrpcMessage(GrpcDecoder(UnresolvedRegions(allowed=shm_allowed)), messages[0])
    request, checked = message.decode()
    inputs = () if checked.regions is None else checked.regions.inputs
    in_regions = {position for position, _ in inputs}
    unread: list[StringInput] = []
    try:
        for tensor in checked.strings:
            if tensor.position in in_regions:
                unread.append(tensor)
            else:
                raw = tensor_bytes(request, request.payloads[tensor.position])
                string_elements.check(raw, tensor, request.request_id)
    except NereidError as error:
        request, checked = message.error_request(error), NOTHING_CHECKED
    payloads: list[Any] = request.payloads
    request.payloads = []
    return (request, checked._replace(strings=tuple(unread))), payloads


def _match_payloads(request: ClientRequest, checked: CheckedHead, model: str) -> None:
    """Drop surplus tensors, as Triton does."""
    payloads, names = request.payloads, checked.input_names
    request_head.check_count("raw contents", len(payloads), model)
    if len(payloads) < len(names):
        raise InvalidArgument(
            f"unable to find data for input tensor '{names[len(payloads)]}'"
            f" for model '{model}' in request."
        )
    del payloads[len(names) :]


def _move_parameters(message: Message, request: ClientRequest) -> None:
    request_head.check_count("parameters", len(message.parameters), message.model_name)
    custom: dict[str, Parameter] = {}
    for key, parameter in message.parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if key.startswith("triton_") and key != _EMPTY_FINAL:
            raise InvalidArgument(_RESERVED)
        allowed, kind = _KINDS.get(key, _CUSTOM)
        if choice not in allowed:
            raise InvalidArgument(f"invalid value type for '{key}' parameter, expected {kind}.")
        value = getattr(parameter, choice)
        if key == "priority":
            if value < 0:
                raise InvalidArgument("invalid value for 'priority', expected value >= 0.")
            request.priority = value
        elif key == "timeout":
            # Triton reads a negative timeout as a very long one.
            request.timeout_us = value & _UINT64
        elif key == _EMPTY_FINAL:
            request.wants_empty_final = value
        else:
            if key == "sequence_id" and choice == "string_param":
                correlation_ids.check_length(value)
            custom[key] = value
    message.ClearField("parameters")
    if custom:
        request.parameters = custom


def _classes(message: Message) -> dict[str, int]:
    classes: dict[str, int] = {}
    for output in message.outputs:
        if "classification" in output.parameters:
            parameter = output.parameters["classification"]
            if parameter.WhichOneof("parameter_choice") != "int64_param":
                raise InvalidArgument(
                    "invalid value type for 'classification' parameter, expected int64_param"
                )
            if parameter.int64_param <= 0:
                raise InvalidArgument("invalid value for 'classification' parameter, expected >= 0")
            classes[output.name] = parameter.int64_param
    return classes


_MAX_MESSAGE_BYTES: Final = (1 << 31) - 1
_ID_TAG: Final = b"\x1a"
_RAW_TAG: Final = b"\x32"
_SHORT: Final = [_RAW_TAG + encode_varint(size) for size in range(16384)]


def checked_size(response: InferResponse, request_id: str) -> InferResponse:
    """Return a response, or an error in its place if it is too large for a gRPC message.

    Only tensors in a segment can be: frames between services have the same limit.
    """
    if not response.segment_name:
        return response
    size = sum(map(len, parts_of(response, request_id)))
    if size <= _MAX_MESSAGE_BYTES:
        return response
    text = f"Response has byte size {size} which exceeds gRPC's byte size limit"
    error_status = ErrorStatus(InvalidArgument.code, f"{text} {_MAX_MESSAGE_BYTES}.")
    return InferResponse(response.id, error=error_status, more=response.more)


def encode(response: InferResponse, request_id: str) -> bytes:
    """Return a response as a serialised ModelInferResponse."""
    return b"".join(parts_of(response, request_id))


def parts_of(response: InferResponse, request_id: str) -> list[Any]:
    """Return the bytes of encode() in pieces. Protobuf reads concatenated messages as one."""
    parts: list[Any] = [response.head]
    if request_id:
        text = request_id.encode()
        parts += (_ID_TAG, encode_varint(len(text)), text)
    for payload in response.payloads:
        size = len(payload)
        parts.append(_SHORT[size] if size < 16384 else _RAW_TAG + encode_varint(size))
        parts.append(payload)
    return parts
