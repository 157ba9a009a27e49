"""Codecs of links between gateway and scheduler.

A deadline is sent as the remaining time, because the clocks of two machines differ.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from nereid.core.errors import INTERNAL_MESSAGE, Internal
from nereid.core.wire.messages import (
    CachedModels,
    Cancel,
    ErrorStatus,
    FlowControl,
    InferRequest,
    InferResponse,
    LastCounts,
    LogRules,
    ModelsChanged,
    ModelShadows,
    MovedResponse,
    Ownership,
    Release,
    RequestTimings,
    SequencePlace,
    TracedModel,
    TracedTensor,
    TraceRule,
    TraceRules,
    TrafficKeys,
    moved_response,
)
from nereid.core.wire.plain_items import PlainItems, item_end
from nereid.core.wire.varint import decode_varint, encode_varint
from nereid.pb import nereid_pb2 as pb
from nereid.shm.reference import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence

    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    from nereid.core.wire.messages import FromScheduler, Notice, Parameter, Payload, ToScheduler
    from nereid.pb import kserve_pb2

_log = logging.getLogger(__name__)

# Replaces an item that cannot be encoded, for example above protobuf's size limit.
_NOT_ENCODABLE: Final = ErrorStatus(Internal.code, INTERNAL_MESSAGE, accepted=True)
_MAX_KEPT_HEAD_BYTES: Final = 1 << 20
_REQUEST_ID: Final = 0x22
_REQUEST_ID_TAG: Final = bytes((_REQUEST_ID,))
_REMAINING_US: Final = 0x40
_REMAINING_US_TAG: Final = bytes((_REMAINING_US,))
_ACCEPTS_MANY: Final = 0x60
_ACCEPTS_MANY_FIELD: Final = bytes((_ACCEPTS_MANY, 1))
# The first byte of a tag with two.
_TEXT_DIGEST: Final = 0x8A
_TEXT_DIGEST_TAG: Final = bytes((_TEXT_DIGEST, 1))
_CALLER_KEY: Final = 0x92
_CALLER_KEY_TAG: Final = bytes((_CALLER_KEY, 1))
_CALLABLE_MODELS: Final = 0xA2
_CALLABLE_MODELS_TAG: Final = bytes((_CALLABLE_MODELS, 1))
_OWNER: Final = 0x7A
_OWNER_TAG: Final = bytes((_OWNER,))


class RequestCodec:
    """Codec of frames from a gateway to the scheduler.

    A request that cannot be encoded is replaced by an error, which becomes its response.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._plain = PlainItems()

    def size_bytes(self, item: ToScheduler) -> int:
        """Return the approximate number of bytes that an item adds to a frame."""
        if isinstance(item, InferRequest):
            # len() of a SharedMemory is tiny, which is good enough for an estimate.
            return len(item.head) + sum(map(len, item.payloads))
        return 0

    def encode(self, items: list[ToScheduler]) -> bytes:
        """Return a frame with these items."""
        try:
            return self._frame(items)
        except Exception:
            _log.exception("requests cannot be encoded; the bad ones fail: items=%d", len(items))
        try:
            return self._frame([self._encodable(item) for item in items])
        except MemoryError:
            # There is memory for each, but not for all of them.
            return self._frame([_failed(item) for item in items])

    def _encodable(self, item: ToScheduler) -> ToScheduler:
        try:
            self._frame([item])
        except Exception:
            return _failed(item)
        return item

    def _frame(self, items: list[ToScheduler]) -> bytes:
        pieces: list[bytes] = []
        # For protobuf: requests since the last written one, and what is no request.
        requests: list[ToScheduler] = []
        others: list[ToScheduler] = []
        for item in items:
            position = len(pieces)
            if not isinstance(item, InferRequest):
                others.append(item)
            elif not self._write_inline(item, pieces):
                requests.append(item)
            elif requests:
                # Requests keep their order.
                pieces.insert(position, self._message(requests))
                requests = []
        if requests or others:
            pieces.append(self._message(requests + others))
        return b"".join(pieces)

    def _write_inline(self, item: InferRequest, pieces: list[bytes]) -> bool:
        """Write a request with inline payloads, which protobuf does not get.

        Without memory for a large one, protobuf ends the process by a signal. Returns False if
        protobuf has to write the request.
        """
        payloads = item.payloads
        if payloads and isinstance(payloads[0], SharedMemory):
            return False
        if _is_plain(item):
            tail = self._tail(item)
        else:
            message = pb.InferRequest()
            _write_fields(item, message, self._clock())
            tail = message.SerializeToString()
        return self._plain.write(pieces, item.id, item.head, payloads, tail)

    def _tail(self, item: InferRequest) -> bytes:
        tail = b""
        if item.request_id:
            text = item.request_id.encode()
            tail = _REQUEST_ID_TAG + encode_varint(len(text)) + text
        if item.deadline is not None:
            tail += _REMAINING_US_TAG + encode_varint(remaining_us(item.deadline, self._clock()))
        if item.text_digest:
            tail += _TEXT_DIGEST_TAG + encode_varint(len(item.text_digest)) + item.text_digest
        if item.caller_key:
            tail += _CALLER_KEY_TAG + encode_varint(len(item.caller_key)) + item.caller_key
        if item.callable_models:
            rights = item.callable_models
            tail += _CALLABLE_MODELS_TAG + encode_varint(len(rights)) + rights
        if item.sequence_owner:
            owner = item.sequence_owner.encode()
            tail += _OWNER_TAG + encode_varint(len(owner)) + owner
        if item.accepts_many:
            tail += _ACCEPTS_MANY_FIELD
        return tail

    def _message(self, items: list[ToScheduler]) -> bytes:
        frame = pb.RequestFrame()
        now = self._clock()
        flows: dict[int, bool] = {}
        for item in items:
            if isinstance(item, InferRequest):
                message = frame.requests.add(id=item.id, head=item.head)
                write_payloads(item.payloads, message.payloads)
                _write_fields(item, message, now)
            elif isinstance(item, Cancel):
                frame.cancelled_ids.append(item.id)
            elif isinstance(item, FlowControl):
                flows[item.id] = item.paused  # the last item for a request counts
            else:
                frame.released_segments.extend(item.segment_names)
        for number, paused in flows.items():
            (frame.paused_ids if paused else frame.resumed_ids).append(number)
        return frame.SerializeToString()

    def decode(self, frame: bytes) -> list[ToScheduler]:
        """Return a frame's items, requests first, so that no cancellation overtakes its request."""
        now = self._clock()
        items: list[ToScheduler] = []
        position, length = 0, len(frame)
        while position < length:
            begin, end = item_end(frame, position)
            plain = self._plain.read(frame, begin, end)
            request: InferRequest | None = None
            if plain is not None:
                number, head, payloads, tail = plain
                request = InferRequest(number, head, payloads)
            if request is None or (tail < end and not _read_tail(request, frame, tail, end, now)):
                _read_rest(pb.RequestFrame.FromString(frame[position:]), items, now)
                break
            items.append(request)
            position = end
        return items


