"""Reads the trace format of Triton and Nereid (--trace-config triton,file=).

Requests with a parent are left out, because the server sends them again. Only level=TENSORS records
inputs, and large inputs lack their bytes.
"""

from __future__ import annotations

import json
from math import prod
from typing import IO, TYPE_CHECKING, Any, Final

from nereid.core.tensors.datatypes import BYTES, NAMES
from nereid.core.tensors.shapes import MAX_RANK
from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.trace.record import TraceInput, TraceRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid_perf.inputs.trace.record import TraceLimits

# The first that a request has is its arrival. At GRPC_WAITREAD_START, Triton only begins to wait.
_ARRIVALS: Final = ("HTTP_RECV_START", "GRPC_WAITREAD_END", "REQUEST_START")
_INPUT: Final = "TENSOR_QUEUE_INPUT"
_CHUNK_CHARS: Final = 1 << 16
_FLOATS: Final = frozenset({"FP16", "FP32", "FP64", "BF16"})
_SPACE: Final = " \t\r\n"


class _Request:
    __slots__ = ("arrival", "has_parent", "inputs", "model", "moment")

    def __init__(self) -> None:
        self.model = ""
        self.has_parent = False
        self.arrival = 0
        # Index in _ARRIVALS of the moment that gives the time of arrival.
        self.moment = len(_ARRIVALS)
        self.inputs: list[TraceInput] = []


def read_array(path: str, file: IO[str], limits: TraceLimits) -> Iterator[TraceRecord]:
    """Read the whole file, then yield its requests, with times by the host's clock."""
    requests: dict[int, _Request] = {}
    # Key: an input. Value: its number, and the one object that is kept for all equal inputs.
    known: dict[TraceInput, tuple[int, TraceInput]] = {}
    kept_bytes = 0
    for number, document in enumerate(_objects(path, file, limits), 1):
        place = f"{path}: object {number}"
        identity = document.get("id") if isinstance(document, dict) else None
        if type(identity) is not int:
            raise InputError(f"{place}: expected an object with a number as its id")
        if identity not in requests and len(requests) >= limits.requests:
            raise InputError(f"{place}: the file has more than {limits.requests} requests")
        request = requests.setdefault(identity, _Request())
        _add_model(place, request, document)
        _add_moments(place, request, document.get("timestamps", ()))
        if document.get("activity") == _INPUT:
            tensor = _tensor(f"{place}: tensor", document.get("tensor"))
            if tensor not in known:
                kept_bytes += len(tensor.raw or b"")
                if kept_bytes > limits.distinct_bytes:
                    raise InputError(
                        f"{place}: different inputs take more than {limits.distinct_bytes} bytes"
                    )
            request.inputs.append(known.setdefault(tensor, (len(known), tensor))[1])
    for identity, request in requests.items():
        if request.has_parent or not request.model:
            continue
        place = f"{path}: request {identity}"
        if request.moment == len(_ARRIVALS):
            raise InputError(f"{place}: expected a time {' or '.join(_ARRIVALS)}: level=TIMESTAMPS")
        key = ",".join(str(known[tensor][0]) for tensor in request.inputs)
        yield TraceRecord(
            place,
            request.arrival,
            request.model,
            key=f"{path}:{key}" if key else "",
            inputs=tuple(request.inputs) or None,
        )


def _add_model(place: str, request: _Request, document: dict[str, Any]) -> None:
    if "parent_id" in document:
        request.has_parent = True
    if "model_name" in document:
        if not isinstance(document["model_name"], str):
            raise InputError(f"{place}: model_name: expected a string")
        request.model = document["model_name"]


def _add_moments(place: str, request: _Request, moments: Any) -> None:
    if not isinstance(moments, list | tuple):
        raise InputError(f"{place}: timestamps: expected an array")
    for moment in moments:
        name, ns = (
            (moment.get("name"), moment.get("ns")) if isinstance(moment, dict) else (None, None)
        )
        if not isinstance(name, str) or type(ns) is not int:
            raise InputError(f"{place}: timestamps: expected objects with name and ns")
        if name in _ARRIVALS and _ARRIVALS.index(name) < request.moment:
            request.moment, request.arrival = _ARRIVALS.index(name), ns


