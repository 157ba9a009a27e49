"""Inference by NVIDIA's clients, in every way that they offer."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable
from http.client import HTTPConnection
from typing import Any

import grpc.aio
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.support.mesh.nvidia_clients import Client, connected
from tests.support.mesh.open_mesh import doubled

ONES = np.ones((1, 8), np.float32)
# Arguments that a model without sequences ignores.
IGNORED = {
    "priority": 1,
    "timeout": 1_000_000,
    "sequence_start": True,
    "sequence_end": True,
    "parameters": {"mine": "text", "number": -7, "flag": True},
}
# Longer than any of these tests may take.
LIMIT_S = 20
# How long a hasty client waits for a model that does not run meanwhile.
HASTY_S = 0.2


def identity_of(result: Any) -> str:
    response = result.get_response()
    return str(response["id"] if isinstance(response, dict) else response.id)


def output_names(result: Any) -> list[str]:
    response = result.get_response()
    if isinstance(response, dict):
        return [each["name"] for each in response["outputs"]]
    return [each.name for each in response.outputs]


def is_twos(result: Any) -> bool:
    array = result.as_numpy("OUTPUT0")
    return bool(array.dtype == np.float32 and (array == 2 * ONES).all())


def one_request(client: Client) -> None:
    for sequence in (0, 7, "sequence"):
        result = client.infer(
            "scaler",
            {"INPUT0": ONES},
            model_version="1",
            request_id="mine",
            sequence_id=sequence,
            headers={"x-any": "thing"},
            **IGNORED,
        )
        assert is_twos(result)
        assert identity_of(result) == "mine"
        assert output_names(result) == ["OUTPUT0"]
    with pytest.raises(InferenceServerException, match="reserved"):
        client.infer("scaler", {"INPUT0": ONES}, parameters={"priority": 1})


def outputs_as_asked(client: Client) -> None:
    seven = np.array([7], np.int64)
    both = client.infer("slow", {"I": seven})
    assert output_names(both) == ["O", "P"]
    wanted = [client.module.InferRequestedOutput("P")]
    one = client.infer("slow", {"I": seven}, outputs=wanted)
    assert (output_names(one), one.as_numpy("P").item()) == (["P"], 21)
    best = [client.module.InferRequestedOutput("OUTPUT0", class_count=1)]
    classes = client.infer("scaler", {"INPUT0": ONES}, outputs=best).as_numpy("OUTPUT0")
    assert classes.tolist() == [[b"2.000000:0"]]
    if not client.is_http:
        return
    for binary_in, binary_out in ((False, True), (True, False), (False, False)):
        tensors = client.inputs({"INPUT0": ONES}, binary_data=binary_in)
        wanted = [client.module.InferRequestedOutput("OUTPUT0", binary_data=binary_out)]
        result = client("infer", "scaler", tensors, outputs=wanted)
        assert is_twos(result)
        (reported,) = result.get_response()["outputs"]
        assert ("data" in reported) is not binary_out


def compressed(client: Client) -> None:
    large = np.ones((16, 8), np.float32)
    for algorithm in ("gzip", "deflate"):
        ways: list[dict[str, Any]] = [{"compression_algorithm": algorithm}]
        if client.is_http:
            names = "request_compression_algorithm", "response_compression_algorithm"
            ways = [{names[0]: algorithm}, {names[1]: algorithm}, dict.fromkeys(names, algorithm)]
        for way in ways:
            result = client.infer("scaler", {"INPUT0": large}, **way)
            assert (result.as_numpy("OUTPUT0") == 2 * large).all()


def too_slow(client: Client) -> None:
    """The model takes longer than the client waits; the next request succeeds all the same."""
    short = {"http": {"network_timeout": HASTY_S}, "http.aio": {"conn_timeout": HASTY_S}}
    with connected(client.mesh, client.flavour, **short.get(client.flavour, {})) as hasty:
        if client.is_http:
            with client.mesh.held("nereid_executor"), pytest.raises(TimeoutError):
                hasty.infer("scaler", {"INPUT0": ONES})
        else:
            with (
                client.mesh.held("nereid_executor"),
                pytest.raises(InferenceServerException, match="DEADLINE_EXCEEDED"),
            ):
                hasty.infer("scaler", {"INPUT0": ONES}, client_timeout=HASTY_S)
    assert doubled(client) == 2


def by_future(client: Client) -> None:
    """HTTP's way of not waiting: an object to ask later."""
    with connected(client.mesh, client.flavour, concurrency=4) as wide:
        started = [
            wide("async_infer", "scaler", wide.inputs({"INPUT0": ONES}), request_id=str(number))
            for number in range(20)
        ]
        for number, each in enumerate(started):
            result = each.get_result(timeout=LIMIT_S)
            assert (identity_of(result), is_twos(result)) == (str(number), True)
        unknown = wide("async_infer", "nobody", wide.inputs({"INPUT0": ONES}))
        with pytest.raises(InferenceServerException, match="'nobody' is not found"):
            unknown.get_result(timeout=LIMIT_S)
        with client.mesh.held("nereid_executor"):
            deferred = wide("async_infer", "scaler", wide.inputs({"INPUT0": ONES}))
            with pytest.raises(InferenceServerException, match="failed to obtain"):
                deferred.get_result(block=False)
            with pytest.raises(InferenceServerException, match="failed to obtain"):
                deferred.get_result(timeout=HASTY_S)
        assert is_twos(deferred.get_result(timeout=LIMIT_S))
    client.called |= wide.called


