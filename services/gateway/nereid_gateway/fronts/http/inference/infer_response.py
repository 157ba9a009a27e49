"""Encodes the body of an HTTP infer response: a JSON header followed by binary tensors.

A header is cached without its id and inline data. The key is the response's head, the sizes of the
tensors, and the form that the client asked for.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from nereid.bounded_cache import BoundedCache
from nereid.core.tensors.datatypes import BYTES
from nereid.core.wire.codecs import read_parameters
from nereid.core.wire.messages import InferResponse
from nereid.pb import kserve_pb2
from nereid_gateway.core.request_head import CACHED_HEADS, MAX_CACHED_HEAD_BYTES
from nereid_gateway.fronts.http.json import tensor_data
from nereid_gateway.fronts.http.json.inline_data import MARK, QUOTED_MARK
from nereid_gateway.plane.decoding.limits import LARGE_BYTES
from nereid_gateway.server.call import BINARY, JSON

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_gateway.fronts.http.inference.infer_request import ResponseForm

# The members before the outputs, and the outputs without their data.
HeadMembers = tuple[dict[str, Any], list[dict[str, Any]]]


class _Layout(NamedTuple):
    # JSON text without its opening brace and id, cut where the data of outputs belongs.
    texts: list[bytes]
    # Outputs whose data is in the JSON text: index of the payload, and datatype.
    inline: list[tuple[int, str]]
    # Indexes of the payloads that follow the JSON text.
    binary: list[int]
    all_binary: bool


class LargeOutputsError(Exception):
    """Raised for a response with more JSON than one turn of the event loop may write."""


class InferResponseEncoder:
    """Encodes responses, and caches the headers that it has written."""

    def __init__(
        self, max_json_bytes: int = LARGE_BYTES, max_text_bytes: int | None = None
    ) -> None:
        """Limit the outputs that are written as JSON.

        max_json_bytes: maximum raw size of these outputs in one response. max_text_bytes: maximum
        size of their text. If it is set, the text is written in slices.
        """
        self._max_json_bytes = max_json_bytes
        self._max_text_bytes = max_text_bytes
        self._layouts: BoundedCache[tuple[Any, ...], _Layout] = BoundedCache(CACHED_HEADS)
        self._heads: BoundedCache[bytes, HeadMembers] = BoundedCache(
            CACHED_HEADS, MAX_CACHED_HEAD_BYTES
        )

    def encode(
        self, response: InferResponse, request_id: str, form: ResponseForm
    ) -> tuple[bytes, bytes, Sequence[bytes]]:
        """Return content type, further header lines and body parts of a response without error.

        Raises InvalidArgument if an output needs JSON but has no JSON form. Raises
        LargeOutputsError if the outputs in JSON are too large for this encoder.
        """
        payloads: Sequence[Any] = response.payloads
        key = (response.head, form, *map(len, payloads))
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._lay_out(response, form, key)
        tail = layout.texts[0]
        if layout.inline:
            tail = self._write_inline(layout, payloads)
        if not layout.all_binary:
            payloads = [payloads[index] for index in layout.binary]
        start = b'{"id":%b,' % orjson.dumps(request_id) if request_id else b"{"
        if not any(payloads):
            return JSON, b"", (start, tail)
        extra = b"Inference-Header-Content-Length: %d\r\n" % (len(start) + len(tail))
        return BINARY, extra, (start, tail, *payloads)

    def _lay_out(
        self, response: InferResponse, form: ResponseForm, key: tuple[Any, ...]
    ) -> _Layout:
        members, tensors = self.parse_head(response.head)
        by_name = dict(form.binary_by_name)
        outputs: list[dict[str, Any]] = []
        binary: list[int] = []
        inline: list[tuple[int, str]] = []
        inline_bytes = 0
        for index, (tensor, payload) in enumerate(zip(tensors, response.payloads, strict=True)):
            name = tensor["name"]
            output: dict[str, Any] = tensor.copy()
            outputs.append(output)
            if name in form.in_regions:
                # This data is already in the client's memory.
                continue
            if by_name.get(name, form.binary_by_default):
                output["parameters"] = {"binary_data_size": len(payload)}
                binary.append(index)
            else:
                output["data"] = MARK
                inline.append((index, output["datatype"]))
                inline_bytes += len(payload)
                if inline_bytes > self._max_json_bytes:
                    raise LargeOutputsError
        text = orjson.dumps({**members, "outputs": outputs})[1:]
        all_binary = len(binary) == len(outputs)
        layout = _Layout(text.split(QUOTED_MARK), inline, binary, all_binary=all_binary)
        # Strings differ in size, so layouts with inline strings would fill the cache.
        if len(text) <= MAX_CACHED_HEAD_BYTES and all(datatype != BYTES for _, datatype in inline):
            self._layouts.remember(key, layout)
        return layout

    def _write_inline(self, layout: _Layout, payloads: Sequence[Any]) -> bytes:
        from_raw = tensor_data.from_raw
        if self._max_text_bytes is not None:
            from_raw = tensor_data.OutputTexts(self._max_text_bytes).from_raw
        pieces = [layout.texts[0]]
        for place, (index, datatype) in enumerate(layout.inline, 1):
            pieces.append(orjson.dumps(from_raw(payloads[index], datatype)))
            pieces.append(layout.texts[place])
        return b"".join(pieces)

    def parse_head(self, data: bytes) -> HeadMembers:
        """Return the members and the outputs that a response's head describes."""
        head = self._heads.get(data)
        if head is None:
            message = kserve_pb2.ModelInferResponse.FromString(data)
            members: dict[str, Any] = {
                "model_name": message.model_name,
                "model_version": message.model_version,
            }
            if message.parameters:
                members["parameters"] = read_parameters(message.parameters)
            head = (
                members,
                [
                    {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
                    for output in message.outputs
                ],
            )
            self._heads.remember(data, head)
        return head


def encode_job(
    payloads: Sequence[bytes], head: bytes, request_id: str, form: ResponseForm, max_text_bytes: int
) -> tuple[tuple[bytes, bytes], Sequence[bytes]]:
    """Return content type, further header lines and body parts. A decoder process runs this job."""
    response = InferResponse(0, head, list(payloads))
    encoder = InferResponseEncoder(sys.maxsize, max_text_bytes)
    content_type, extra, parts = encoder.encode(response, request_id, form)
    return (content_type, extra), parts