def _failed(item: ToScheduler) -> ToScheduler:
    """Return a request without what cannot be encoded, and with an error; any other item as is."""
    if not isinstance(item, InferRequest):
        return item
    head = item.head if len(item.head) <= _MAX_KEPT_HEAD_BYTES else b""
    return InferRequest(item.id, head, [], error_status=_NOT_ENCODABLE)


def _is_plain(item: InferRequest) -> bool:
    """Return whether PlainItems and _tail() can write all of a request's fields."""
    return not (
        item.parameters
        or item.digest
        or item.trace_context
        or item.priority
        or item.timeout_us
        or item.caller
        or item.resent
        or item.error_status
        or item.wants_timings
        or item.is_shadow
        or item.confined_caller
        or item.wants_sequence_place
        or item.copied_sequence
    )


def _read_tail(  # noqa: C901 - a table
    request: InferRequest, frame: bytes, position: int, end: int, now: float
) -> bool:
    """Read what _tail() writes; return False for any other field."""
    while position < end:
        tag = frame[position]
        number, position = decode_varint(frame, position + 1)
        if tag == _REQUEST_ID:
            try:
                request.request_id = frame[position : position + number].decode()
            except UnicodeDecodeError:
                return False
            position += number
        elif tag == _OWNER:
            try:
                request.sequence_owner = frame[position : position + number].decode()
            except UnicodeDecodeError:
                return False
            position += number
        elif tag == _REMAINING_US:
            request.deadline = deadline_of(number, now)
        elif tag == _ACCEPTS_MANY:
            request.accepts_many = number != 0
        elif tag == _TEXT_DIGEST and number == 1 and position < end:
            number, position = decode_varint(frame, position)
            request.text_digest = frame[position : position + number]
            position += number
        elif tag == _CALLER_KEY and number == 1 and position < end:
            number, position = decode_varint(frame, position)
            request.caller_key = frame[position : position + number]
            position += number
        elif tag == _CALLABLE_MODELS and number == 1 and position < end:
            number, position = decode_varint(frame, position)
            request.callable_models = frame[position : position + number]
            position += number
        else:
            return False
    return position == end


