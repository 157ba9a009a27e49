"""Small bodies that unpack to large ones, over both protocols."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable

from tests.support.hostile.attack import ENDED, SERVED, Attack, Client, Prepared, Target
from tests.support.hostile.raw_clients import GrpcClient
from tests.support.hostile.sending import (
    INFER,
    SERVICE,
    grpc_body,
    http_body,
    infer_message,
)
from tests.support.rpc.http2_frames import message

_MIB = 1 << 20
_ACCEPTS = ("grpc-accept-encoding", "gzip")
_HEADER = (
    b'{"inputs":[{"name":"INPUT0","shape":[1,8388608],"datatype":"FP32","parameters":'
    b'{"binary_data_size":33554432}}],"parameters":{"binary_data_output":true}}'
)
_GZIP, _DEFLATE = ("grpc-encoding", "gzip"), ("grpc-encoding", "deflate")


def _bomb(size: int, *, as_gzip: bool = True, start: bytes = b"") -> bytes:
    """start and size zero bytes. Each MiB of them is compressed alike, so one is compressed."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    zeros = packer.compress(bytes(_MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    packed += zeros * (size // _MIB) + packer.flush()
    checksum = (zlib.crc32 if as_gzip else zlib.adler32)(start)
    for _ in range(size // _MIB):
        checksum = (zlib.crc32 if as_gzip else zlib.adler32)(bytes(_MIB), checksum)
    if as_gzip:
        head, end = b"\x1f\x8b\x08" + bytes(7), struct.pack("<II", checksum, len(start) + size)
    else:
        head, end = b"\x78\xda", struct.pack(">I", checksum)
    return head + packed + end


def _members(count: int) -> bytes:
    return gzip.compress(b"") * count


def _message_bomb(size: int) -> bytes:
    """A ModelInferRequest with one raw tensor of size zero bytes."""
    start = infer_message(shape=(1, size // 4), raw=bytes(size))[: -size or None]
    return _bomb(size, start=start)


def _on_streams(count: int, make: Callable[[], bytes], *fields: tuple[str, str]) -> Client:
    """The same message on many streams at once."""

    def send(target: Target, body: bytes) -> str:
        connection = GrpcClient(target.grpc, target.source)
        try:
            for number in range(count):
                stream = 2 * number + 1
                connection.pump(connection.headers(stream, SERVICE + "ModelInfer", _GZIP, *fields))
                connection.send_content(stream, message(body, 1))
            return connection.wait_for(2 * count - 1, 60)
        finally:
            connection.close()

    return Prepared(make, send)


def _on_one_stream(count: int, make: Callable[[], bytes]) -> Client:
    """Messages after each other on one call, without waiting for responses."""

    def send(target: Target, body: bytes) -> str:
        connection = GrpcClient(target.grpc, target.source)
        try:
            connection.pump(connection.headers(1, SERVICE + "ModelStreamInfer", _GZIP))
            connection.send_content(1, message(body, 1) * count, limit_s=60)
            return connection.wait_for(1, 60)
        finally:
            connection.close()

    return Prepared(make, send)


ATTACKS = (
    Attack(
        "HTTP gzip bomb of 1 GiB",
        http_body(lambda: _bomb(1024 * _MIB), INFER, "Content-Encoding: gzip"),
    ),
    Attack(
        "HTTP deflate bomb of 1 GiB",
        http_body(lambda: _bomb(1024 * _MIB, as_gzip=False), INFER, "Content-Encoding: deflate"),
        nightly=True,
    ),
    Attack(
        "HTTP gzip bomb just within the limit",
        http_body(lambda: _bomb(63 * _MIB), INFER, "Content-Encoding: gzip"),
        nightly=True,
    ),
    Attack(
        "HTTP gzip of 1 million empty members",
        http_body(lambda: _members(1_000_000), INFER, "Content-Encoding: gzip"),
        ENDED,
        nightly=True,
    ),
    Attack(
        "HTTP gzip of 20 MB that is none",
        http_body(
            lambda: gzip.compress(b"x")[:10] + bytes(20 * _MIB), INFER, "Content-Encoding: gzip"
        ),
        ENDED,
        nightly=True,
    ),
    Attack(
        "gRPC gzip bomb of 1 GiB",
        grpc_body(lambda: _bomb(1024 * _MIB), "ModelInfer", _GZIP, compressed=1),
    ),
    Attack(
        "gRPC deflate bomb of 1 GiB",
        grpc_body(lambda: _bomb(1024 * _MIB, as_gzip=False), "ModelInfer", _DEFLATE, compressed=1),
        nightly=True,
    ),
    Attack(
        "gRPC gzip bomb of 1 GiB to a health check",
        grpc_body(lambda: _bomb(1024 * _MIB), "ServerLive", _GZIP, compressed=1),
        nightly=True,
    ),
    Attack(
        "gRPC gzip bomb of 1 GiB on a stream",
        grpc_body(lambda: _bomb(1024 * _MIB), "ModelStreamInfer", _GZIP, compressed=1),
    ),
    Attack(
        "gRPC gzip bomb of 128 MiB, a valid request",
        grpc_body(lambda: _message_bomb(128 * _MIB), "ModelInfer", _GZIP, compressed=1),
        ENDED,
        more_mib=600,
        nightly=True,
    ),
    Attack(
        "gRPC 20 gzip bombs of 60 MiB at once", _on_streams(20, lambda: _bomb(60 * _MIB)), ENDED
    ),
    Attack(
        "gRPC 40 gzip bombs of 30 MiB on one stream",
        _on_one_stream(40, lambda: _bomb(30 * _MIB)),
        nightly=True,
    ),
    Attack(
        "gRPC response of 32 MiB that is compressed",
        grpc_body(lambda: _message_bomb(32 * _MIB), "ModelInfer", _GZIP, _ACCEPTS, compressed=1),
        SERVED,
        more_mib=200,
    ),
    Attack(
        "gRPC 60 responses of 1 MiB that are compressed",
        _on_streams(60, lambda: _message_bomb(_MIB), _ACCEPTS),
        SERVED,
        more_mib=200,
        nightly=True,
    ),
    Attack(
        "gRPC response of 32 KB that is compressed",
        grpc_body(
            lambda: gzip.compress(infer_message(shape=(1, 8192), raw=bytes(32768))),
            "ModelInfer",
            _GZIP,
            _ACCEPTS,
            compressed=1,
        ),
        SERVED,
    ),
    Attack(
        "HTTP response of 32 MiB that is compressed",
        http_body(
            lambda: _bomb(32 * _MIB, start=_HEADER),
            INFER,
            "Content-Encoding: gzip",
            "Accept-Encoding: gzip",
            f"Inference-Header-Content-Length: {len(_HEADER)}",
        ),
        SERVED,
        more_mib=200,
    ),
    Attack(
        "gRPC gzip of 500,000 empty members",
        grpc_body(lambda: _members(500_000), "ModelInfer", _GZIP, compressed=1),
        ENDED,
        nightly=True,
    ),
)
