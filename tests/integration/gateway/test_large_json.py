"""Requests and responses that are not decoded, or encoded, where they arrive."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from nereid.core.tensors.byte_elements import join_bytes
from nereid.pb import kserve_pb2
from nereid_gateway.plane.decoding.limits import LARGE_BYTES, SMALL_BYTES
from tests.support.gateway import decoder_jobs
from tests.support.gateway.gateway_http import INFER, ask, connect
from tests.support.gateway.gateway_site import GatewaySite, gateway_site
from tests.support.gateway.gateway_streams import end, opened
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nereid_gateway.plane.decoding.pool import DecoderPool

COUNT = LARGE_BYTES
FLOATS = [0.5] * COUNT
SERVICE = "/inference.GRPCInferenceService/"


@pytest.fixture
async def site() -> AsyncIterator[GatewaySite]:
    async with gateway_site(decoder_processes=1) as made:
        yield made


@pytest.fixture
async def grpc_channel(site: GatewaySite) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(site.grpc) as made:
        yield made


def pool_of(site: GatewaySite) -> DecoderPool:
    return site.service._decoders


def body(count: int = COUNT, *, binary: bool = False, **tensor: Any) -> bytes:
    about = {"name": "INPUT0", "shape": [count], "datatype": "FP32", "data": [0.5] * count}
    outputs = [{"name": "OUTPUT0", "parameters": {"binary_data": binary}}]
    return json.dumps({"inputs": [{**about, **tensor}], "outputs": outputs}).encode()


def typed(model: str, count: int, request_id: str = "", **fields: Any) -> Any:
    request = kserve_pb2.ModelInferRequest(model_name=model, id=request_id)
    tensor = request.inputs.add(name="INPUT0", datatype="FP32", shape=[count], **fields)
    tensor.contents.fp32_contents[:] = [0.5] * count
    return request


async def test_large_json_in_and_out(site: GatewaySite) -> None:
    response = await ask(site, "POST", INFER, body())
    assert response.status == 200
    (output,) = json.loads(response.body)["outputs"]
    assert (output["shape"], output["data"]) == ([COUNT], FLOATS)
    assert len(pool_of(site).pids) == 1


@pytest.mark.parametrize("count", [SMALL_BYTES // 8, SMALL_BYTES // 2])
async def test_json_that_is_neither_large_nor_small_is_decoded_in_its_turn(
    site: GatewaySite, count: int
) -> None:
    responses = await asyncio.gather(
        *(ask(site, "POST", INFER, body(count, binary=True)) for _ in range(20))
    )
    assert {response.status for response in responses} == {200}
    assert all(response.body.endswith(b"\0\0\0\x3f" * count) for response in responses)
    assert pool_of(site).pids == []


async def test_an_unknown_model_costs_no_decoding(
    site: GatewaySite, grpc_channel: grpc.aio.Channel
) -> None:
    response = await ask(site, "POST", "/v2/models/nope/infer", b"[" * COUNT)
    assert response.status == 404
    infer: Any = grpc_channel.unary_unary(SERVICE + "ModelInfer")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await infer(typed("nope", COUNT).SerializeToString())
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert pool_of(site).pids == []


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b'{"inputs":[' + b"0," * COUNT, 500),
        (body(shape=[3]), 500),
        (body(datatype="FP8"), 400),
    ],
)
async def test_errors_in_large_json(site: GatewaySite, text: bytes, status: int) -> None:
    response = await ask(site, "POST", INFER, text)
    assert response.status == status
    assert json.loads(response.body).keys() == {"error"}


async def test_a_compressed_body_is_decoded_like_any_other(site: GatewaySite) -> None:
    response = await ask(site, "POST", INFER, gzip.compress(body()), Content_Encoding="gzip")
    assert response.status == 200
    assert len(pool_of(site).pids) == 1


@pytest.mark.parametrize("missing", [0, 1])
async def test_the_elements_of_a_large_binary_tensor_are_counted(
    site: GatewaySite, missing: int
) -> None:
    raw = join_bytes([b"x"] * COUNT)
    tensor: dict[str, Any] = {"name": "INPUT0", "datatype": "BYTES", "shape": [COUNT + missing]}
    tensor["parameters"] = {"binary_data_size": len(raw)}
    text = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference_Header_Content_Length": str(len(text))}
    response = await ask(site, "POST", INFER, text + raw, **headers)
    if missing:
        assert response.status == 400
        assert b"expected %d string elements" % (COUNT + 1) in response.body
    else:
        assert json.loads(response.body)["outputs"][0]["data"] == ["x"] * COUNT


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
async def test_large_documents_of_generate(site: GatewaySite, path: str) -> None:
    document = json.dumps({"INPUT0": FLOATS}).encode()
    if path == "generate":
        response = await ask(site, "POST", "/v2/models/echo/generate", document)
        assert json.loads(response.body)["OUTPUT0"] == FLOATS
        return
    reader, writer = await connect(site)
    lines = f"POST /v2/models/echo/{path} HTTP/1.0\r\nContent-Length: {len(document)}\r\n\r\n"
    writer.write(lines.encode() + document)
    event = (await reader.read()).partition(b"\r\n\r\n")[2]
    writer.close()
    assert json.loads(event.removeprefix(b"data: "))["OUTPUT0"] == FLOATS


async def test_large_typed_contents(site: GatewaySite, grpc_channel: grpc.aio.Channel) -> None:
    infer: Any = grpc_channel.unary_unary(SERVICE + "ModelInfer")
    reply = await infer(typed("echo", COUNT, "i").SerializeToString())
    response = kserve_pb2.ModelInferResponse.FromString(reply)
    assert response.id == "i"
    assert list(response.raw_output_contents) == [b"\0\0\0\x3f" * COUNT]
    assert len(pool_of(site).pids) == 1


async def test_a_message_of_countless_fields_is_read_elsewhere(
    site: GatewaySite, grpc_channel: grpc.aio.Channel
) -> None:
    message = typed("echo", 1).SerializeToString() + b"\x3a\x00" * COUNT
    infer: Any = grpc_channel.unary_unary(SERVICE + "ModelInfer")
    with pytest.raises(grpc.aio.AioRpcError, match="contents field must not be specified"):
        await infer(message)
    assert len(pool_of(site).pids) == 1


@pytest.mark.parametrize("method", ["ServerLive", "TraceSetting", "ModelMetadata"])
async def test_a_control_message_has_a_limit(method: str, grpc_channel: grpc.aio.Channel) -> None:
    call: Any = grpc_channel.unary_unary(SERVICE + method)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"\x78\x01" * COUNT * 2)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_large_requests_keep_their_place_on_a_stream(
    site: GatewaySite, grpc_channel: grpc.aio.Channel
) -> None:
    call = opened(grpc_channel)
    for number, count in enumerate((1, COUNT, 2, COUNT, 3)):
        await call.write(typed("echo", count, str(number)))
    await call.write(typed("nope", COUNT, "last"))
    await call.done_writing()
    replies = [await call.read() for _ in range(6)]
    assert [each.infer_response.id for each in replies] == ["0", "1", "2", "3", "4", "last"]
    assert "unknown model: 'nope'" in replies[-1].error_message
    assert await end(call) == ("OK", "")
    assert len(pool_of(site).pids) == 1


async def test_a_client_that_disconnects_leaves_the_queue(
    site: GatewaySite, grpc_channel: grpc.aio.Channel, tmp_path: Path
) -> None:
    pool = pool_of(site)
    # One job for each process.
    blocked, descriptors = [], []
    for name in ("first", "second"):
        fifo = tmp_path / name
        os.mkfifo(fifo)
        job = pool.run("other:1", decoder_jobs.wait_for, str(fifo))
        blocked.append(asyncio.create_task(job))
        descriptors.append(await asyncio.to_thread(os.open, fifo, os.O_WRONLY))
    text = body()
    _, writer = await connect(site)
    writer.write(b"POST %b HTTP/1.1\r\n" % INFER.encode())
    writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(text), text))
    infer: Any = grpc_channel.unary_unary(SERVICE + "ModelInfer")
    call = infer(typed("echo", COUNT).SerializeToString())
    stream = opened(grpc_channel)
    await stream.write(typed("echo", COUNT))
    await waiting(pool, 3)
    writer.close()
    call.cancel()
    stream.cancel()
    await waiting(pool, 0)
    for descriptor in descriptors:
        os.close(descriptor)
    await asyncio.gather(*blocked)
    # Only the models were asked for.
    assert {each.error_status is None for each in site.scheduler.received} == {False}


async def waiting(pool: DecoderPool, count: int) -> None:
    await until(lambda: len(pool._short) + len(pool._long) == count)
