"""Converts workers' replies to responses; a head is everything in a response except its tensors.

Replies are checked, because the model's code runs in the worker and may write anything.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from nereid.backends import Response
from nereid.bounded_cache import BoundedCache
from nereid.core.errors import Internal, NereidError
from nereid.core.tensors.datatypes import BYTES, NAMES, byte_size
from nereid.core.wire.codecs import write_parameters
from nereid.core.wire.messages import ErrorStatus
from nereid.core.wire.messages import error_status_of as error_of_error
from nereid.pb import kserve_pb2
from nereid.shm.reference import SharedMemory
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid.model_config.reshapes import Reshape

_MAX_HEADS: Final = 1024
_new_tuple: Final = tuple.__new__
_CODES: Final = {
    "UNKNOWN": 2,
    "INTERNAL": 13,
    "NOT_FOUND": 5,
    "INVALID_ARG": 3,
    "UNAVAILABLE": 14,
    "UNSUPPORTED": 12,
    "ALREADY_EXISTS": 6,
    "CANCELLED": 1,
    "PERMISSION_DENIED": 7,
}
_NAMES: Final = {code: name for name, code in _CODES.items()}
# Triton has no name for DEADLINE_EXCEEDED (4).
_UNNAMED: Final = {4: "UNAVAILABLE"}


def well_formed(text: object) -> str:
    """Return the text without lone surrogates, so that UTF-8 can encode it."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def code_name(code: int) -> str:
    """Return Triton's name for a gRPC status code."""
    return _NAMES.get(code) or _UNNAMED.get(code, "INTERNAL")


class ResponseHeads:
    """Makes and caches the heads of one model's responses."""

    def __init__(
        self,
        model_name: str,
        model_version: str,
        reshapes: Mapping[str, Reshape] | None = None,
    ) -> None:
        self._name, self._version = model_name, model_version
        self._reshapes = reshapes or {}
        # Maps metadata to the head and the tensors' sizes in bytes. None stands for BYTES, which
        # may have any size.
        self._known: BoundedCache[bytes, tuple[bytes, list[int | None]]]
        self._known = BoundedCache(_MAX_HEADS)

    def head_of(self, meta: bytes, sizes: Sequence[int]) -> bytes:
        """Return the head for outputs with this metadata; raise Internal if they do not fit it."""
        known = self._known.get(meta)
        if known is None:
            known = self._known.remember(meta, self._make_head(meta))
        head, expected = known
        if sizes != expected and not _fit(sizes, expected):
            raise Internal(f"the worker of model '{self._name}' sent tensors of wrong sizes")
        return head

    def response_of(
        self,
        member: int,
        flags: int,
        meta: bytes,
        tensors: Sequence[Any],
        buffer: SharedMemory | None,
    ) -> Response:
        """Return the response for a worker's reply (wire.Reply); an error for a malformed one."""
        more = bool(flags & wire.MORE)
        if flags & wire.ERROR:
            return Response(member, more, error_status_of(meta))
        if flags & wire.EMPTY:
            return Response(member, more)
        try:
            sizes = [
                tensor.size if type(tensor) is wire.Range else len(tensor) for tensor in tensors
            ]
            head = self.head_of(meta, sizes)
            if wire.Range in map(type, tensors):
                tensors = [_in_buffer(tensor, buffer) for tensor in tensors]
        except NereidError as error:
            return Response(member, more, error_of_error(error))
        # This call is quicker than Response._make().
        return _new_tuple(Response, (member, more, None, head, tensors))

    def _make_head(self, meta: bytes) -> tuple[bytes, list[int | None]]:
        response = kserve_pb2.ModelInferResponse(model_name=self._name, model_version=self._version)
        sizes: list[int | None] = []
        try:
            outputs = json.loads(meta)
            if isinstance(outputs, dict):
                write_parameters(outputs["parameters"], response.parameters)
                outputs = outputs["outputs"]
            for name, datatype, shape in outputs:
                if datatype not in NAMES or any(size < 0 for size in shape):
                    raise ValueError(datatype)
                reshape = self._reshapes.get(name)
                seen = shape if reshape is None else reshape.apply(tuple(shape))
                response.outputs.add(name=name, datatype=datatype, shape=seen)
                sizes.append(None if datatype == BYTES else byte_size(datatype, shape))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise Internal(f"the worker of model '{self._name}' sent malformed outputs") from error
        return response.SerializeToString(), sizes


def _in_buffer(tensor: Any, buffer: SharedMemory | None) -> SharedMemory:
    """Return an output in the request's output buffer; raise Internal if it is not there."""
    if type(tensor) is not wire.Range or buffer is None:
        raise Internal("the worker of the model put an output in shared memory without a buffer")
    if tensor.segment != buffer.segment_name or tensor.offset + tensor.size > buffer.size_bytes:
        raise Internal("the worker of the model put an output outside of its buffer")
    return SharedMemory(*tensor)


def _fit(sizes: Sequence[int], expected: Sequence[int | None]) -> bool:
    return len(sizes) == len(expected) and all(
        want in (None, size) for want, size in zip(expected, sizes, strict=True)
    )


def error_status_of(meta: bytes) -> ErrorStatus:
    """Return the error in a worker's reply. A malformed reply becomes an internal error."""
    try:
        code, message, by_model = json.loads(meta)
        return ErrorStatus(
            _CODES[code], well_formed(message), accepted=True, by_model=by_model is True
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return ErrorStatus(
            Internal.code, "the model failed in a way that cannot be told", accepted=True
        )
