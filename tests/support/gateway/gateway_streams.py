"""ModelStreamInfer as grpcio's client sees it: requests in, replies and the call's end."""

from __future__ import annotations

from typing import Any

import grpc.aio

from nereid.pb import kserve_pb2

PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
Reply = kserve_pb2.ModelStreamInferResponse


def request(
    model: str, request_id: str, data: bytes = b"abc", *, wants_empty_final: bool = False
) -> Any:
    built = kserve_pb2.ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[data])
    built.inputs.add(name="INPUT0", datatype="UINT8", shape=[len(data)])
    if wants_empty_final:
        built.parameters["triton_enable_empty_final_response"].bool_param = True
    return built


def opened(channel: grpc.aio.Channel, *metadata: tuple[str, str], timeout_s: float = 20) -> Any:
    method: Any = channel.stream_stream(
        PATH,
        request_serializer=lambda item: (
            item if isinstance(item, bytes) else item.SerializeToString()
        ),
        response_deserializer=Reply.FromString,
    )
    return method(metadata=metadata, timeout=timeout_s)


async def write(call: Any, *items: Any) -> None:
    for item in items:
        await call.write(item)


async def read_replies(call: Any, count: int) -> list[tuple[str, str, str]]:
    """The error, id and model name of each of the next replies."""
    replies = [await call.read() for _ in range(count)]
    return [
        (each.error_message, each.infer_response.id, each.infer_response.model_name)
        for each in replies
    ]


async def end(call: Any) -> tuple[str, str]:
    assert await call.read() == grpc.aio.EOF
    return (await call.code()).name, await call.details()
