"""gRPC: health, metadata, configuration, statistics, lookup; damaged messages."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any, Final

from grpc_health.v1 import health_pb2
from tritonclient.grpc import service_pb2 as pb

from tests.conformance.exchange import Rpc
from tests.conformance.grpc_infer import TWO, infer, request, tensor
from tests.conformance.row import Row, grouped, row, without_texts

_VERSIONS: Final = (
    "",
    "1",
    "3",
    "2",
    "03",
    "0",
    "-1",
    "+3",
    "x",
    "1.0",
    " 3",
    "3 ",
    "3x",
    "99999999999999999999",
)


def _control() -> Iterator[Row]:
    yield row("live", Rpc("ServerLive", pb.ServerLiveRequest()))
    yield row("ready", Rpc("ServerReady", pb.ServerReadyRequest()))
    yield row("metadata", Rpc("ServerMetadata", pb.ServerMetadataRequest()))
    for value in ("v", "v ", " v", " ", "", "a  b", "\x7e!"):
        metadata = (("x-key", value),)
        yield row(f"metadata-value-{value}", Rpc("ServerLive", pb.ServerLiveRequest(), metadata))
    yield row("metadata-of-garbage", Rpc("ServerMetadata", b"\xff\xff"))
    # The text is the engine's own.
    yield row("unknown-method", Rpc("Nope", b""), view=without_texts)
    yield row("unknown-service", Rpc("/nope.Nope/ModelInfer", b""), view=without_texts)
    yield row("health", Rpc("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest()))
    named = health_pb2.HealthCheckRequest(service="nope")
    yield row("health-of-service", Rpc("/grpc.health.v1.Health/Check", named))


def _lookup() -> Iterator[Row]:
    calls = (
        ("ModelReady", pb.ModelReadyRequest),
        ("ModelMetadata", pb.ModelMetadataRequest),
        ("ModelConfig", pb.ModelConfigRequest),
    )
    for method, message in calls:
        for version in _VERSIONS:
            yield row(
                f"{method}-versions-{version!r}",
                Rpc(method, message(name="versions", version=version)),
            )
        for name in ("add_sub", "nope", "", "labelled", "slow", "several", "ADD_SUB"):
            yield row(f"{method}-{name!r}", Rpc(method, message(name=name)))
        yield row(f"{method}-nope-1", Rpc(method, message(name="nope", version="1")))
        for version in ("", "1", "2"):
            broken = Rpc(method, message(name="broken", version=version))
            yield row(f"{method}-broken-{version!r}", broken, view=without_texts)
    for version in _VERSIONS:
        yield infer(
            f"ModelInfer-versions-{version!r}", "versions", [tensor(shape=(2,))], version=version
        )
    for name in ("nope", "", "ADD_SUB"):
        yield infer(f"ModelInfer-{name!r}", name)
        yield infer(f"ModelInfer-malformed-{name!r}", name, [], (b"x",))
    yield infer("ModelInfer-nope-1", "nope", version="1")
    yield infer("ModelInfer-broken", "broken", view=without_texts)


def _statistics() -> Iterator[Row]:
    for name, version in (
        ("nope", ""),
        ("nope", "1"),
        ("versions", "2"),
        ("versions", "x"),
        ("", "1"),
        ("broken", ""),
    ):
        message = pb.ModelStatisticsRequest(name=name, version=version)
        view = None if name else _names_alone
        yield row(f"{name!r}-{version!r}", Rpc("ModelStatistics", message), view=view)
    yield row("all", Rpc("ModelStatistics", pb.ModelStatisticsRequest()), view=_names_alone)
    statistics = Rpc("ModelStatistics", pb.ModelStatisticsRequest(name="counted_grpc"))
    good = request("counted_grpc", [tensor(shape=(3, 2))], (TWO * 3,))
    bad_shape = request("counted_grpc", [tensor(shape=(1, 6))], (TWO * 3,))
    short = request("counted_grpc", [tensor(shape=(3, 2))], (TWO,))
    steps = [Rpc("ModelInfer", each) for each in (good, bad_shape, short, good)]
    yield row("counts", statistics, *steps, statistics)


def _names_alone(response: Any) -> Any:
    if isinstance(response, dict) and "reply" in response:
        return sorted((each["name"], each["version"]) for each in response["reply"]["model_stats"])
    return response


def _messages() -> Iterator[Row]:
    good = request().SerializeToString()
    for name, content in {
        "empty": b"", "garbage": b"\xff\xff\xff", "cut": good[:-1], "cut-early": good[:5], "unknown-field": good + b"\xfa\x01\x01x",
        "wrong-wire-type": b"\x08\x01" + good, "name-twice": good + b"\x0a\x04nope", "bad-utf8-name": b"\x0a\x02\xff\xfe", "doubled": good + good,
    }.items():  # fmt: skip
        yield row(name, Rpc("ModelInfer", content))
    yield row("other-metadata", Rpc("ModelInfer", good, (("x-test", "1"), ("triton-x", "2"))))
    yield row("gzip-inside", Rpc("ModelInfer", gzip.compress(good, mtime=0)))


def rows() -> Iterator[Row]:
    yield from grouped("grpc/control", _control())
    yield from grouped("grpc/lookup", _lookup())
    yield from grouped("grpc/statistics", _statistics())
    yield from grouped("grpc/message", _messages())
