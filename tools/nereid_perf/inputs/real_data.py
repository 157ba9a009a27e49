"""Reads a user's own data: JSON files and directories in perf_analyzer's format.

{"data": [{"X": [...]}, {"X": {"content": [...], "shape": [...]}}, {"X": {"b64": "..."}}]}
A step is the inputs of one request, without the batch dimension. An array of steps is a stream,
which one sequence sends. "validation_data" has expected outputs. A directory is one step, with a
file for each input. A "datatype" is for servers whose metadata has no inputs.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.byte_elements import join_bytes, split_bytes
from nereid.core.tensors.datatypes import BYTES, NAMES, SIZE_BYTES
from nereid.core.tensors.shapes import MAX_RANK, VARIABLE, format_shape, shape_fits
from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.signature import TensorSpec
from nereid_perf.inputs.tensors import Tensor, raw_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Dims = tuple[int, ...]

MAX_FILE_BYTES: Final = 1 << 30
_MEMBERS: Final = frozenset({"data", "validation_data"})
_TENSOR_MEMBERS: Final = frozenset({"content", "b64", "shape", "datatype"})
# This key names the model for other kinds of servers. Here it counts only for a tensor.
_NO_TENSOR: Final = "model"
_MAX_DIMENSION: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Step:
    """The inputs of one request and its expected outputs; shapes lack the batch dimension."""

    inputs: tuple[Tensor, ...]
    expected: tuple[Tensor, ...] = ()


Stream = tuple[Step, ...]


class DataReader:
    """Reads the data files of one model; inputs and outputs are empty if the server names none."""

    def __init__(
        self,
        inputs: Iterable[TensorSpec],
        outputs: Iterable[TensorSpec],
        options: Mapping[str, Dims],
        max_file_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        self._inputs = {spec.name: spec for spec in inputs}
        self._outputs = {spec.name: spec for spec in outputs}
        self._options = options
        self._left_bytes = max_file_bytes
        self._max_file_bytes = max_file_bytes

    def read(self, paths: Iterable[str]) -> tuple[Stream, ...]:
        """Return all files' streams; steps outside arrays are one stream. May raise InputError."""
        streams: list[Stream] = []
        single: list[Step] = []
        for text in paths:
            path = Path(text)
            if path.is_dir():
                single.append(self._directory(path))
                continue
            found, is_streams = self._document(path)
            if is_streams:
                streams += found
            else:
                single += found[0]
        if single and streams:
            raise InputError("--input-data: expected steps or arrays of steps, found both")
        return (tuple(single),) if single else tuple(streams)

    def _document(self, path: Path) -> tuple[list[Stream], bool]:
        """Return a file's streams, and whether they are arrays of steps in the file."""
        try:
            document = json.loads(self._content(path))
        except json.JSONDecodeError as error:
            raise InputError(
                f"{path}:{error.lineno}:{error.colno}: expected JSON: {error.msg}"
            ) from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: expected JSON: {error}") from None
        members = document if isinstance(document, dict) else {}
        data = members.get("data")
        if not isinstance(data, list) or not data:
            raise InputError(f'{path}: expected an object with steps: {{"data": [{{...}}]}}')
        if unknown := members.keys() - _MEMBERS:
            raise InputError(
                f"{path}: unknown member '{min(unknown)}': expected data and validation_data"
            )
        expected = members.get("validation_data")
        if expected is None:
            expected = [None] * len(data)
        if not isinstance(expected, list) or len(expected) != len(data):
            raise InputError(
                f"{path}: validation_data: expected an array as long as data, which has {len(data)}"
            )
        if not isinstance(data[0], list):
            return [self._stream(path, data, expected, "")], False
        return self._arrays(path, data, expected), True

    def _arrays(self, path: Path, data: list[Any], expected: list[Any]) -> list[Stream]:
        streams = []
        for index, (steps, outputs) in enumerate(zip(data, expected, strict=True)):
            if not isinstance(steps, list) or not steps:
                raise InputError(f"{path}: data[{index}]: expected an array of steps, as data[0]")
            if outputs is None:
                outputs = [None] * len(steps)  # noqa: PLW2901
            if not isinstance(outputs, list) or len(outputs) != len(steps):
                raise InputError(
                    f"{path}: validation_data[{index}]: expected an array of {len(steps)} steps, "
                    f"as data[{index}]"
                )
            streams.append(self._stream(path, steps, outputs, f"[{index}]"))
        return streams

    def _stream(self, path: Path, steps: list[Any], outputs: list[Any], index: str) -> Stream:
        return tuple(
            Step(
                self._tensors(f"{path}: data{index}[{number}]", step, self._inputs),
                ()
                if expected is None
                else self._tensors(
                    f"{path}: validation_data{index}[{number}]",
                    expected,
                    self._outputs,
                    are_inputs=False,
                ),
            )
            for number, (step, expected) in enumerate(zip(steps, outputs, strict=True))
        )

    def _tensors(
        self, place: str, step: Any, specs: Mapping[str, TensorSpec], *, are_inputs: bool = True
    ) -> tuple[Tensor, ...]:
        if not isinstance(step, dict):
            raise InputError(f"{place}: expected an object with a member for each tensor")
        kind = "input" if are_inputs else "output"
        tensors = []
        for name, value in step.items():
            if name == _NO_TENSOR and name not in specs and isinstance(value, str):
                continue
            spec = specs.get(name) or _declared(f"{place}.{name}", name, value)
            if spec is None:
                known = f"expected {', '.join(specs)}" if specs else "give it a datatype"
                raise InputError(f"{place}: the model has no {kind} '{name}': {known}")
            option = self._options.get(name) if are_inputs else None
            tensors.append(_tensor(f"{place}.{name}", spec, value, option))
        if are_inputs:
            for spec in specs.values():
                if spec.name not in step and not spec.is_optional:
                    raise InputError(
                        f"{place}: expected a value of input '{spec.name}', found none"
                    )
        # The model's order, because the file's order may differ.
        places = {name: index for index, name in enumerate(specs)}
        return tuple(
            sorted(tensors, key=lambda tensor: (places.get(tensor.name, len(places)), tensor.name))
        )

    def _directory(self, path: Path) -> Step:
        known = {**self._inputs, **self._outputs}
        names = sorted(file.name for file in path.iterdir())
        for name in names:
            if name not in known:
                raise InputError(
                    f"{path / name}: expected files named as tensors of the model: "
                    f"{', '.join(known)}"
                )
        for spec in self._inputs.values():
            if spec.name not in names and not spec.is_optional:
                raise InputError(f"{path / spec.name}: expected a file for this input")
        return Step(
            tuple(
                self._file(path / spec.name, spec, self._options.get(spec.name))
                for spec in self._inputs.values()
                if spec.name in names
            ),
            tuple(
                self._file(path / spec.name, spec, None, may_vary=True)
                for spec in self._outputs.values()
                if spec.name in names
            ),
        )

    def _file(
        self, path: Path, spec: TensorSpec, option: Dims | None, *, may_vary: bool = False
    ) -> Tensor:
        content = self._content(path)
        if spec.datatype == BYTES:
            lines = content.removesuffix(b"\n").split(b"\n")
            content, count = join_bytes(lines), len(lines)
        else:
            size = SIZE_BYTES[spec.datatype]
            count, rest = divmod(len(content), size)
            if rest:
                raise InputError(
                    f"{path}: expected {spec.datatype} elements of {size} bytes each, found "
                    f"{len(content)} bytes"
                )
        shape = _shape(str(path), spec, option, count) if not may_vary else (count,)
        return Tensor(spec.name, spec.datatype, shape, content)

    def _content(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                content = file.read(self._left_bytes + 1)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read: {error.strerror}: --input-data takes random, zero, a "
                "JSON file or a directory"
            ) from error
        self._left_bytes -= len(content)
        if self._left_bytes < 0:
            raise InputError(f"{path}: the data takes more than {self._max_file_bytes} bytes")
        return content


