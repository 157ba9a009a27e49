"""The mock server, as NVIDIA's clients and load tools use it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from nereid_perf.endpoint import Endpoint, Protocol
from nereid_perf.mock.model import MockModel
from nereid_perf.mock.server import MockServer
from nereid_perf.mock.service_times import ServiceTimes
from nereid_perf.server import Server

_PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")
_MODULES: dict[str, Any] = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@asynccontextmanager
async def _serving(model: MockModel, protocol: Protocol) -> AsyncIterator[str]:
    server = MockServer(model, ServiceTimes(0))
    http, grpc = await server.listen(("127.0.0.1", 0), ("127.0.0.1", 0))
    try:
        yield http if protocol == "http" else grpc
    finally:
        await server.close()


async def _asked(model: MockModel, protocol: Protocol, ask: Callable[[str], Any]) -> Any:
    async with _serving(model, protocol) as address:
        return await asyncio.to_thread(ask, address)


@pytest.mark.parametrize("protocol", _PROTOCOLS)
@pytest.mark.parametrize("request_id", ["", "17"])
async def test_a_response_has_its_requests_id(protocol: Protocol, request_id: str) -> None:
    module = _MODULES[protocol]

    def infer(address: str) -> Any:
        with module.InferenceServerClient(address) as client:
            tensor = module.InferInput("INPUT0", [8], "FP32")
            tensor.set_data_from_numpy(np.zeros(8, np.float32))
            result = client.infer("any", [tensor], request_id=request_id)
            assert result.as_numpy("OUTPUT0").shape == (8,)
            response = result.get_response()
            return response.get("id", "") if protocol == "http" else response.id

    assert await _asked(MockModel(), protocol, infer) == request_id


@pytest.mark.parametrize("protocol", _PROTOCOLS)
async def test_regions_are_accepted(protocol: Protocol) -> None:
    def register(address: str) -> tuple[str, ...]:
        server = Server(Endpoint(protocol, address))
        server.register_system_shared_memory("region_1", "/region_1", 64)
        server.unregister_system_shared_memory("region_1")
        server.unregister_system_shared_memory()
        return server.extensions()

    assert "system_shared_memory" in await _asked(MockModel(), protocol, register)


@pytest.mark.parametrize("protocol", _PROTOCOLS)
@pytest.mark.parametrize("has_sequences", [False, True])
async def test_a_model_says_whether_it_has_sequences(
    protocol: Protocol, has_sequences: bool
) -> None:
    def ask(address: str) -> dict[str, Any]:
        return Server(Endpoint(protocol, address)).config("any") or {}

    model = MockModel(has_sequences=has_sequences)
    assert ("sequence_batching" in await _asked(model, protocol, ask)) is has_sequences
