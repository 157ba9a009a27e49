"""Compression of gRPC responses and requests, on the wire."""

from __future__ import annotations

import asyncio
import gzip
import os
import struct
import zlib
from typing import TYPE_CHECKING, Any

import h2.config
import h2.connection
import h2.events
import pytest

from nereid.pb import kserve_pb2
from tests.support.gateway.gateway_site import gateway_site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SERVICE = "/inference.GRPCInferenceService/"
BOTH = "identity, deflate, gzip"
UNDO: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}


def request(data: bytes) -> bytes:
    built = kserve_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[data])
    built.inputs.add(name="INPUT0", datatype="UINT8", shape=[len(data)])
    return built.SerializeToString()


class GrpcResponse:
    """The response's head, its messages as flag and content, and the trailers."""

    def __init__(self) -> None:
        self.head: dict[str, str] = {}
        self.trailers: dict[str, str] = {}
        self.body = b""

    @property
    def messages(self) -> list[tuple[int, bytes]]:
        found, rest = [], self.body
        while rest:
            flag, size = struct.unpack_from(">BI", rest)
            found.append((flag, rest[5 : 5 + size]))
            rest = rest[5 + size :]
        return found


def _texts(headers: Iterable[tuple[Any, Any]]) -> dict[str, str]:
    return {str(name): str(value) for name, value in headers}


async def ask(
    address: str, method: str, messages: Sequence[bytes], flag: int = 0, **headers: str
) -> GrpcResponse:
    """One call by hand: grpcio does not show what went over the wire."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    connection.initiate_connection()
    fields = [(":method", "POST"), (":scheme", "http"), (":path", SERVICE + method)]
    fields += [(":authority", "x"), ("te", "trailers"), ("content-type", "application/grpc")]
    fields += [(name.replace("_", "-"), value) for name, value in headers.items()]
    connection.send_headers(1, fields)
    body = b"".join(struct.pack(">BI", flag, len(each)) + each for each in messages)
    connection.send_data(1, body, end_stream=True)
    writer.write(connection.data_to_send())
    response, ended = GrpcResponse(), False
    while not ended:
        data = await asyncio.wait_for(reader.read(65536), 5)
        assert data, "the connection ended before the response"
        for event in connection.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                response.head = _texts(event.headers)
            elif isinstance(event, h2.events.TrailersReceived):
                response.trailers = _texts(event.headers)
            elif isinstance(event, h2.events.DataReceived):
                response.body += event.data
            ended = ended or isinstance(event, h2.events.StreamEnded)
        writer.write(connection.data_to_send())
    writer.close()
    await writer.wait_closed()
    return response


@pytest.mark.parametrize(
    ("level", "accepted", "used"),
    [
        ("none", BOTH, None),
        ("low", BOTH, "gzip"),
        ("medium", BOTH, "deflate"),
        ("high", BOTH, "deflate"),
        ("high", "gzip", "gzip"),
        ("low", "deflate", "deflate"),
        ("high", "identity", None),
        ("high", "br", None),
    ],
)
async def test_responses_are_compressed_as_the_level_and_the_client_say(
    level: str, accepted: str, used: str | None
) -> None:
    async with gateway_site(grpc_infer_response_compression_level=level) as site:
        for method in ("ModelInfer", "ModelStreamInfer"):
            response = await ask(
                site.grpc, method, [request(bytes(4000))], grpc_accept_encoding=accepted
            )
            assert response.trailers["grpc-status"] == "0"
            assert response.head.get("grpc-encoding") == used
            ((flag, content),) = response.messages
            assert flag == (used is not None)
            plain = UNDO[used](content) if used is not None else content
            assert len(plain) > 4000
            if method == "ModelStreamInfer":
                message = kserve_pb2.ModelStreamInferResponse.FromString(plain).infer_response
            else:
                message = kserve_pb2.ModelInferResponse.FromString(plain)
            assert list(message.raw_output_contents) == [bytes(4000)]


async def test_large_responses_are_compressed_elsewhere_in_their_order() -> None:
    async with gateway_site(grpc_infer_response_compression_level="high") as site:
        requests = [request(bytes(size)) for size in (8_000, 100, 6_000)]
        for method, sent in (("ModelInfer", requests[:1]), ("ModelStreamInfer", requests)):
            response = await ask(site.grpc, method, sent, grpc_accept_encoding=BOTH)
            assert response.trailers["grpc-status"] == "0"
            sizes = [len(zlib.decompress(content)) for _, content in response.messages]
            expected = [len(each) for each in sent]
            assert [round(each, -3) for each in sizes] == [round(each, -3) for each in expected]


async def test_what_would_not_shrink_or_was_not_asked_for_is_sent_plain() -> None:
    async with gateway_site(grpc_infer_response_compression_level="high") as site:
        noise = os.urandom(4000)
        response = await ask(site.grpc, "ModelInfer", [request(noise)], grpc_accept_encoding=BOTH)
        assert response.messages[0][0] == 0
        assert noise in response.messages[0][1]
        response = await ask(site.grpc, "ModelInfer", [request(bytes(4000))])
        assert "grpc-encoding" not in response.head
        assert response.messages[0][0] == 0


async def test_compressed_requests_are_understood() -> None:
    plain = request(bytes(4000))
    async with gateway_site() as site:
        for encoding, content in (
            ("gzip", gzip.compress(plain)),
            ("deflate", zlib.compress(plain)),
        ):
            for method in ("ModelInfer", "ModelStreamInfer"):
                response = await ask(site.grpc, method, [content], flag=1, grpc_encoding=encoding)
                assert response.trailers["grpc-status"] == "0"
                assert len(response.messages[0][1]) > 4000
        response = await ask(site.grpc, "ModelInfer", [plain], grpc_encoding="identity")
        assert response.trailers["grpc-status"] == "0"