def _read_rest(frame: pb.RequestFrame, items: list[ToScheduler], now: float) -> None:
    """Decode the rest of a frame, from the first request that is not plain."""
    # A slice is cheaper: iterating over a repeated field ends with an exception.
    items.extend([_read_request(message, now) for message in frame.requests[:]])
    if frame.cancelled_ids:
        items.extend(map(Cancel, frame.cancelled_ids))
    if frame.paused_ids:
        items.extend(FlowControl(number, paused=True) for number in frame.paused_ids)
    if frame.resumed_ids:
        items.extend(FlowControl(number, paused=False) for number in frame.resumed_ids)
    if frame.released_segments:
        items.append(Release(tuple(frame.released_segments)))


class ResponseCodec:
    """Codec of frames from scheduler to gateway. An error replaces a bad response."""

    def __init__(self) -> None:
        self._plain = PlainItems()

    def size_bytes(self, item: FromScheduler) -> int:
        """Return the approximate number of bytes that an item adds to a frame."""
        if not isinstance(item, InferResponse):
            return 0
        size = len(item.head) + sum(map(len, item.payloads))
        return size + _size_of_trace(item.trace) if item.trace else size

    def encode(self, items: list[FromScheduler]) -> bytes:
        """Return a frame with these items."""
        try:
            return self._frame(items)
        except Exception:
            _log.exception("responses cannot be encoded; the bad ones fail: items=%d", len(items))
        try:
            return self._frame([self._encodable(item) for item in items])
        except MemoryError:
            return self._frame([_failed_response(item) for item in items])

    def _encodable(self, item: FromScheduler) -> FromScheduler:
        try:
            self._frame([item])
        except Exception:
            return _failed_response(item)
        return item

    def _frame(self, items: list[FromScheduler]) -> bytes:
        pieces: list[bytes] = []
        write = self._plain.write
        for count, item in enumerate(items):
            if (
                not isinstance(item, InferResponse)
                or item.error is not None
                or item.more
                or item.trace
                or item.timings is not None
                or item.sequence_place is not None
                or item.inputs_in_use
                or not write(pieces, item.id, item.head, item.payloads)
            ):
                pieces.append(_response_message(items[count:]))
                break
        return b"".join(pieces)

    def decode(self, frame: bytes) -> list[FromScheduler]:
        """Return a frame's items, notices first.

        A gateway must read that a scheduler shuts down before it handles the returned requests.
        """
        responses: list[InferResponse] = []
        position, length = 0, len(frame)
        while position < length:
            begin, end = item_end(frame, position)
            plain = self._plain.read(frame, begin, end)
            if plain is None or plain[3] < end:
                rest = pb.ResponseFrame.FromString(frame[position:])
                responses += map(read_response, rest.responses[:])
                return [*_read_others(rest, responses), *responses]
            number, head, payloads, _ = plain
            responses.append(InferResponse(number, head, payloads))
            position = end
        return [*responses]


def _failed_response(item: FromScheduler) -> FromScheduler:
    if not isinstance(item, InferResponse):
        return item
    return InferResponse(item.id, error=_NOT_ENCODABLE)


def _read_others(frame: pb.ResponseFrame, responses: list[InferResponse]) -> Iterator[Notice]:
    if frame.traces or frame.timings or frame.sequence_places:
        for item in responses:
            if not item.more:
                _read_of_last(frame, item)
    if frame.inputs_in_use:
        for item in responses:
            item.inputs_in_use = item.id in frame.inputs_in_use
    return _read_notices(frame)


