"""Writes results as JSON and reads them. Histograms have HdrHistogram's base64 form (V2).

A reader of version N reads all documents of version N: it skips unknown fields, and missing ones
get defaults. If a field is removed or changes its meaning, the version becomes N + 1.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import types
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin, get_type_hints

from hdrh.histogram import HdrHistogram

from nereid.core.files.json_document import read_document
from nereid_perf.measurement import LoadLevel, Measurement
from nereid_perf.output.result import Result
from nereid_perf.questions.comparison import Comparison

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA: Final = "nereid-perf/1"
# Far above the size of any result, and of any histogram that is not compressed.
_MAX_FILE_BYTES: Final = 64 << 20
_MAX_HISTOGRAM_BYTES: Final = 8 << 20
# Cookie and length before the compressed part.
_HEAD_BYTES: Final = 8

# Annotations use these names, which modules import only for type checking.
_NAMES: Final = {
    type_.__name__: type_ for type_ in (Comparison, HdrHistogram, LoadLevel, Mapping, Measurement)
}


class ResultFileError(ValueError):
    """Raised for a file that is not a result; the text says where and why."""


def write_result(result: Result, path: Path) -> None:
    """Write a result. May raise OSError."""
    path.write_text(result_text(result) + "\n", encoding="utf-8")


def read_result(path: Path) -> Result:
    """Read a result; raise ResultFileError if the file is not a result."""
    try:
        return parse_result(read_document(path, _MAX_FILE_BYTES))
    except OSError as error:
        raise ResultFileError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ResultFileError(f"{path}: {error}") from error


def result_text(result: Result) -> str:
    """Return a result as JSON."""
    return json.dumps({"schema": SCHEMA, **_plain(result)}, allow_nan=False)


def parse_result(text: str) -> Result:
    """Parse a result; raise ResultFileError if the text is not a result."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ResultFileError(f"this is no JSON document: {error}") from error
    except RecursionError as error:
        raise ResultFileError("its objects are nested too deeply") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema is None:
        raise ResultFileError("this is no result of nereid perf: it has no schema")
    if schema != SCHEMA:
        raise ResultFileError(f"its schema is {schema}, and this nereid reads {SCHEMA}")
    try:
        result: Result = _parsed(document, Result, "")
    except RecursionError as error:
        raise ResultFileError("its objects are nested too deeply") from error
    return result


def measurement_document(measurement: Measurement) -> dict[str, Any]:
    """Return one measurement as a document, for use in other files."""
    document: dict[str, Any] = _plain(measurement)
    return document


def parse_measurement(document: Any) -> Measurement:
    """Parse a document of measurement_document(); raise ResultFileError if it is invalid."""
    measurement: Measurement = _parsed(document, Measurement, "")
    return measurement


def _plain(value: Any) -> Any:
    if isinstance(value, HdrHistogram):
        return value.encode().decode("ascii")
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, tuple):
        return [_plain(element) for element in value]
    return value


def _parsed(value: Any, kind: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _parsed_fields(value, kind, where)
    if kind is HdrHistogram:
        return _parsed_histogram(value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ResultFileError(f"{where}: the number is too large") from None
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in arguments:
            return None
        return _parsed(value, arguments[0], where)
    if origin is tuple:
        _expect(value, list, where)
        inner = arguments * len(value) if arguments[-1] is not ... else arguments[:1] * len(value)
        if arguments[-1] is not ... and len(value) != len(arguments):
            raise ResultFileError(f"{where}: expected {len(arguments)} values")
        return tuple(
            _parsed(element, inner[index], f"{where}[{index}]")
            for index, element in enumerate(value)
        )
    if origin is Mapping:
        _expect(value, dict, where)
        return {
            key: _parsed(member, arguments[1], f"{where}.{key}") for key, member in value.items()
        }
    _expect(value, kind, where)
    return value


def _parsed_fields(value: Any, kind: Any, where: str) -> Any:
    _expect(value, dict, where)
    hints = _hints(kind)
    members = {}
    for field in dataclasses.fields(kind):
        inner = f"{where}.{field.name}".removeprefix(".")
        if field.name in value:
            members[field.name] = _parsed(value[field.name], hints[field.name], inner)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ResultFileError(f"{inner} is missing")
    return kind(**members)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, localns=_NAMES)


def _parsed_histogram(value: Any, where: str) -> HdrHistogram:
    _expect(value, str, where)
    try:
        _check_size(value)
        return HdrHistogram.decode(value)
    except RecursionError:
        raise
    # The decoder raises many types of errors: zlib.error, struct.error, TypeError, ...
    except Exception as error:
        raise ResultFileError(f"{where}: this is no encoded HdrHistogram: {error}") from error


def _check_size(histogram: str) -> None:
    """Raise ValueError for a histogram that is larger than any when it is decompressed."""
    decompressor = zlib.decompressobj()
    decompressor.decompress(base64.b64decode(histogram)[_HEAD_BYTES:], _MAX_HISTOGRAM_BYTES)
    if decompressor.unconsumed_tail:
        raise ValueError(f"more than {_MAX_HISTOGRAM_BYTES} bytes")


_KINDS: Final = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def _expect(value: Any, kind: type, where: str) -> None:
    # A bool is an int, but not a number here.
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ResultFileError(f"{where or 'the document'}: expected {_KINDS[kind]}")