def _tensor(place: str, spec: TensorSpec, value: Any, option: Dims | None) -> Tensor:
    shape: Dims | None = None
    content = value
    if isinstance(value, dict):
        if unknown := value.keys() - _TENSOR_MEMBERS:
            raise InputError(
                f"{place}: unknown member '{min(unknown)}': expected content or b64, and shape"
            )
        if "shape" in value:
            shape = _given_shape(place, spec, value["shape"])
        content = value.get("content", value)
    if isinstance(content, list):
        try:
            raw, count = raw_of(content, spec.datatype)
        except ValueError as error:
            raise InputError(f"{place}: {error}") from None
    elif isinstance(content, dict) and "b64" in content:
        raw, count = _decoded(place, spec.datatype, content["b64"])
    else:
        raise InputError(f'{place}: expected an array of elements, or {{"b64": "..."}}')
    if shape is not None and prod(shape) != count:
        raise InputError(
            f"{place}: expected {prod(shape)} elements for the shape {format_shape(shape)}, found "
            f"{count}"
        )
    return Tensor(spec.name, spec.datatype, shape or _shape(place, spec, option, count), raw)


def _given_shape(place: str, spec: TensorSpec, shape: Any) -> Dims:
    if (
        not isinstance(shape, list)
        or len(shape) > MAX_RANK
        or any(type(size) is not int or not 0 <= size <= _MAX_DIMENSION for size in shape)
    ):
        raise InputError(f"{place}: shape: expected an array of whole numbers of at least 0")
    if not shape_fits(shape, spec.dims):
        raise InputError(
            f"{place}: shape: expected one as {format_shape(spec.dims)} (without the batch "
            f"dimension), found {format_shape(shape)}"
        )
    return tuple(shape)


