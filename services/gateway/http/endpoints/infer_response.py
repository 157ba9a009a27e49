"""Encodes the body of an HTTP infer response: a JSON header followed by binary tensors.

Where all outputs are binary, everything but the id and the tensors is a pure function of the
response's head, the sizes and the form; it is remembered by them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import orjson

from nereid.core.bounded_cache import BoundedCache
from nereid.core.codecs import read_parameters
from nereid.core.messages import InferResponse
from nereid.pb import kserve_pb2
from nereid.services.gateway.decoding.limits import LARGE_BYTES
from nereid.services.gateway.http.json import tensor_data
from nereid.services.gateway.http.server.call import BINARY, JSON
from nereid.services.gateway.request_head import CACHED_HEADS, MAX_CACHED_HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.services.gateway.http.endpoints.infer_request import ResponseForm

# The JSON text without its opening brace and without an id.
_JsonTail = bytes
# A response's head as JSON: the members before the outputs, and the outputs without data.
HeadMembers = tuple[dict[str, Any], list[dict[str, Any]]]


class LargeOutputsError(Exception):
    """A response has more to write as JSON than a turn of the event loop may spend."""


class InferResponseEncoder:
    """Encodes responses; remembers the headers that it has written."""

    def __init__(
        self, max_json_bytes: int = LARGE_BYTES, max_text_bytes: int | None = None
    ) -> None:
        """max_json_bytes: of the tensors that it writes as JSON, of one response. max_text_bytes:
        of their JSON, which is then written in slices; None: at once.
        """
        self._max_json_bytes = max_json_bytes
        self._max_text_bytes = max_text_bytes
        self._tails: BoundedCache[tuple[Any, ...], _JsonTail] = BoundedCache(CACHED_HEADS)
        self._heads: BoundedCache[bytes, HeadMembers] = BoundedCache(
            CACHED_HEADS, MAX_CACHED_HEAD_BYTES
        )

    def encode(
        self, response: InferResponse, request_id: str, form: ResponseForm
    ) -> tuple[bytes, bytes, Sequence[bytes]]:
        """Content type, further header lines and body of a response without error.

        Raises:
            InvalidArgument: an output has no JSON form and was not requested as binary.
            LargeOutputsError: the outputs that were not are too large for this encoder.
        """
        payloads: Sequence[Any] = response.payloads
        key = (response.head, form, *map(len, payloads))
        tail = self._tails.get(key)
        if tail is None:
            tail, payloads = self._write_header(response, form, key)
        start = b'{"id":%b,' % orjson.dumps(request_id) if request_id else b"{"
        length = len(start) + len(tail)
        if not any(payloads):
            return JSON, b"", (start, tail)
        extra = b"Inference-Header-Content-Length: %d\r\n" % length
        return BINARY, extra, (start, tail, *payloads)

    def _write_header(
        self, response: InferResponse, form: ResponseForm, key: tuple[Any, ...]
    ) -> tuple[_JsonTail, Sequence[bytes]]:
        members, tensors = self.parse_head(response.head)
        by_name = dict(form.binary_by_name)
        from_raw = tensor_data.from_raw
        if self._max_text_bytes is not None:
            from_raw = tensor_data.OutputTexts(self._max_text_bytes).from_raw
        binary, outputs, inline_bytes = [], [], 0
        inline = False
        for tensor, payload in zip(tensors, response.payloads, strict=True):
            name = tensor["name"]
            output: dict[str, Any] = tensor.copy()
            if name in form.in_regions:
                # Its data is in the client's memory already.
                outputs.append(output)
                continue
            if by_name.get(name, form.binary_by_default):
                output["parameters"] = {"binary_data_size": len(payload)}
                binary.append(payload)
            else:
                inline = True
                inline_bytes += len(payload)
                if inline_bytes > self._max_json_bytes:
                    raise LargeOutputsError
                output["data"] = from_raw(
                    payload,  # type: ignore[arg-type]  # references were resolved
                    output["datatype"],
                )
            outputs.append(output)
        document = {**members, "outputs": outputs}
        tail = orjson.dumps(document)[1:]
        if not inline and len(tail) <= MAX_CACHED_HEAD_BYTES:
            self._tails.remember(key, tail)
        return tail, binary  # type: ignore[return-value]  # likewise

    def parse_head(self, data: bytes) -> HeadMembers:
        """What a response's head says."""
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
                    {"name": each.name, "datatype": each.datatype, "shape": list(each.shape)}
                    for each in message.outputs
                ],
            )
            self._heads.remember(data, head)
        return head


def encode_job(
    payloads: Sequence[bytes], head: bytes, request_id: str, form: ResponseForm, max_text_bytes: int
) -> tuple[tuple[bytes, bytes], Sequence[bytes]]:
    """A job for a decoder process: content type, further header lines, and the parts of the body of
    a response.
    """
    response = InferResponse(0, head, list(payloads))
    encoder = InferResponseEncoder(sys.maxsize, max_text_bytes)
    content_type, extra, parts = encoder.encode(response, request_id, form)
    return (content_type, extra), parts