def _tensor(place: str, document: Any) -> TraceInput:
    if not isinstance(document, dict):
        raise InputError(f"{place}: expected an object")
    name, datatype = document.get("name"), document.get("dtype")
    shape, data = document.get("shape"), document.get("data", "")
    if not isinstance(name, str) or not isinstance(data, str):
        raise InputError(f"{place}: name and data: expected strings")
    if not isinstance(datatype, str) or datatype not in NAMES:
        raise InputError(f"{place} '{name}': dtype: expected one of {', '.join(sorted(NAMES))}")
    try:
        sizes = tuple(int(size) for size in str(shape).split(",")) if shape else ()
    except ValueError:
        sizes = (-1,)
    if min(sizes, default=0) < 0 or len(sizes) > MAX_RANK:
        raise InputError(f"{place} '{name}': shape: expected sizes as in '1,16', found {shape!r}")
    return _with_data(TraceInput(name, sizes, datatype), data, place)


def _with_data(tensor: TraceInput, data: str, place: str) -> TraceInput:
    """Return the input with its data. If BYTES elements cannot be told apart, omit the data."""
    # Importing numpy takes 0.1 s, and most traces do not need it.
    from nereid_perf.inputs.tensors import raw_of  # noqa: PLC0415

    count = prod(tensor.shape)
    if not data:
        return tensor
    values: list[Any]
    if tensor.datatype == BYTES:
        values = data[1:-1].split('","') if data != '""' else [""]
        if len(values) != count or len(data) < len('""'):
            # Estimate the size of a text; the data has quotation marks and commas between texts.
            each = max(0, len(data) // max(count, 1) - len('"",'))
            return TraceInput(tensor.name, tensor.shape, BYTES, string_bytes=each)
    else:
        parse = float if tensor.datatype in _FLOATS else int
        try:
            values = [parse(text) for text in data.split(",")]
        except ValueError:
            raise InputError(f"{place} '{tensor.name}': data: expected numbers") from None
        if len(values) != count:
            raise InputError(
                f"{place} '{tensor.name}': data: expected {count} elements, found {len(values)}"
            )
    try:
        raw, _ = raw_of(values, tensor.datatype)
    except ValueError as error:
        raise InputError(f"{place} '{tensor.name}': data: {error}") from None
    return TraceInput(tensor.name, tensor.shape, tensor.datatype, raw=raw)


def _objects(path: str, file: IO[str], limits: TraceLimits) -> Iterator[Any]:
    """Yield the elements of the array; only one at a time is in memory."""
    text = _Text(file)
    if text.next_character() != "[":
        raise InputError(f"{path}: expected a JSON array of objects")
    text.skip()
    number = 1
    while text.next_character() != "]":
        place = f"{path}: object {number}"
        if number > 1:
            if text.next_character() != ",":
                raise InputError(f"{place}: expected a comma before it, or the array's end")
            text.skip()
        yield text.next_object(place, limits.object_chars)
        number += 1
    text.skip()
    if text.next_character():
        raise InputError(f"{path}: expected nothing after the array's end")


class _Text:
    """The text of a file, read in chunks, so that only a part of it is in memory."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._decode = json.JSONDecoder().raw_decode
        self._buffer = ""
        self._position = 0

    def next_character(self) -> str:
        """Return the next character that is not a space, or "" at the end of the file."""
        while True:
            while self._position < len(self._buffer):
                character = self._buffer[self._position]
                if character not in _SPACE:
                    return character
                self._position += 1
            if not self._read(_CHUNK_CHARS):
                return ""

    def skip(self) -> None:
        """Skip the character that next_character() returned."""
        self._position += 1

    def next_object(self, place: str, most_chars: int) -> Any:
        """Return the next JSON value, and move behind it."""
        if not self.next_character():
            raise InputError(f"{place}: expected JSON: the file ends before the array does")
        chunk_chars = _CHUNK_CHARS
        while True:
            try:
                document, self._position = self._decode(self._buffer, self._position)
                return document
            except RecursionError as error:
                raise InputError(f"{place}: expected JSON: {error}") from None
            except ValueError as error:
                # The object may continue in the part of the file that was not read yet.
                if len(self._buffer) - self._position > most_chars:
                    raise InputError(f"{place}: more than {most_chars} characters") from None
                if not self._read(chunk_chars):
                    raise InputError(f"{place}: expected JSON: {error}") from None
            # Chunks grow, so that a long object is not parsed from its beginning too many times.
            chunk_chars *= 2

    def _read(self, chars: int) -> bool:
        more = self._file.read(chars)
        self._buffer = self._buffer[self._position :] + more
        self._position = 0
        return bool(more)
