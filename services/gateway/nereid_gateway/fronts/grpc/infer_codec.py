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
from nereid.core.wire.messages import InferRequest, Parameter, error_status_of
from nereid.core.wire.varint import encode_varint
from nereid.pb import kserve_pb2
from nereid_gateway.core import request_head
from nereid_gateway.core.request_head import CheckedHead, HeadInput
from nereid_gateway.core.tensors import string_elements
from nereid_gateway.core.tensors.tensor_memory import tensor_bytes
from nereid_gateway.fronts.grpc import shared_memory, typed_contents, wire_format
from nereid_gateway.fronts.grpc.message_layouts import MessageLayouts
from nereid_gateway.plane.client_shm.regions import NO_REGIONS, Regions, UnresolvedRegions
from nereid_gateway.plane.decoding.limits import LARGE_BYTES, SMALL_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.core.tensors.region_ranges import RegionRanges
    from nereid_gateway.core.tensors.string_elements import StringInput
    from nereid_gateway.core.tensors.tensor_memory import MessageBuffer
    from nereid_gateway.plane.decoding.turns import LoopTurns

    Message = kserve_pb2.ModelInferRequest

_parse = kserve_pb2.ModelInferRequest.FromString

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
    """Decodes requests, and caches the heads that were checked."""

    def __init__(self, regions: Regions = NO_REGIONS, turns: LoopTurns | None = None) -> None:
        """Prepare an empty cache. turns: charged with large heads, or None to charge nothing."""
        self._regions = regions
        self._turns = turns
        self._layouts = MessageLayouts()
        self._checked = BoundedCache[bytes, CheckedHead](
            request_head.CACHED_HEADS, request_head.MAX_CACHED_HEAD_BYTES
        )

    def decode(
        self, data: bytes, unchecked: list[StringInput] | None = None, *, charged: bool = False
    ) -> InferRequest:
        """Return the request in data.

        An invalid request has its error in error_status, because the scheduler reports an unknown
        model first. unchecked: collects large inputs whose elements must still be counted. charged:
        True if this turn is already charged with the message. Raises Internal if data cannot be
        parsed, and TurnSpentError if the message has to wait for another turn.
        """
        known = self._layouts.read(data)
        if known is not None:
            return known
        try:
            message = _parse(data)
        except DecodeError as error:
            raise Internal("Unable to parse request") from error
        payloads: list[Any] = list(message.raw_input_contents)
        if payloads:
            message.ClearField("raw_input_contents")
        request = InferRequest(0, b"", payloads)
        self._complete_request(message, request, unchecked, charged=charged, data=data)
        return request

    def decode_buffer(
        self,
        buffer: MessageBuffer,
        unchecked: list[StringInput] | None = None,
        *,
        charged: bool = False,
    ) -> InferRequest:
        """Return the request in a large message. Its tensors stay in the buffer.

        Raises Internal if the message cannot be parsed, and TurnSpentError if it has to wait for a
        turn.
        """
        try:
            rest, places = wire_format.split_tensors(buffer.view)
            message = _parse(rest)
        except DecodeError:
            # protobuf parses a damaged or unusual message and reports its errors.
            return self.decode(bytes(buffer.view), unchecked, charged=charged)
        payloads: list[Any] = [buffer[start:end] for start, end in places]
        request = InferRequest(0, b"", payloads, lease=buffer.lease)
        self._complete_request(message, request, unchecked, charged=charged)
        return request

    def _complete_request(
        self,
        message: Message,
        request: InferRequest,
        unchecked: list[StringInput] | None,
        *,
        charged: bool = False,
        data: bytes = b"",
    ) -> None:
        """Check the head and fill in the request. data: the message, or empty if not to be kept."""
        payloads = request.payloads
        if message.id:
            request.request_id = message.id
            message.ClearField("id")
            data = b""
        try:
            if message.parameters:
                _move_parameters(message, request)
                data = b""
            head = message.SerializeToString()
            checked = self._checked.get(head)
            if checked is None:
                data = b""
                if len(head) > SMALL_BYTES and self._turns is not None and not charged:
                    self._turns.spend(len(head))
                checked = self._check_head(message, head, request)
            request.head = checked.head
            if checked.regions is not None:
                shared_memory.place_payloads(request, checked, checked.regions, message.model_name)
                payloads = request.payloads
                self._regions.resolve_ranges(request, checked.regions)
            count = len(checked.input_names)
            if len(payloads) != count:
                _match_payloads(request, checked, message.model_name)
            if checked.strings:
                self._check_strings(request, checked.strings, unchecked)
            elif data and checked.regions is None:
                self._layouts.remember(data, head, checked.head, payloads)
        except NereidError as error:
            fail_request(request, message.model_name, message.model_version, error)

    def _check_strings(
        self,
        request: InferRequest,
        strings: Iterable[StringInput],
        unchecked: list[StringInput] | None,
    ) -> None:
        for about in strings:
            if about.position in self._regions.unresolved:
                self._regions.unchecked.append(about)
                continue
            raw = tensor_bytes(request, request.payloads[about.position])
            if unchecked is not None and len(raw) > LARGE_BYTES:
                unchecked.append(about)
            else:
                string_elements.check(raw, about, request.request_id)

    def _check_head(self, message: Message, head: bytes, request: InferRequest) -> CheckedHead:
        model = message.model_name
        request_head.check_count("inputs", len(message.inputs), model)
        request_head.check_count("outputs", len(message.outputs), model)
        typed = any(tensor.HasField("contents") for tensor in message.inputs)
        regions = shared_memory.region_use(message, self._regions)
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


def fail_request(request: InferRequest, model: str, version: str, error: NereidError) -> None:
    """Turn a request into one that has only the name of the model and the error."""
    request.head = request_head.naming(model, version)
    request.payloads = []
    request.error_status = error_status_of(error)


def decode_job(
    messages: Sequence[bytes], shm_allowed: bool
) -> tuple[tuple[InferRequest, RegionRanges | None, list[StringInput]], Sequence[Any]]:
    """Return request, ranges, uncounted inputs and payloads. A decoder process runs this job."""
    regions = UnresolvedRegions(allowed=shm_allowed)
    request = GrpcDecoder(regions).decode(messages[0])
    payloads: list[Any] = request.payloads
    request.payloads = []
    return (request, regions.named, regions.unchecked), payloads


def _match_payloads(request: InferRequest, checked: CheckedHead, model: str) -> None:
    """Drop surplus tensors, as Triton does."""
    payloads, names = request.payloads, checked.input_names
    if len(payloads) < len(names):
        raise InvalidArgument(
            f"unable to find data for input tensor '{names[len(payloads)]}'"
            f" for model '{model}' in request."
        )
    del payloads[len(names) :]


def _move_parameters(message: Message, request: InferRequest) -> None:
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
            # If an output is named twice, the first one counts.
            classes.setdefault(output.name, parameter.int64_param)
    return classes


_ID_TAG: Final = b"\x1a"
_RAW_TAG: Final = b"\x32"
_SHORT: Final = [_RAW_TAG + encode_varint(size) for size in range(16384)]


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
