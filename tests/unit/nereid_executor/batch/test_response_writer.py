"""Responses of models that execute requests, as pieces of messages."""

from __future__ import annotations

from typing import Any

import pytest

from nereid.backends import Response
from nereid.core.wire.messages import ErrorStatus
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.shm.mappings import read
from nereid_executor.batch.response_writer import ResponseWriter
from nereid_executor.core.shared_tensors import OutputLender, SharedTensors

SIZE = 1 << 17


def head() -> bytes:
    message = kserve_pb2.ModelInferResponse(model_name="m")
    message.outputs.add(name="y", datatype="UINT8", shape=[1])
    return message.SerializeToString()


def written(writer: ResponseWriter, response: Response, buffer: Any = None) -> pb.InferResponse:
    pieces = writer.write_response(response, buffer)
    (message,) = pb.Executed.FromString(b"".join(pieces)).responses
    return message


def output(raw: Any) -> Response:
    return Response(0, False, head=head(), tensors=[raw])


def test_small_outputs_are_inline_whatever_their_sizes() -> None:
    writer = ResponseWriter(predictable=True)
    for raw in (b"abc", b"def", b"g"):
        message = written(writer, output(raw))
        assert (message.head, message.payloads[0].inline) == (head(), raw)


def test_errors_and_empty_responses() -> None:
    writer = ResponseWriter(predictable=True)
    refused = written(writer, Response(0, False, ErrorStatus(3, "no", accepted=True)))
    assert (refused.error.code, refused.error.message) == (3, "no")
    assert not written(writer, Response(0, False)).HasField("error")
    # There is no memory to lend.
    assert writer.allocate_buffer() is None
    assert len(written(writer, output(bytes(SIZE))).payloads[0].inline) == SIZE


@pytest.mark.parametrize("predictable", [True, False])
def test_large_outputs_are_lent_and_the_next_ones_expected(predictable: bool) -> None:
    shared = SharedTensors(8 << 20)
    writer = ResponseWriter(predictable=predictable)
    writer.lender = OutputLender(shared)
    message = written(writer, output(b"x" * SIZE))
    assert message.payloads[0].shared_memory.size_bytes == SIZE
    assert writer.expected_bytes == (SIZE if predictable else 0)
    if not predictable:
        return
    buffer = writer.allocate_buffer()
    assert buffer is not None
    # The model has written it itself; then one that it has not used goes back.
    placed = buffer._replace(size_bytes=SIZE)
    in_buffer = written(writer, output(placed), buffer).payloads[0].shared_memory
    assert in_buffer.segment_name == buffer.segment_name
    unused = writer.allocate_buffer()
    assert written(writer, output(b"small"), unused).payloads[0].inline == b"small"
    assert writer.expected_bytes == 0
    assert shared.segments.used_count == 2
    assert read(placed)