def _read_of_last(frame: pb.ResponseFrame, item: InferResponse) -> None:
    """Read what comes only with the last response to a request."""
    if item.id in frame.traces:
        item.trace = _read_trace(frame.traces[item.id])
    if item.id in frame.timings:
        item.timings = _read_timings(frame.timings[item.id])
    if item.id in frame.sequence_places:
        place = frame.sequence_places[item.id]
        item.sequence_place = SequencePlace(place.start, place.number)


def _response_message(items: list[FromScheduler]) -> bytes:
    frame = pb.ResponseFrame()
    for item in items:
        if isinstance(item, InferResponse):
            write_response(item, frame.responses.add(id=item.id))
            if item.trace:
                _write_trace(item.trace, frame.traces[item.id])
            if item.timings is not None:
                _write_timings(item.timings, frame.timings[item.id])
            if item.sequence_place is not None:
                place = frame.sequence_places[item.id]
                place.start, place.number = item.sequence_place
            if item.inputs_in_use:
                frame.inputs_in_use.append(item.id)
        else:
            _write_notice(item, frame)
    return frame.SerializeToString()


def _write_notice(item: Notice, frame: pb.ResponseFrame) -> None:
    if isinstance(item, CachedModels):
        frame.cached_models.shm_namespace = item.shm_namespace
        frame.cached_models.names[:] = item.names
        frame.cached_models.digest_key = item.digest_key
        frame.cached_models.SetInParent()
    elif isinstance(item, TraceRules):
        frame.trace_rules.Clear()
        _write_rule(item.default, frame.trace_rules.default_rule)
        for name, rule in item.models:
            _write_rule(rule, frame.trace_rules.models[name])
    elif isinstance(item, Ownership):
        frame.ownership.Clear()
        frame.ownership.scheduler, frame.ownership.epoch = item.scheduler, item.epoch
        frame.ownership.models.extend(item.models)
        frame.ownership.leaving = item.leaving
        frame.ownership.SetInParent()
    elif isinstance(item, LastCounts):
        frame.last_counts = item.response
    elif isinstance(item, ModelsChanged):
        frame.models_changed = item.number
    elif isinstance(item, TrafficKeys):
        frame.traffic_keys.models.clear()
        frame.traffic_keys.models.update(item.models)
        frame.traffic_keys.clients = item.clients
        frame.traffic_keys.SetInParent()
    elif isinstance(item, ModelShadows):
        frame.model_shadows.models.clear()
        frame.model_shadows.models.update(item.models)
        frame.model_shadows.SetInParent()
    else:
        write_log_rules(item, frame.log_rules)


def _size_of_trace(models: Iterable[TracedModel]) -> int:
    return sum(len(tensor.data or b"") for model in models for tensor in model.tensors)


def _write_trace(models: Iterable[TracedModel], message: pb.TracedRequest) -> None:
    for model in models:
        context, parent, name, version, request_id, times, tensors = model
        written = message.models.add(
            context=context, parent=parent, name=name, version=version, request_id=request_id
        )
        for moment, ns in times:
            written.times.add(name=moment, ns=ns)
        for tensor in tensors:
            # protobuf omits a field of None.
            written.tensors.add(**tensor._asdict())


def _read_trace(message: pb.TracedRequest) -> tuple[TracedModel, ...]:
    return tuple(
        TracedModel(
            model.context,
            model.parent,
            model.name,
            model.version,
            model.request_id,
            tuple((moment.name, moment.ns) for moment in model.times),
            tuple(map(_read_traced_tensor, model.tensors)),
        )
        for model in message.models
    )


def _read_traced_tensor(message: pb.TracedTensor) -> TracedTensor:
    data = message.data if message.HasField("data") else None
    return TracedTensor(
        message.activity, message.name, message.datatype, tuple(message.shape), data
    )


def _write_timings(timings: RequestTimings, message: pb.RequestTimings) -> None:
    phases, message.batch_size, message.instance, message.attempt, message.cached = timings
    for name, ns in phases:
        message.phases.add(name=name, ns=ns)


def _read_timings(message: pb.RequestTimings) -> RequestTimings:
    return RequestTimings(
        tuple((phase.name, phase.ns) for phase in message.phases),
        message.batch_size,
        message.instance,
        message.attempt,
        message.cached,
    )