def by_callback(client: Client) -> None:
    """gRPC's way of not waiting: a callback, and a call to cancel."""
    got: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def start(model: str, tensors: list[Any], **options: Any) -> Any:
        return client(
            "async_infer", model, tensors, lambda result, error: got.put((result, error)), **options
        )

    for number in range(20):
        start("scaler", client.inputs({"INPUT0": ONES}), request_id=str(number), **IGNORED)
    wire_responses = [got.get(timeout=LIMIT_S) for _ in range(20)]
    assert all(error is None and is_twos(result) for result, error in wire_responses)
    reported = sorted(int(identity_of(result)) for result, _ in wire_responses)
    assert reported == list(range(20))
    start("nobody", client.inputs({"INPUT0": ONES}))
    assert "'nobody' is not found" in str(got.get(timeout=LIMIT_S)[1])
    with client.mesh.held("nereid_executor"):
        start("scaler", client.inputs({"INPUT0": ONES}), client_timeout=HASTY_S)
        assert got.get(timeout=LIMIT_S)[1].status() == "StatusCode.DEADLINE_EXCEEDED"
        start("scaler", client.inputs({"INPUT0": ONES})).cancel()
        result, error = got.get(timeout=LIMIT_S)
        assert (result, error.status()) == (None, "StatusCode.CANCELLED")
    assert doubled(client) == 2


def by_stream(client: Client) -> None:
    got: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def begin(**options: Any) -> None:
        client("start_stream", lambda result, error: got.put((result, error)), **options)

    def ask(model: str, tensors: list[Any], **options: Any) -> None:
        client("async_stream_infer", model, tensors, **options)

    once = client.inputs({"I": np.ones(1, np.int64)})
    for options in ({}, {"compression_algorithm": "gzip", "headers": {"x-any": "thing"}}):
        begin(**options)
        with pytest.raises(InferenceServerException, match="another stream"):
            begin()
        for number in range(20):
            tensors = client.inputs({"INPUT0": ONES})
            ask("scaler", tensors, model_version="1", request_id=str(number), **IGNORED)
        ask("nobody", once)
        ask("slow", once, request_id="last", enable_empty_final_response=True)
        # Everything that was asked for gets a response before the stream ends.
        client("stop_stream")
        wire_responses = [got.get_nowait() for _ in range(22)]
        for number, (result, error) in enumerate(wire_responses[:20]):
            assert (error, identity_of(result), is_twos(result)) == (None, str(number), True)
        assert "'nobody' is not found" in str(wire_responses[20][1])
        last = wire_responses[21][0]
        assert (identity_of(last), last.as_numpy("O").item()) == ("last", 3)
        assert last.get_response().parameters["triton_final_response"].bool_param
        assert got.empty()
    begin(stream_timeout=HASTY_S)
    assert got.get(timeout=LIMIT_S)[1].status() == "StatusCode.DEADLINE_EXCEEDED"
    with pytest.raises(InferenceServerException, match="no longer in valid state"):
        ask("scaler", client.inputs({"INPUT0": ONES}))
    client("stop_stream", cancel_requests=True)
    begin()
    with client.mesh.held("nereid_executor"):
        ask("slow", once)
        client("stop_stream", cancel_requests=True)
        assert "cancel" in str(got.get(timeout=LIMIT_S)[1]).lower()
    assert doubled(client) == 2


