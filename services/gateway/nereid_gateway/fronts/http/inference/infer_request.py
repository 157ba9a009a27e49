"""Decodes the body of an HTTP infer request and the form that the response should have.

A body is a JSON header followed by binary tensors. Parsed headers are cached by their bytes,
without inline data. Most clients repeat a header with another id, so an id at the beginning is cut
off before the look-up. raw_request decodes a body without a header.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.core import correlation_ids
from nereid.core.errors import Internal, InvalidArgument, NereidError
from nereid.core.wire.messages import Parameter, error_status_of
from nereid_gateway.core import request_head
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.request_head import NOTHING_CHECKED, CheckedHead, HeadInput
from nereid_gateway.core.tensors import string_elements
from nereid_gateway.core.tensors.region_ranges import RegionRange, RegionRanges
from nereid_gateway.core.tensors.tensor_memory import MessageBuffer
from nereid_gateway.fronts.http.json import inline_data, parser, region_parameters, tensor_data
from nereid_gateway.plane.client_shm.regions import (
    NO_REGIONS,
    Regions,
    UnresolvedRegions,
)
from nereid_gateway.plane.request_decoding import InferMessage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nereid.bounded_cache import BoundedCache
    from nereid_gateway.core.tensors.jobs import RunJob
    from nereid_gateway.core.tensors.string_elements import StringInput

_NUMBER: Final = re.compile(rb"\s*([+-]?)([0-9]+)")
# int() takes quadratic time and refuses numbers of more than some thousand digits.
_MAX_DIGITS: Final = 100
_INT32: Final = range(-(1 << 31), 1 << 31)
_PLAIN_DIGITS: Final = 16
_HEADER_LENGTH: Final = "Inference-Header-Content-Length"
# The largest number that fits into the protocol's 64 bits.
_MAX_CLASSES: Final = (1 << 63) - 1
_ID: Final = re.compile(rb'\{\s*"id"\s*:\s*"([^"\\\x00-\x1f]*)"\s*(,)')
_SOURCE_PARAMETERS: Final = ("binary_data_size", "shared_memory_region")
_ONE_SOURCE: Final = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters',"
    " 'shared_memory_region' in 'parameters'."
)
_RESERVED: Final = (
    "parameter keys starting with 'triton_' are reserved for Triton usage and should not be"
    " specified."
)


class ResponseForm(NamedTuple):
    """Outputs to send as binary. Outputs in regions have no data in the response."""

    binary_by_default: bool = False
    binary_by_name: tuple[tuple[str, bool], ...] = ()
    in_regions: tuple[str, ...] = ()


DEFAULT_FORM: Final = ResponseForm()
ALL_BINARY: Final = ResponseForm(binary_by_default=True)


class ParsedHeader(NamedTuple):
    """The parts of a JSON header."""

    checked: CheckedHead
    request_id: str
    parameters: dict[str, Parameter] | None
    priority: int
    timeout_us: int
    # Bytes of each input: None if its data is in the header, 0 if it is in shared memory.
    sizes: tuple[int | None, ...]
    inline: tuple[bytes, ...]
    # Inputs whose data is in the header.
    inline_inputs: tuple[HeadInput, ...]
    form: ResponseForm


_NO_HEADER: Final = ParsedHeader(NOTHING_CHECKED, "", None, 0, 0, (), (), (), DEFAULT_FORM)


def header_length(text: bytes | None, body_size: int) -> int:
    """Return the length of the JSON header, or 0 for a raw request.

    As on Triton, the text is read as std::stoi() reads it. Without a text, the header is the whole
    body. Raises InvalidArgument if it is no number, or the header is longer than the body.
    """
    if text is None:
        return body_size
    if len(text) < _PLAIN_DIGITS and text.isdigit() and (length := int(text)) <= body_size:
        return length
    length = parse_length(text, _HEADER_LENGTH, f" [ {_INT32[0]}, {_INT32[-1]} ]")
    if not 0 <= length <= body_size:
        raise InvalidArgument(
            f"inference header size should be in range (0, {body_size}), got: {_shown(text)}",
            accepted=True,
        )
    return length


def parse_length(text: bytes, name: str, limits: str = "") -> int:
    """Return the number at the beginning of a text, as std::stoi() reads it.

    name and limits are for the error: InvalidArgument if there is no number of 32 bits.
    """
    match = _NUMBER.match(text)
    if match is None:
        raise InvalidArgument(f"Unable to parse {name}, got: {_shown(text)}", accepted=True)
    sign, digits = match[1], match[2].lstrip(b"0") or b"0"
    length = int(sign + digits) if len(digits) < _MAX_DIGITS else _INT32.stop
    if length not in _INT32:
        raise InvalidArgument(
            f"Unable to parse {name}, value is out of range{limits}, got: {_shown(text)}",
            accepted=True,
        )
    return length


def _shown(text: bytes) -> str:
    return text.decode(errors="replace")


def text_too_large(size: int, limit: int) -> str:
    """Return Triton's text for JSON beyond the limit. Binary tensors behind it do not count."""
    return (
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit}"
        " bytes. Use --http-max-input-size to increase the limit."
    )