def _write_rule(rule: TraceRule, message: pb.TraceRule) -> None:
    message.on, message.rate, message.count = rule.on, rule.rate, rule.limit
    message.log_frequency = rule.log_frequency
    message.without_times, message.tensors = not rule.times, rule.tensors
    message.turn = rule.turn


def write_log_rules(rules: LogRules, message: pb.LogRules) -> None:
    """Write the log rules into a message."""
    message.verbose, message.info, message.warning, message.error, message.format, _ = rules


def read_log_rules(message: pb.LogRules) -> LogRules:
    """Return the log rules in a message."""
    return LogRules(message.verbose, message.info, message.warning, message.error, message.format)


def _read_notices(frame: pb.ResponseFrame) -> Iterator[Notice]:
    if frame.HasField("traffic_keys"):
        keys = frame.traffic_keys
        yield TrafficKeys(tuple(sorted(keys.models.items())), keys.clients)
    if frame.HasField("model_shadows"):
        yield ModelShadows(tuple(sorted(frame.model_shadows.models.items())))
    if frame.HasField("cached_models"):
        notice = frame.cached_models
        yield CachedModels(tuple(notice.names), notice.shm_namespace, notice.digest_key)
    if frame.HasField("trace_rules"):
        rules = frame.trace_rules
        models = tuple((name, _read_rule(rule)) for name, rule in rules.models.items())
        yield TraceRules(_read_rule(rules.default_rule), models)
    if frame.HasField("log_rules"):
        yield read_log_rules(frame.log_rules)
    if frame.HasField("ownership"):
        owned = frame.ownership
        yield Ownership(owned.scheduler, owned.epoch, tuple(owned.models), owned.leaving)
    if frame.last_counts:
        yield LastCounts(frame.last_counts)
    if frame.models_changed:
        yield ModelsChanged(frame.models_changed)


def _read_rule(message: pb.TraceRule) -> TraceRule:
    return TraceRule(
        message.on,
        message.rate,
        message.count,
        message.log_frequency,
        not message.without_times,
        message.tensors,
        message.turn,
    )


def _write_fields(item: InferRequest, message: pb.InferRequest, now: float) -> None:
    """Write all but id, head and payloads."""
    if item.request_id:
        message.request_id = item.request_id
    if item.parameters:
        write_parameters(item.parameters, message.parameters)
    if item.priority:
        message.priority = item.priority
    if item.timeout_us:
        message.timeout_us = item.timeout_us
    message.remaining_us = remaining_us(item.deadline, now)
    if item.trace_context:
        message.trace_context = item.trace_context
    if item.error_status:
        write_error(item.error_status, message.error_status)
    if (
        item.digest
        or item.text_digest
        or item.caller_key
        or item.callable_models
        or item.sequence_owner
    ):
        message.digest, message.text_digest = item.digest, item.text_digest
        message.caller_key, message.callable_models = item.caller_key, item.callable_models
        message.sequence_owner = item.sequence_owner
    if item.caller or item.confined_caller:
        message.caller, message.confined_caller = item.caller, item.confined_caller
    if (
        item.accepts_many
        or item.resent
        or item.wants_timings
        or item.is_shadow
        or item.wants_sequence_place
        or item.copied_sequence
    ):
        message.sequence_place = item.wants_sequence_place
        message.copied_sequence = item.copied_sequence
        message.is_shadow = item.is_shadow
        message.accepts_many, message.resent = item.accepts_many, item.resent
        message.timings = item.wants_timings


def _read_request(message: pb.InferRequest, now: float) -> InferRequest:
    request = InferRequest(message.id, message.head, read_payloads(message.payloads))
    request.request_id = message.request_id
    if message.parameters:
        request.parameters = read_parameters(message.parameters)
    request.sequence_owner = message.sequence_owner
    request.priority = message.priority
    request.timeout_us = message.timeout_us
    request.deadline = deadline_of(message.remaining_us, now)
    request.trace_context = message.trace_context
    if message.HasField("error_status"):
        request.error_status = read_error(message.error_status)
    request.digest = message.digest
    request.caller = message.caller
    request.accepts_many = message.accepts_many
    request.resent = message.resent
    request.wants_timings = message.timings
    request.text_digest = message.text_digest
    request.caller_key = message.caller_key
    request.is_shadow = message.is_shadow
    request.callable_models = message.callable_models
    request.confined_caller = message.confined_caller
    request.wants_sequence_place = message.sequence_place
    request.copied_sequence = message.copied_sequence
    return request