def by_async_stream(client: Client) -> None:
    tensors = client.inputs({"INPUT0": ONES})
    once = client.inputs({"I": np.ones(1, np.int64)})

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in range(20):
            yield {"model_name": "scaler", "inputs": tensors, "request_id": str(number)} | IGNORED
        yield {"model_name": "nobody", "inputs": tensors}
        yield {"model_name": "slow", "inputs": once, "model_version": "1", "request_id": "last"}

    async def wire_responses(**options: Any) -> list[tuple[Any, Any]]:
        return [each async for each in client("stream_infer", requests(), **options)]

    for options in ({}, {"compression_algorithm": "gzip", "headers": {"x-any": "thing"}}):
        got = client.wait(wire_responses(**options))
        for number, (result, error) in enumerate(got[:20]):
            assert (error, identity_of(result), is_twos(result)) == (None, str(number), True)
        assert "'nobody' is not found" in str(got[20][1])
        assert (identity_of(got[21][0]), got[21][0].as_numpy("O").item()) == ("last", 3)
        assert len(got) == 22
    client.wait(_cancelled(client, tensors))
    # The client hands on what grpc raises, which is another thing while it still sends.
    deferred = pytest.raises(
        grpc.aio.AioRpcError, match=r"DEADLINE_EXCEEDED|Internal error from Core"
    )
    with client.mesh.held("nereid_executor"), deferred:
        client.wait(wire_responses(stream_timeout=HASTY_S))
    assert doubled(client) == 2


async def _cancelled(client: Client, tensors: list[Any]) -> None:
    asked = asyncio.Event()

    async def two() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "scaler", "inputs": tensors}
        await asked.wait()
        yield {"model_name": "scaler", "inputs": tensors}

    responses = client("stream_infer", two())
    result, _ = await anext(responses)
    assert is_twos(result)
    with client.mesh.held("nereid_executor"):
        asked.set()
        assert responses.cancel() is True
        with pytest.raises(asyncio.CancelledError):
            await anext(responses)


def by_hand(client: Client) -> None:
    """Bodies made and read by the client, carried by somebody else."""
    for binary in (True, False):
        wanted = [client.module.InferRequestedOutput("OUTPUT0", binary_data=binary)]
        body, header_length = client(
            "generate_request_body",
            client.inputs({"INPUT0": ONES}, binary_data=binary),
            outputs=wanted,
            request_id="mine",
            **IGNORED,
        )
        headers = {"Inference-Header-Content-Length": str(header_length)} if header_length else {}
        assert bool(headers) is binary
        connection = HTTPConnection(client.mesh.http, timeout=LIMIT_S)
        connection.request("POST", "/v2/models/scaler/infer", body, headers)
        response = connection.getresponse()
        length = response.getheader("Inference-Header-Content-Length")
        result = client(
            "parse_response_body",
            response.read(),
            header_length=int(length) if length is not None else None,
        )
        connection.close()
        assert (length is not None) is binary
        assert (identity_of(result), is_twos(result)) == ("mine", True)


# Methods that each check calls.
INFERENCE: dict[Callable[[Client], None], tuple[str, ...]] = {
    one_request: ("infer",),
    outputs_as_asked: ("infer",),
    compressed: ("infer",),
    too_slow: ("infer",),
    by_future: ("async_infer",),
    by_callback: ("async_infer",),
    by_stream: ("start_stream", "async_stream_infer", "stop_stream"),
    by_async_stream: ("stream_infer",),
    by_hand: ("generate_request_body", "parse_response_body"),
}
# Protocols whose clients have no other way of not waiting.
ONLY: dict[Callable[[Client], None], tuple[str, ...]] = {
    by_future: ("http",),
    by_callback: ("grpc",),
}