class InferRequestDecoder:
    """Decodes the bodies of requests for one model."""

    def __init__(
        self,
        model: str,
        version: str,
        headers: BoundedCache[tuple[bytes, bytes], ParsedHeader],
        regions: Regions = NO_REGIONS,
        max_bytes: int = tensor_data.MAX_COUNT,
    ) -> None:
        """headers: cache that all decoders share. Key: the naming head and the JSON text.

        max_bytes: limit of the JSON header, and of each input in it.
        """
        self.model = model
        self.version = version
        self.regions = regions
        self.naming_head = request_head.naming(model, version)
        self._headers = headers
        self.max_bytes = max_bytes

    def decode(
        self, body: bytes | MessageBuffer, length: int
    ) -> tuple[ClientRequest, ParsedHeader]:
        """Decode a body. length: bytes of the JSON header.

        An invalid body becomes a request with the error. Inputs in regions are not read yet, and
        strings are not checked.
        """
        request = ClientRequest(0, self.naming_head, [])
        try:
            text, has_id = self._read_text(request, body, length)
            repeated, arrays = inline_data.cut(text)
            header = self._headers.get((self.naming_head, repeated))
            inline: Sequence[bytes] | None = None
            if header is not None:
                inline = inline_data.read(arrays, header.inline_inputs) if arrays else ()
            if header is None or inline is None:
                header = self._parse_header(text, repeated, len(arrays))
                inline = header.inline
            if not has_id:
                request.request_id = header.request_id
            self._fill_request(request, header, inline, body, length)
        except NereidError as error:
            return self.error_request(error, request.request_id), _NO_HEADER
        return request, header

    async def decode_in_process(
        self, body: bytes | MessageBuffer, length: int, run_job: RunJob
    ) -> tuple[ClientRequest, ParsedHeader]:
        """Decode a body whose JSON header a decoder process parses. Raises NereidError."""
        request = ClientRequest(0, self.naming_head, [])
        buffer = body if isinstance(body, MessageBuffer) else None
        text = memoryview(body) if isinstance(body, bytes) else body.view
        arguments = self.model, self.version, self.regions.allowed, self.max_bytes
        parsed, inline = await run_job(parse_header_job, *arguments, blobs=[text[:length]])
        header: ParsedHeader = parsed
        request.request_id = header.request_id
        if length < len(body):
            request.lease = None if buffer is None else buffer.lease
        else:
            body, length = b"", 0
            if buffer is not None:
                buffer.lease.free()
        self._fill_request(request, header, inline, body, length)
        return request, header

    def known_header(self, text: bytes) -> ParsedHeader | None:
        """Return a JSON header from the cache, or None if it is not there."""
        return self._headers.get((self.naming_head, text))

    def error_request(self, error: NereidError, request_id: str = "") -> ClientRequest:
        """Return the request to submit in place of one that could not be decoded."""
        error_status = error_status_of(error)
        # The message may quote text that is not valid UTF-8, which frames cannot hold.
        error_status = error_status._replace(message=parser.printable(error_status.message))
        return ClientRequest(0, self.naming_head, [], request_id, error_status=error_status)

    def _read_text(
        self, request: ClientRequest, body: bytes | MessageBuffer, length: int
    ) -> tuple[bytes, bool]:
        """Return the header without an id at its beginning. The id is moved to the request."""
        if isinstance(body, MessageBuffer):
            text = bytes(body.view[:length])
            request.lease = body.lease
        else:
            text = body if length == len(body) else body[:length]
        match = _ID.match(text)
        if match is None:
            return text, False
        request.request_id = match[1].decode("utf-8", "replace")
        return b"{" + text[match.end() :], True

    def _fill_request(
        self,
        request: ClientRequest,
        header: ParsedHeader,
        inline: Sequence[bytes],
        body: bytes | MessageBuffer,
        length: int,
    ) -> None:
        if header.parameters:
            request.parameters = dict(header.parameters)
        request.priority = header.priority
        request.timeout_us = header.timeout_us
        request.head = header.checked.head
        position = length
        append = request.payloads.append
        end = len(body)
        inline_raws: Iterator[bytes] = iter(inline)
        for index, size in enumerate(header.sizes):
            if size is None:
                append(next(inline_raws))
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

    def _parse_header(self, text: bytes, repeated: bytes, arrays: int) -> ParsedHeader:
        """Parse a header and cache it. repeated: its text, with marks in place of data arrays."""
        header_parser = _HeaderParser(self.model, self.version, self.regions, self.max_bytes)
        header = header_parser.parse(parser.parse(text))
        if len(repeated) <= request_head.MAX_CACHED_HEAD_BYTES and (
            inline_data.is_cut(repeated, arrays) if arrays else not header.inline
        ):
            known = header._replace(inline=()) if arrays else header
            self._headers.remember((self.naming_head, repeated), known)
        return header


