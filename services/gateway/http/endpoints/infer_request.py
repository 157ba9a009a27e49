"""The body of an HTTP infer request to an internal request, and how its answer is wanted.

A body is a JSON header and, behind it, binary tensors. A header without inline data is a pure
function of its bytes, so what it says is remembered by them; the one thing that differs between
such headers, a leading id, is cut off first. A body without a header is a raw request: the one
input of the model, in full. Knows no routes and no sockets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.core.errors import Internal, InvalidArgument, NereidError
from nereid.core.messages import InferRequest, Parameter, error_status_of
from nereid.services.gateway import request_head, string_elements
from nereid.services.gateway.client_shm.regions import NO_REGIONS, Range, Regions, RegionUse
from nereid.services.gateway.http.endpoints import shared_memory
from nereid.services.gateway.http.json import parser, tensor_data
from nereid.services.gateway.request_head import CheckedHead, HeadInput
from nereid.services.gateway.tensor_memory import MessageBuffer, tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBER: Final = re.compile(rb"\s*([+-]?[0-9]+)")
# As many as the protocol's 64 bits hold.
_MOST_CLASSES: Final = (1 << 63) - 1
_ID: Final = re.compile(rb'\{\s*"id"\s*:\s*"([^"\\\x00-\x1f]*)"\s*(,)')
_ONE_SOURCE: Final = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters',"
    " 'shared_memory_region' in 'parameters'."
)
_RESERVED: Final = (
    "parameter keys starting with 'triton_' are reserved for Triton usage and should not be"
    " specified."
)


class ReplyForm(NamedTuple):
    """Which outputs the client wants as binary: by default, and those named otherwise. Those in
    shared memory are only named in the reply.
    """

    binary_by_default: bool = False
    binary_by_name: tuple[tuple[str, bool], ...] = ()
    in_regions: tuple[str, ...] = ()


ALL_BINARY: Final = ReplyForm(binary_by_default=True)


class Header(NamedTuple):
    """What a JSON header says; sizes has None where the input's data came in the header itself,
    and 0 where it lies in shared memory.
    """

    checked: CheckedHead
    request_id: str
    parameters: dict[str, Parameter] | None
    priority: int
    timeout_us: int
    sizes: tuple[int | None, ...]
    inline: tuple[bytes, ...]
    form: ReplyForm


def header_length(text: bytes | None, body_size: int) -> int:
    """The length of the JSON header, 0 for a raw request; as C's atoi reads the header's value.

    Raises:
        InvalidArgument: it does not lie inside the body.
    """
    if text is None:
        return body_size
    match = _NUMBER.match(text)
    length = int(match[1]) if match else 0
    if not 0 <= length <= body_size:
        raise InvalidArgument(
            f"inference header size should be in range (0, {body_size}), got: {length}",
            accepted=True,
        )
    return length


class HttpDecoder:
    """Decodes the bodies of one model's requests; table is shared by all of a front's decoders."""

    def __init__(
        self,
        model: str,
        version: str,
        table: dict[tuple[bytes, bytes], Header],
        regions: Regions = NO_REGIONS,
    ) -> None:
        self.model = model
        self.version = version
        self._regions = regions
        self._named = request_head.naming(model, version)
        self._table = table

    def decode(self, body: bytes | MessageBuffer, length: int) -> tuple[InferRequest, ReplyForm]:
        """The request whose header is the first length bytes of body; a defect is its fault."""
        request = InferRequest(0, self._named, [])
        try:
            return request, self._fill(request, body, length)
        except NereidError as error:
            return self.faulty(error, request.request_id), ReplyForm()

    def faulty(self, error: NereidError, request_id: str = "") -> InferRequest:
        """What stands for a request that could not be read: the model, and what is wrong."""
        error_status = error_status_of(error)
        # It may quote broken text, which no frame can hold.
        error_status = error_status._replace(message=parser.printable(error_status.message))
        return InferRequest(0, self._named, [], request_id, error_status=error_status)

    def _fill(self, request: InferRequest, body: bytes | MessageBuffer, length: int) -> ReplyForm:
        if isinstance(body, MessageBuffer):
            text = bytes(body.view[:length])
            request.lease = body.lease
        else:
            text = body if length == len(body) else body[:length]
        match = _ID.match(text)
        if match:
            # The id is the part of a header that changes: what is left of it is one that repeats.
            request.request_id = match[1].decode("utf-8", "replace")
            text = b"{" + text[match.end() :]
        header = self._table.get((self._named, text))
        if header is None:
            header = self._parse(text)
        if not match:
            request.request_id = header.request_id
        if header.parameters:
            request.parameters = dict(header.parameters)
        request.priority = header.priority
        request.timeout_us = header.timeout_us
        request.head = header.checked.head
        self._take_payloads(request, header, body, length)
        if header.checked.regions is not None:
            self._regions.use(request, header.checked.regions)
        for about in header.checked.strings:
            raw = tensor_bytes(request, request.payloads[about.position])
            string_elements.check(raw, about, request.request_id)
        return header.form

    def _take_payloads(
        self, request: InferRequest, header: Header, body: bytes | MessageBuffer, position: int
    ) -> None:
        append = request.payloads.append
        end = len(body)
        inline: Iterator[bytes] = iter(header.inline)
        for index, size in enumerate(header.sizes):
            if size is None:
                append(next(inline))
                continue
            if position + size > end:
                name = header.checked.input_names[index]
                raise InvalidArgument(
                    f"unexpected size for input '{name}', expecting {position + size - end}"
                    f" additional bytes for model '{self.model}'"
                )
            append(body[position : position + size])
            position += size
        if position < end:
            raise InvalidArgument(f"unexpected additional input data for model '{self.model}'")

    def _parse(self, text: bytes) -> Header:
        header = _Parser(self.model, self.version, self._regions).header(parser.parse(text))
        if not header.inline and len(text) <= request_head.KEY_LIMIT_BYTES:
            if len(self._table) >= request_head.TABLE_LIMIT:
                self._table.clear()
            self._table[self._named, text] = header
        return header


class _Parser:
    """Reads one JSON header, in the order in which Triton does: its first defect is told."""

    def __init__(self, model: str, version: str, regions: Regions) -> None:
        self._model = model
        self._version = version
        self._regions = regions
        self._binary_by_default = False
        self._priority = 0
        self._timeout_us = 0
        self._sizes: list[int | None] = []
        self._inline: list[bytes] = []
        self._classes: dict[str, int] = {}
        self._input_ranges: list[tuple[int, Range]] = []
        # Of an output that is asked for twice the first counts; None: it is not in shared memory.
        self._output_ranges: dict[str, Range | None] = {}

    def header(self, document: Any) -> Header:
        members = document if type(document) is dict else {}
        request_id = parser.string(members, "id") if "id" in members else ""
        parameters = self._parameters(members) if "parameters" in members else None
        inputs = [self._input(each) for each in parser.array(members, "inputs")]
        outputs = parser.array(members, "outputs") if "outputs" in members else ()
        names = [self._output(each) for each in outputs]
        # An output that is named twice is wanted as it is named first.
        first = dict(reversed(names))
        by_name = {name: binary for name, binary in first.items() if binary is not None}
        if names:
            # Named outputs say for themselves how they are wanted.
            self._binary_by_default = False
        checked = request_head.build(
            self._model, self._version, inputs, [name for name, _ in names], self._classes
        )
        placed = tuple((name, place) for name, place in self._output_ranges.items() if place)
        if placed or self._input_ranges:
            checked = checked._replace(regions=RegionUse(tuple(self._input_ranges), placed))
        return Header(
            checked,
            request_id,
            parameters,
            self._priority,
            self._timeout_us,
            tuple(self._sizes),
            tuple(self._inline),
            ReplyForm(
                self._binary_by_default,
                tuple(by_name.items()),
                tuple(name for name, _ in placed),
            ),
        )

    def _parameters(self, members: dict[str, Any]) -> dict[str, Parameter] | None:
        given = members["parameters"]
        if type(given) is not dict:
            raise Internal("failed to get request params.: attempt to get members for non-object")
        custom: dict[str, Parameter] = {}
        for key, value in given.items():
            if key == "priority":
                self._priority = parser.unsigned(value, key)
            elif key == "timeout":
                self._timeout_us = parser.unsigned(value, key)
            elif key == "binary_data_output":
                self._binary_by_default = parser.boolean(value, key)
            elif key.startswith("triton_"):
                raise InvalidArgument(_RESERVED)
            else:
                custom[parser.printable(key)] = custom_parameter(key, value)
        return custom or None

    def _input(self, tensor: Any) -> HeadInput:
        members = tensor if type(tensor) is dict else {}
        parameters = members.get("parameters")
        if type(parameters) is not dict:
            parameters = {}
        sources = [source for source in ("data",) if source in members]
        sources += [
            source
            for source in ("binary_data_size", "shared_memory_region")
            if source in parameters
        ]
        if len(sources) != 1:
            told = "".join(f" '{source}'" for source in sources)
            raise InvalidArgument(
                f"{_ONE_SOURCE} But set{told}" if sources else f"{_ONE_SOURCE} But no field is set"
            )
        name = parser.string(members, "name")
        datatype = parser.string(members, "datatype")
        shape = [parser.unsigned(size, "shape") for size in parser.array(members, "shape")]
        if sources[0] == "shared_memory_region":
            self._input_ranges.append((len(self._sizes), self._range(parameters)))
            self._sizes.append(0)
        elif sources[0] == "binary_data_size":
            size = parser.unsigned(parameters["binary_data_size"], "binary_data_size")
            self._sizes.append(size)
        else:
            self._sizes.append(None)
            self._inline.append(tensor_data.to_raw(members["data"], name, datatype, shape))
        return HeadInput(name, datatype, shape)

    def _range(self, parameters: dict[str, Any]) -> Range:
        place = shared_memory.tensor_range(parameters)
        self._regions.find(place)
        return place

    def _output(self, output: Any) -> tuple[str, bool | None]:
        name = parser.string(output, "name")
        again = name in self._output_ranges
        parameters = output.get("parameters")
        if type(parameters) is not dict:
            self._output_ranges.setdefault(name, None)
            return name, None
        classes = parameters.get("classification", 0)
        if type(classes) is not int or classes < 0:
            raise Internal(
                "Unable to set 'classification': attempt to access JSON non-unsigned-integer as"
                " unsigned-integer"
            )
        binary = None
        if "binary_data" in parameters:
            binary = parser.boolean(parameters["binary_data"], "binary_data")
        place = None
        if "shared_memory_region" in parameters:
            for other in ("classification", "binary_data"):
                # Of classes even none are too many.
                if parameters.get(other) or (other == "classification" and other in parameters):
                    raise InvalidArgument(
                        f"Output can't set both 'shared_memory_region' and '{other}'"
                    )
            place = self._range(parameters)
        self._output_ranges.setdefault(name, place)
        if classes and not again:
            self._classes[name] = min(classes, _MOST_CLASSES)
        return name, binary


def custom_parameter(key: str, value: Any) -> Parameter:
    """A parameter's value, refused when the protocol has no such kind."""
    if key == "sequence_id":
        if type(value) is str:
            return parser.printable(value)
        if type(value) is not int or value < 0:
            parser.refuse(key, "string")
    elif key in {"sequence_start", "sequence_end"}:
        return parser.boolean(value, key)
    if type(value) is str:
        return parser.printable(value)
    if isinstance(value, bool | int | float):
        return value
    raise InvalidArgument(
        f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'."
    )
