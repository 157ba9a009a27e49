"""The gateway's gRPC port with grpcio as the client."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from nereid.pb import kserve_pb2
from nereid.rpc import SocketChannel
from tests.support.gateway.gateway_site import GatewaySite, gateway_site
from tests.support.waiting import soon

SERVICE = "/inference.GRPCInferenceService/"


def request(model: str, size: int = 3) -> bytes:
    built = kserve_pb2.ModelInferRequest(model_name=model, raw_input_contents=[b"x" * size])
    built.inputs.add(name="INPUT0", datatype="UINT8", shape=[size])
    return built.SerializeToString()


async def unary(
    channel: grpc.aio.Channel, path: str, message: bytes, timeout_s: float = 5
) -> bytes:
    method: Any = channel.unary_unary(path)
    wire_response: bytes = await method(message, timeout=timeout_s)
    return wire_response


async def failure(
    channel: grpc.aio.Channel, path: str, message: bytes, timeout_s: float = 5
) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(channel, path, message, timeout_s)
    return caught.value.code().name, caught.value.details() or ""


async def test_unreadable_messages_are_refused(channel: grpc.aio.Channel) -> None:
    error = await failure(channel, SERVICE + "ModelInfer", b"\xff\xff\xff")
    assert error == ("INTERNAL", "Unable to parse request")
    assert (await failure(channel, SERVICE + "Nope", b""))[0] == "UNIMPLEMENTED"
    # What is not allowed here is not read.
    for method, expected in (("Register", "UNIMPLEMENTED"), ("Status", "INTERNAL")):
        code, _ = await failure(channel, f"{SERVICE}SystemSharedMemory{method}", b"\xff")
        assert code == expected


async def test_responses_are_compressed_as_the_flag_says() -> None:
    """Which encoding a client gets is tests/unit/nereid/rpc/grpc/test_compression.py's."""
    async with gateway_site(grpc_infer_response_compression_level="low") as site:
        client, closed = SocketChannel(site.grpc), asyncio.Event()
        stream = client.stream(
            SERVICE + "ModelInfer", on_message=lambda _: None, on_close=lambda _: closed.set()
        )
        stream.send(request("echo", size=4000))
        stream.half_close()
        await soon(closed)
        assert stream.encoding == "gzip"
        await client.close()


async def test_health(site: GatewaySite, channel: grpc.aio.Channel) -> None:
    async def status(service: str) -> Any:
        check = health_pb2.HealthCheckRequest(service=service).SerializeToString()
        wire_response = await unary(channel, "/grpc.health.v1.Health/Check", check)
        return health_pb2.HealthCheckResponse.FromString(wire_response).status

    serving = health_pb2.HealthCheckResponse
    for service in ("", "inference.GRPCInferenceService"):
        assert await status(service) == serving.SERVING
    site.scheduler.ready = False
    assert await status("") == serving.NOT_SERVING
    unknown = health_pb2.HealthCheckRequest(service="x").SerializeToString()
    error = await failure(channel, "/grpc.health.v1.Health/Check", unknown)
    assert error == ("NOT_FOUND", "unknown service 'x'")


async def test_health_is_watched() -> None:
    async with gateway_site() as site, grpc.aio.insecure_channel(site.grpc) as channel:
        watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
        serving = health_pb2.HealthCheckResponse

        def watched(service: str) -> Any:
            return watch(health_pb2.HealthCheckRequest(service=service).SerializeToString())

        async def status(call: Any) -> Any:
            return health_pb2.HealthCheckResponse.FromString(await call.read()).status

        first, unknown = watched(""), watched("x")
        assert await status(first) == serving.SERVING
        assert await status(unknown) == serving.SERVICE_UNKNOWN
        second = watched("inference.GRPCInferenceService")
        assert await status(second) == serving.SERVING
        for ready, expected in ((False, serving.NOT_SERVING), (True, serving.SERVING)):
            site.scheduler.ready = ready
            assert [await status(each) for each in (first, second)] == [expected, expected]
        second.cancel()
        with pytest.raises(grpc.aio.AioRpcError):
            await watch(b"\xff").read()
        await site.service.drain(5)
        assert await status(first) == serving.NOT_SERVING
        assert [await each.read() for each in (first, unknown)] == [grpc.aio.EOF, grpc.aio.EOF]


@pytest.mark.parametrize("version", ["v1alpha", "v1"])
async def test_reflection(channel: grpc.aio.Channel, version: str) -> None:
    stream: Any = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    )
    call = stream(timeout=5)

    async def ask(**fields: str) -> Any:
        await call.write(reflection_pb2.ServerReflectionRequest(**fields).SerializeToString())
        return reflection_pb2.ServerReflectionResponse.FromString(await call.read())

    services = await ask(list_services="")
    listed = [each.name for each in services.list_services_response.service]
    assert listed == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
    ]
    for symbol in (*listed, "inference.ModelConfig", "inference.GRPCInferenceService.ModelInfer"):
        reply = await ask(file_containing_symbol=symbol)
        # A client makes its stubs of them: they can be added to a pool, dependencies first.
        pool = descriptor_pool.DescriptorPool()
        for file in reversed(reply.file_descriptor_response.file_descriptor_proto):
            pool.AddSerializedFile(file)
        if symbol in listed:
            for method in pool.FindServiceByName(symbol).methods:
                assert pool.FindMessageTypeByName(method.input_type.full_name)
    assert (await ask(file_by_filename="model_config.proto")).file_descriptor_response
    unknown = ("nope", "inference.GRPCInferenceService.Nope", "inference.Nope.ModelInfer")
    for symbol in unknown:
        assert (await ask(file_containing_symbol=symbol)).error_response.error_code == 5
    numbers = await ask(all_extension_numbers_of_type="inference.ModelConfig")
    assert not numbers.all_extension_numbers_response.extension_number
    await call.done_writing()
    assert await call.read() == grpc.aio.EOF


async def refusal_of(channel: grpc.aio.Channel, path: str, message: bytes) -> grpc.aio.AioRpcError:
    """How a call is refused, once it is: those made on a connection before its client knows that it
    ends are served.
    """
    while True:
        try:
            await unary(channel, path, message)
        except grpc.aio.AioRpcError as error:
            return error


async def test_a_draining_server_finishes_pending_requests_and_refuses_new_ones(
    site: GatewaySite, channel: grpc.aio.Channel
) -> None:
    taken = asyncio.ensure_future(unary(channel, SERVICE + "ModelInfer", request("hold")))
    held = await site.scheduler.next_held()
    drained = asyncio.ensure_future(site.service.drain(5))
    await asyncio.sleep(0)
    # The client has been sent elsewhere; where there is no other server, this one still responds.
    ready = kserve_pb2.ServerReadyResponse.FromString
    assert not ready(await unary(channel, SERVICE + "ServerReady", b"")).ready
    for method, message, text in (
        ("ModelInfer", request("echo"), "Server is stopping, scheduler for model has stopped"),
        (
            "ServerReady",
            b"",
            "GRPC server is shutting down and has stopped accepting new",
        ),
    ):
        refusal = await refusal_of(channel, SERVICE + method, message)
        assert refusal.code() is grpc.StatusCode.UNAVAILABLE
        assert (refusal.details() or "").startswith(text)
        trailers = dict(refusal.trailing_metadata())
        assert 450 <= int(trailers["grpc-retry-pushback-ms"]) <= 1500
    site.scheduler.link.send(site.scheduler.echo(held))
    response = kserve_pb2.ModelInferResponse.FromString(await taken)
    assert list(response.raw_output_contents) == [b"xxx"]
    await drained