def parse_header_job(
    texts: Sequence[bytes], model: str, version: str, shm_allowed: bool, max_bytes: int
) -> tuple[ParsedHeader, tuple[bytes, ...]]:
    """Return a header and its inline tensors. A decoder process runs this job.

    Binary strings are still to be checked.
    """
    regions = UnresolvedRegions(allowed=shm_allowed)
    header = _HeaderParser(model, version, regions, max_bytes).parse(parser.parse(texts[0]))
    inline = iter(header.inline)
    raws = [b"" if size is not None else next(inline) for size in header.sizes]
    binary: list[StringInput] = []
    for tensor in header.checked.strings:
        if header.sizes[tensor.position] is None:
            string_elements.check(raws[tensor.position], tensor, header.request_id)
        else:
            binary.append(tensor)
    checked = header.checked._replace(strings=tuple(binary))
    return header._replace(checked=checked, inline=()), header.inline


class HttpMessage(InferMessage):
    """Body of an infer request, as RequestDecoding decodes it."""

    __slots__ = ("_body", "_decoder", "_error", "form")

    def __init__(
        self, decoder: InferRequestDecoder, body: bytes | MessageBuffer, length: bytes | None
    ) -> None:
        """length: the header Inference-Header-Content-Length. text_bytes is 0 for a raw body."""
        self.decoded = None
        self._decoder = decoder
        self._body = body
        self._error: NereidError | None = None
        self.form = DEFAULT_FORM
        self.text_bytes = 1
        try:
            text_bytes = header_length(length, len(body))
            if text_bytes > decoder.max_bytes:
                raise InvalidArgument(text_too_large(text_bytes, decoder.max_bytes), accepted=True)
            self.text_bytes = text_bytes
        except NereidError as error:
            self._error = error

    @property
    def naming_head(self) -> bytes:
        """Head that names only the model."""
        return self._decoder.naming_head

    @property
    def request_id(self) -> str:
        """The client's id of the request, as far as it is known."""
        return "" if self.decoded is None else self.decoded[0].request_id

    def decode(self) -> tuple[ClientRequest, CheckedHead]:
        """Return the request, and what is to be checked. An invalid request has its error."""
        if self._error is not None:
            return self.error_request(self._error), NOTHING_CHECKED
        request, header = self._decoder.decode(self._body, self.text_bytes)
        self.form = header.form
        return request, header.checked

    async def decode_in_process(self, run_job: RunJob) -> tuple[ClientRequest, CheckedHead]:
        """Decode the message in a decoder process. Raises NereidError if that fails."""
        decoder = self._decoder
        request, header = await decoder.decode_in_process(self._body, self.text_bytes, run_job)
        self.form = header.form
        return request, header.checked

    def error_request(self, error: NereidError) -> ClientRequest:
        """Return the request to submit in place of an invalid one."""
        self.form = DEFAULT_FORM
        return self._decoder.error_request(error, self.request_id)