def write_response(item: InferResponse, message: pb.InferResponse) -> None:
    """Write a response, without its id, into a message."""
    message.head = item.head
    if item.more:
        message.more = True
    if item.error is not None:
        write_error(item.error, message.error)
        if type(item) is MovedResponse:
            message.moved = True
        return
    write_payloads(item.payloads, message.payloads)


def read_response(message: pb.InferResponse) -> InferResponse:
    """Return the response that a message contains."""
    if message.HasField("error"):
        if message.moved:
            return moved_response(message.id)
        error_status = read_error(message.error)
        return InferResponse(message.id, message.head, error=error_status, more=message.more)
    payloads = read_payloads(message.payloads)
    response = InferResponse(message.id, message.head, payloads, more=message.more)
    # A response's payloads are all in shared memory or all inline.
    if payloads and type(payloads[0]) is SharedMemory:
        response.segment_name = payloads[0].segment_name
    return response


def write_payloads(
    payloads: Sequence[Payload], messages: RepeatedCompositeFieldContainer[pb.Payload]
) -> None:
    """Append payloads to a repeated field of Payload messages."""
    for payload in payloads:
        if isinstance(payload, SharedMemory):
            segment_name, offset, size_bytes = payload
            memory = messages.add().shared_memory
            memory.segment_name, memory.offset, memory.size_bytes = segment_name, offset, size_bytes
        else:
            messages.add(inline=payload)


def read_payloads(messages: Sequence[pb.Payload]) -> list[Payload]:
    """Return the payloads in a repeated field of Payload messages."""
    # Iterating over a repeated field ends with an exception, which costs more.
    if len(messages) == 1:
        message = messages[0]
        if message.HasField("shared_memory"):
            return [_read_shared_memory(message.shared_memory)]
        return [message.inline]
    return [
        _read_shared_memory(message.shared_memory)
        if message.HasField("shared_memory")
        else message.inline
        for message in messages
    ]


def _read_shared_memory(message: pb.SharedMemory) -> SharedMemory:
    return SharedMemory(message.segment_name, message.offset, message.size_bytes)


def write_parameters(
    parameters: dict[str, Parameter], messages: MutableMapping[str, kserve_pb2.InferParameter]
) -> None:
    """Fill a map of InferParameter. Integers above int64 are written as uint64."""
    for key, value in parameters.items():
        message = messages[key]
        if isinstance(value, bool):
            message.bool_param = value
        elif isinstance(value, int):
            if value < 1 << 63:
                message.int64_param = value
            else:
                message.uint64_param = value
        elif isinstance(value, float):
            message.double_param = value
        else:
            message.string_param = value


def read_parameters(
    messages: MutableMapping[str, kserve_pb2.InferParameter],
) -> dict[str, Parameter]:
    """Return the values in a map of InferParameter; leave out those without a value."""
    parameters: dict[str, Parameter] = {}
    for key, message in messages.items():
        choice = message.WhichOneof("parameter_choice")
        if choice:
            parameters[key] = getattr(message, choice)
    return parameters


def write_error(error_status: ErrorStatus, message: pb.ErrorStatus) -> None:
    """Write an error status into a message."""
    message.code, message.message, message.accepted, message.by_model, after_ms = error_status
    if after_ms:
        message.retry_after_ms = after_ms


def read_error(message: pb.ErrorStatus) -> ErrorStatus:
    """Return the error status in a message."""
    return ErrorStatus(
        message.code, message.message, message.accepted, message.by_model, message.retry_after_ms
    )


def remaining_us(deadline: float | None, now: float) -> int:
    """Return the microseconds until a deadline, at least 1; return 0 if there is no deadline."""
    return 0 if deadline is None else max(1, int((deadline - now) * 1e6))


def deadline_of(remaining: int, now: float) -> float | None:
    """Return a deadline on time.monotonic()'s clock; None for 0."""
    return now + remaining / 1e6 if remaining else None
