"""What workers say of their answers' outputs, as the heads of answers.

Remembered by what they said: a model's answers differ in little. What a worker says is checked,
since a model's own code runs in it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from nereid.backends import Response
from nereid.core.codecs import write_parameters
from nereid.core.datatypes import BYTES, NAMES, byte_size
from nereid.core.errors import Internal, NereidError
from nereid.core.messages import ErrorStatus, SharedMemory
from nereid.core.messages import error_status_of as error_of_error
from nereid.pb import kserve_pb2
from nereid.services.executor.backends.python.worker_site.nereid_worker import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_HEADS: Final = 1024
# Triton's names of codes to those of gRPC.
_CODES: Final = {
    "UNKNOWN": 2,
    "INTERNAL": 13,
    "NOT_FOUND": 5,
    "INVALID_ARG": 3,
    "UNAVAILABLE": 14,
    "UNSUPPORTED": 12,
    "ALREADY_EXISTS": 6,
    "CANCELLED": 1,
}


_NAMES: Final = {code: name for name, code in _CODES.items()}
# Triton has no name for a passed deadline.
_LATE: Final = {4: "UNAVAILABLE"}


def well_formed(text: object) -> str:
    """A text that can be sent: half a surrogate pair, which a model may have, is no character."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def code_name(code: int) -> str:
    """Triton's name of a gRPC status code."""
    return _NAMES.get(code) or _LATE.get(code, "INTERNAL")


class Heads:
    """The heads of one model's answers."""

    def __init__(self, model_name: str, model_version: str) -> None:
        self._name, self._version = model_name, model_version
        self._known: dict[bytes, tuple[bytes, list[int | None]]] = {}

    def head(self, meta: bytes, sizes: Sequence[int]) -> bytes:
        """The head for these outputs; raises Internal if the tensors are of other sizes."""
        known = self._known.get(meta)
        if known is None:
            if len(self._known) >= _MOST_HEADS:
                self._known.clear()
            known = self._known[meta] = self._make(meta)
        head, expected = known
        if sizes != expected and not _fit(sizes, expected):
            raise Internal(f"the worker of model '{self._name}' sent tensors of wrong sizes")
        return head

    def response(self, reply: wire.Reply, room: SharedMemory | None) -> Response:
        """What a worker answered; room: where it may have put outputs."""
        member, flags, meta, tensors = reply
        more = bool(flags & wire.MORE)
        if flags & wire.ERROR:
            return Response(member, more, error_status_of(meta))
        if flags & wire.EMPTY:
            return Response(member, more)
        try:
            sizes = [each.size if type(each) is wire.Range else len(each) for each in tensors]
            head = self.head(meta, sizes)
            if wire.Range in map(type, tensors):
                tensors = [_in_room(each, room) for each in tensors]
        except NereidError as error:
            return Response(member, more, error_of_error(error))
        return Response._make((member, more, None, head, tensors))

    def _make(self, meta: bytes) -> tuple[bytes, list[int | None]]:
        response = kserve_pb2.ModelInferResponse(model_name=self._name, model_version=self._version)
        sizes: list[int | None] = []
        try:
            told = json.loads(meta)
            outputs = told
            if isinstance(told, dict):
                outputs = told["outputs"]
                write_parameters(told["parameters"], response.parameters)
            for name, datatype, shape in outputs:
                if datatype not in NAMES or any(size < 0 for size in shape):
                    raise ValueError(datatype)
                response.outputs.add(name=name, datatype=datatype, shape=shape)
                sizes.append(None if datatype == BYTES else byte_size(datatype, shape))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Internal(
                f"the worker of model '{self._name}' sent outputs that make no sense"
            ) from error
        return response.SerializeToString(), sizes


def _in_room(tensor: Any, room: SharedMemory | None) -> SharedMemory:
    """Where a worker says that it has put an output. Raises Internal: not where it may."""
    if type(tensor) is not wire.Range or room is None:
        raise Internal("the worker of the model left an output where none can be")
    if tensor.segment != room.segment_name or tensor.offset + tensor.size > room.size_bytes:
        raise Internal("the worker of the model left an output outside of its room")
    return SharedMemory(*tensor)


def _fit(sizes: Sequence[int], expected: Sequence[int | None]) -> bool:
    return len(sizes) == len(expected) and all(
        want in (None, size) for want, size in zip(expected, sizes, strict=True)
    )


def error_status_of(meta: bytes) -> ErrorStatus:
    """The fault that a worker tells of."""
    try:
        code, message = json.loads(meta)
        return ErrorStatus(_CODES[code], well_formed(message), accepted=True)
    except (ValueError, TypeError, KeyError):
        return ErrorStatus(
            Internal.code, "the model failed in a way that cannot be told", accepted=True
        )