class _HeaderParser:
    """Parses a JSON header in Triton's order, so that the same error is reported first."""

    def __init__(self, model: str, version: str, regions: Regions, max_bytes: int) -> None:
        self._model = model
        self._version = version
        self._regions = regions
        self._max_bytes = max_bytes
        self._binary_by_default = False
        self._priority = 0
        self._timeout_us = 0
        self._sizes: list[int | None] = []
        self._inline_data: list[bytes] = []
        self._inline_inputs: list[HeadInput] = []
        self._classes: dict[str, int] = {}
        self._input_ranges: list[tuple[int, RegionRange]] = []
        self._output_ranges: list[tuple[str, RegionRange]] = []

    def parse(self, document: Any) -> ParsedHeader:
        members = document if type(document) is dict else {}
        request_id = parser.string_member(members, "id") if "id" in members else ""
        parameters = self._parse_parameters(members) if "parameters" in members else None
        tensors = parser.array_member(members, "inputs")
        request_head.check_count("inputs", len(tensors), self._model)
        inputs = [self._parse_input(tensor) for tensor in tensors]
        outputs = parser.array_member(members, "outputs") if "outputs" in members else ()
        request_head.check_count("outputs", len(outputs), self._model)
        names = [self._parse_output(output) for output in outputs]
        by_name = {name: binary for name, binary in names if binary is not None}
        if names:
            # The default does not apply to outputs that the request names.
            self._binary_by_default = False
        checked = request_head.build(
            self._model, self._version, inputs, [name for name, _ in names], self._classes
        )
        placed = tuple(self._output_ranges)
        if placed or self._input_ranges:
            checked = checked._replace(regions=RegionRanges(tuple(self._input_ranges), placed))
        return ParsedHeader(
            checked,
            request_id,
            parameters,
            self._priority,
            self._timeout_us,
            tuple(self._sizes),
            tuple(self._inline_data),
            tuple(self._inline_inputs),
            ResponseForm(
                self._binary_by_default,
                tuple(by_name.items()),
                tuple(name for name, _ in placed),
            ),
        )

    def _parse_parameters(self, members: dict[str, Any]) -> dict[str, Parameter] | None:
        given = members["parameters"]
        if type(given) is not dict:
            raise Internal("failed to get request params.: attempt to get members for non-object")
        request_head.check_count("parameters", len(given), self._model)
        custom: dict[str, Parameter] = {}
        for key, value in given.items():
            if key == "priority":
                self._priority = parser.as_unsigned(value, key)
            elif key == "timeout":
                self._timeout_us = parser.as_unsigned(value, key)
            elif key == "binary_data_output":
                self._binary_by_default = parser.as_boolean(value, key)
            elif key.startswith("triton_"):
                raise InvalidArgument(_RESERVED)
            else:
                custom[parser.printable(key)] = custom_parameter(key, value)
        return custom or None

    def _parse_input(self, tensor: Any) -> HeadInput:
        members = tensor if type(tensor) is dict else {}
        parameters = members.get("parameters")
        if type(parameters) is not dict:
            parameters = {}
        request_head.check_count("parameters of a tensor", len(parameters), self._model)
        sources = ["data"] if "data" in members else []
        sources += [source for source in _SOURCE_PARAMETERS if source in parameters]
        if len(sources) != 1:
            named = "set" + "".join(f" '{source}'" for source in sources)
            raise InvalidArgument(f"{_ONE_SOURCE} But {named if sources else 'no field is set'}")
        name = parser.string_member(members, "name")
        datatype = parser.string_member(members, "datatype")
        shape = [
            parser.as_unsigned(size, "shape") for size in parser.array_member(members, "shape")
        ]
        if sources[0] == "shared_memory_region":
            self._input_ranges.append((len(self._sizes), self._parse_range(parameters)))
            self._sizes.append(0)
        elif sources[0] == "binary_data_size":
            size = parser.as_unsigned(parameters["binary_data_size"], "binary_data_size")
            self._sizes.append(size)
        else:
            self._sizes.append(None)
            raw = tensor_data.to_raw(members["data"], name, datatype, shape, self._max_bytes)
            self._inline_data.append(raw)
            self._inline_inputs.append(HeadInput(name, datatype, shape))
        return HeadInput(name, datatype, shape)

    def _parse_range(self, parameters: dict[str, Any]) -> RegionRange:
        tensor_range = region_parameters.tensor_range(parameters)
        self._regions.find_region(tensor_range)
        return tensor_range

    def _parse_output(self, output: Any) -> tuple[str, bool | None]:
        name = parser.string_member(output, "name")
        parameters = output.get("parameters")
        if type(parameters) is not dict:
            return name, None
        request_head.check_count("parameters of a tensor", len(parameters), self._model)
        classes = parameters.get("classification", 0)
        if type(classes) is not int or classes < 0:
            raise Internal(
                "Unable to set 'classification': attempt to access JSON non-unsigned-integer as"
                " unsigned-integer"
            )
        binary = None
        if "binary_data" in parameters:
            binary = parser.as_boolean(parameters["binary_data"], "binary_data")
        if "shared_memory_region" in parameters:
            for other in ("classification", "binary_data"):
                # A classification is an error here even if it is 0.
                if parameters.get(other) or (other == "classification" and other in parameters):
                    raise InvalidArgument(
                        f"Output can't set both 'shared_memory_region' and '{other}'"
                    )
            self._output_ranges.append((name, self._parse_range(parameters)))
        if classes:
            self._classes[name] = min(classes, _MAX_CLASSES)
        return name, binary


def custom_parameter(key: str, value: Any) -> Parameter:
    """Return the value of a parameter. Raises NereidError if the protocol has no such kind."""
    if key == "sequence_id":
        if type(value) is str:
            text = parser.printable(value)
            correlation_ids.check_length(text)
            return text
        if type(value) is not int or value < 0:
            parser.refuse_kind("string", key)
        return value
    if key in {"sequence_start", "sequence_end"}:
        return parser.as_boolean(value, key)
    if type(value) is str:
        return parser.printable(value)
    if isinstance(value, bool | int | float):
        # As on Triton, integers in JSON are signed 64-bit integers. Larger ones become floats.
        return float(value) if value >= 1 << 63 else value
    raise InvalidArgument(
        f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'."
    )
