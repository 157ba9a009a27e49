"""Control tensors: inputs that the batcher adds to each request of a stateful model.

Their shape is [1], or [1, 1] with a batch dimension. So all requests get the same head bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import InvalidArgument
from nereid.core.tensors import datatypes
from nereid.core.tensors.datatypes import BYTES
from nereid.core.wire.messages import InferRequest
from nereid.model_config.sequence_controls import control_datatype
from nereid.pb import kserve_pb2, model_config_pb2
from nereid_scheduler.batching.queues import request_prefix
from nereid_scheduler.core.requests.entry import Entry, RequestState, ValidHead

if TYPE_CHECKING:
    from nereid.core.correlation_ids import CorrelationId
    from nereid.core.wire.messages import InferResponse, Payload
    from nereid.model_config import ModelConfig

_Control = model_config_pb2.ModelSequenceBatching.Control

# False and true.
_Pair = tuple[bytes, bytes]
# START, END and READY.
_Flags = tuple[bool, bool, bool]
_FLAG_INDEX: Final = {
    _Control.CONTROL_SEQUENCE_START: 0,
    _Control.CONTROL_SEQUENCE_END: 1,
    _Control.CONTROL_SEQUENCE_READY: 2,
}
_FORMATS: Final = {"BOOL": "<?", "INT32": "<i", "FP32": "<f"}
_INTEGER_BYTES: Final = {"UINT64": 8, "INT64": 8, "UINT32": 4, "INT32": 4}
# Null requests are all zeros and cached by their heads.
_MAX_NULLS: Final = 256
_MAX_NULL_BYTES: Final = 65536
_MAX_NULL_HEAD_BYTES: Final = 4096


class ControlTensors:
    """The control tensors of one model."""

    def __init__(self, config: ModelConfig) -> None:
        self._model_name = config.name
        # A flag: index and bytes of both values. The correlation id: datatype.
        self._tensors: list[tuple[int, _Pair] | str] = []
        self._names: list[str] = []
        message = kserve_pb2.ModelInferRequest()
        shape = [1, 1] if config.max_batch_size > 0 else [1]
        for control_input in config.proto.sequence_batching.control_input:
            for control in control_input.control:
                self._tensors.append(_tensor_of(control))
                self._names.append(control_input.name)
                datatype = control_datatype(control)
                message.inputs.add(name=control_input.name, datatype=datatype, shape=shape)
        # True if the correlation id has a control tensor, whose type it must fit.
        self.has_id = any(isinstance(tensor, str) for tensor in self._tensors)
        self._head_suffix = message.SerializeToString()
        self._nulls = BoundedCache[bytes, list[bytes]](_MAX_NULLS, _MAX_NULL_HEAD_BYTES)

    def check(self, correlation_id: CorrelationId, request_id: str) -> None:
        """Raise InvalidArgument if a non-empty correlation id does not fit its control tensor."""
        if not correlation_id:
            return
        got = BYTES if isinstance(correlation_id, str) else "UINT64"
        for name, tensor in zip(self._names, self._tensors, strict=True):
            if isinstance(tensor, str) and (tensor == BYTES) is not (got == BYTES):
                raise InvalidArgument(
                    f"{request_prefix(request_id)}sequence batching control '{name}' data-type is"
                    f" '{got}', but model '{self._model_name}' expects '{tensor}'"
                )

    def add_to(
        self, request: InferRequest, correlation_id: CorrelationId, *, start: bool, end: bool
    ) -> None:
        """Add the control tensors to a request."""
        if self._tensors:
            request.head += self._head_suffix
            request.payloads += self._values((start, end, True), correlation_id)

    @property
    def has_text_ids(self) -> bool:
        """True if the model's control tensor for correlation ids is of strings."""
        return BYTES in self._tensors

    def replace(
        self, request: InferRequest, correlation_id: CorrelationId, *, start: bool, end: bool
    ) -> None:
        """Replace the values of the control tensors that were added to a request."""
        if self._tensors:
            values = self._values((start, end, True), correlation_id)
            request.payloads[-len(values) :] = values

    def null_entry(self, like: Entry, now_ns: int) -> Entry:
        """Return an entry of zeros, with READY false, for a slot without a request."""
        zeros = self._nulls.get(like.request.head)
        if zeros is None:
            inputs = kserve_pb2.ModelInferRequest.FromString(like.request.head).inputs
            own = inputs[: len(inputs) - len(self._tensors)]
            zeros = [bytes(_zero_bytes(tensor)) for tensor in own]
            if sum(map(len, zeros)) <= _MAX_NULL_BYTES:
                self._nulls.remember(like.request.head, zeros)
        payloads: list[Payload] = [*zeros, *self._values((False, False, False), 0)]
        request = InferRequest(0, like.request.head, payloads)
        entry = Entry(request, _NULL_HEAD, _drop, like.owner, now_ns)
        entry.state = RequestState.RESPONDED
        return entry

    def _values(self, flags: _Flags, correlation_id: CorrelationId) -> list[bytes]:
        values = []
        for tensor in self._tensors:
            if isinstance(tensor, str):
                values.append(_correlation_bytes(tensor, correlation_id))
            else:
                index, pair = tensor
                values.append(pair[flags[index]])
        return values


_NULL_HEAD: Final = ValidHead(0, None, (), ())


def is_null(entry: Entry) -> bool:
    """Return whether an entry stands for a slot without a request."""
    return entry.valid is _NULL_HEAD


def _drop(response: InferResponse) -> None:
    """Ignore the response of a null request."""


def _tensor_of(control: _Control) -> tuple[int, _Pair] | str:
    datatype = control_datatype(control)
    if control.kind == _Control.CONTROL_SEQUENCE_CORRID:
        return datatype
    pack = struct.Struct(_FORMATS[datatype]).pack
    pair = control.int32_false_true or control.fp32_false_true or control.bool_false_true
    return _FLAG_INDEX[control.kind], (pack(pair[0]), pack(pair[1]))


def _correlation_bytes(datatype: str, correlation_id: CorrelationId) -> bytes:
    if datatype == BYTES:
        text = correlation_id.encode() if isinstance(correlation_id, str) else b""
        return struct.pack("<I", len(text)) + text
    number = correlation_id if isinstance(correlation_id, int) else 0
    size = _INTEGER_BYTES[datatype]
    return (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _zero_bytes(tensor: kserve_pb2.ModelInferRequest.InferInputTensor) -> int:
    size = datatypes.byte_size(tensor.datatype, tensor.shape)
    if size is not None:
        return size
    count = 4
    for dim in tensor.shape:
        count *= dim
    return count