def _shape(place: str, spec: TensorSpec, option: Dims | None, count: int) -> Dims:
    """Return the shape of a tensor with this many elements; one size may be variable."""
    dims = spec.dims if option is None else option
    variable = dims.count(VARIABLE)
    fixed = prod(dim for dim in dims if dim != VARIABLE)
    if variable > 1:
        raise InputError(
            f"{place}: the model's shape is {format_shape(dims)}: give the sizes of this tensor as "
            f'{{"content": [...], "shape": [...]}} or by --shape {spec.name}:...'
        )
    if count != fixed if not variable else not fixed or count % fixed:
        raise InputError(
            f"{place}: expected {'a multiple of ' if variable else ''}{fixed} elements for the "
            f"shape {format_shape(dims)}, found {count}"
        )
    return tuple(count // fixed if dim == VARIABLE else dim for dim in dims)


def _decoded(place: str, datatype: str, text: Any) -> tuple[bytes, int]:
    try:
        raw = base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise InputError(f"{place}: b64: expected a string in base64") from None
    if datatype == BYTES:
        try:
            return raw, len(split_bytes(raw))
        except InvalidArgument as error:
            raise InputError(
                f"{place}: b64: expected BYTES elements, each behind its length in 4 bytes "
                f"(little-endian): {error}"
            ) from None
    size = SIZE_BYTES[datatype]
    if len(raw) % size:
        raise InputError(
            f"{place}: b64: expected {datatype} elements of {size} bytes each, found {len(raw)} "
            "bytes"
        )
    return raw, len(raw) // size


def _declared(place: str, name: str, value: Any) -> TensorSpec | None:
    """Return the spec of a tensor that the metadata lacks; `None` if its value has no datatype."""
    if not isinstance(value, dict) or "datatype" not in value:
        return None
    datatype, shape = value["datatype"], value.get("shape")
    if not isinstance(datatype, str) or datatype not in NAMES:
        raise InputError(f"{place}: datatype: expected one of {', '.join(sorted(NAMES))}")
    if not isinstance(shape, list):
        raise InputError(f"{place}: expected a shape, as the server's metadata has none")
    return TensorSpec(name, datatype, (VARIABLE,) * len(shape))
