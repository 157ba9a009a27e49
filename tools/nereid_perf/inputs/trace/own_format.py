"""Reads Nereid's own trace format: JSON Lines with one request in each line.

{"at_s": 0.25, "model": "embed", "inputs": {"text": {"shape": [1, 1], "string_bytes": 40}}}
Optional: "version", "inputs", "sequence" ({"id", "start", "end"}) and "parameters". An input may
also have a "datatype", and "data" or "b64".
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import IO, TYPE_CHECKING, Any, Final

from nereid.core.tensors.datatypes import NAMES
from nereid.core.tensors.shapes import MAX_RANK
from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.trace.record import TraceInput, TraceRecord, TraceSequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nereid_perf.inputs.trace.record import TraceLimits

_MEMBERS: Final = frozenset({"at_s", "model", "version", "inputs", "sequence", "parameters"})
_INPUT_MEMBERS: Final = frozenset({"shape", "datatype", "data", "b64", "string_bytes"})
_SEQUENCE_MEMBERS: Final = frozenset({"id", "start", "end"})
_MAX_SECONDS: Final = 10.0**9
_MAX_ID: Final = (1 << 63) - 1


def read_lines(path: str, file: IO[str], limits: TraceLimits) -> Iterator[TraceRecord]:
    """Yield the file's requests; raise InputError at an invalid line."""
    number = 0
    while line := file.readline(limits.object_chars + 1):
        number += 1
        place = f"{path}:{number}"
        if len(line) > limits.object_chars:
            raise InputError(f"{place}: the line has more than {limits.object_chars} characters")
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place}: expected a JSON object in the line: {error}") from None
        yield _record(place, document)


def _record(place: str, document: Any) -> TraceRecord:
    members = _object(place, document, _MEMBERS)
    at_s = members.get("at_s")
    if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not 0 <= at_s <= _MAX_SECONDS:
        raise InputError(f"{place}: at_s: expected seconds since the trace's begin, found {at_s!r}")
    model, version = members.get("model"), members.get("version", "")
    if not isinstance(model, str) or not model:
        raise InputError(f"{place}: model: expected a model's name, found {model!r}")
    if not isinstance(version, str):
        raise InputError(f"{place}: version: expected a string, found {version!r}")
    inputs = members.get("inputs")
    parameters = members.get("parameters")
    return TraceRecord(
        place,
        round(at_s * 1e9),
        model,
        version,
        # Equal inputs mostly have equal JSON text.
        json.dumps([inputs, parameters]) if inputs or parameters else "",
        None if inputs is None else _inputs(f"{place}: inputs", inputs),
        _parameters(f"{place}: parameters", {} if parameters is None else parameters),
        _sequence(f"{place}: sequence", members.get("sequence")),
    )


def _inputs(place: str, inputs: Any) -> tuple[TraceInput, ...]:
    return tuple(
        _input(f"{place}.{name}", name, document)
        for name, document in _object(place, inputs).items()
    )


def _input(place: str, name: str, document: Any) -> TraceInput:
    members = _object(place, document, _INPUT_MEMBERS)
    shape = members.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) > MAX_RANK
        or any(type(size) is not int or not 0 <= size <= _MAX_ID for size in shape)
    ):
        raise InputError(f"{place}.shape: expected whole numbers of at least 0, found {shape!r}")
    datatype = members.get("datatype", "")
    if "datatype" in members and not (isinstance(datatype, str) and datatype in NAMES):
        raise InputError(f"{place}.datatype: expected one of {', '.join(sorted(NAMES))}")
    values = members.get("data")
    if "data" in members and not isinstance(values, list):
        raise InputError(f"{place}.data: expected an array")
    string_bytes = members.get("string_bytes")
    if string_bytes is not None and (type(string_bytes) is not int or string_bytes < 0):
        raise InputError(f"{place}.string_bytes: expected a whole number of at least 0")
    raw: bytes | None = None
    if "b64" in members:
        if "data" in members:
            raise InputError(f"{place}: expected data or b64, found both")
        try:
            raw = base64.b64decode(members["b64"], validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise InputError(f"{place}.b64: expected a string in base64") from None
    return TraceInput(name, tuple(shape), datatype, values, raw, string_bytes)


def _parameters(place: str, document: Any) -> tuple[tuple[str, str | int | float | bool], ...]:
    members = _object(place, document)
    for name, value in members.items():
        if type(value) not in (str, int, float, bool) or (
            type(value) is int and not -_MAX_ID <= value <= _MAX_ID
        ):
            raise InputError(
                f"{place}.{name}: expected a string, a number of 64 bits, true or false"
            )
    return tuple(members.items())


def _sequence(place: str, document: Any) -> TraceSequence | None:
    if document is None:
        return None
    members = _object(place, document, _SEQUENCE_MEMBERS)
    identity = members.get("id")
    is_number = type(identity) is int and 0 < identity <= _MAX_ID
    if not is_number and not (isinstance(identity, str) and identity):
        raise InputError(f"{place}.id: expected a number from 1 or a string, found {identity!r}")
    flags = members.get("start", False), members.get("end", False)
    if any(not isinstance(flag, bool) for flag in flags):
        raise InputError(f"{place}: start and end: expected true or false")
    assert isinstance(identity, int | str), "checked above"
    return TraceSequence(identity, *flags)


def _object(place: str, document: Any, allowed: frozenset[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise InputError(f"{place}: expected a JSON object, found {str(document)[:40]!r}")
    if allowed is not None and (unknown := document.keys() - allowed):
        raise InputError(
            f"{place}: unknown member '{min(unknown)}': expected {', '.join(sorted(allowed))}"
        )
    return document
