"""Clients' shared memory: NVIDIA's own clients, and hostile requests."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import serialize_byte_tensor

from tests.support.gateway.gateway_site import GatewaySite, gateway_site
from tests.support.mesh.mesh import ask
from tests.support.peers.shared_memory import Objects, open_files, shared_memory_objects

X = np.arange(16, dtype=np.float32).reshape(1, 16)
STRINGS = np.array([b"a", b"", "é".encode()], np.object_)
SIZE = 4096


@pytest.fixture
async def site() -> AsyncIterator[GatewaySite]:
    async with gateway_site(allow_client_shm=True) as made:
        yield made
    assert not {name for name in open_files() if "nereid_test" in name}


@pytest.fixture
def objects() -> Iterator[Objects]:
    with shared_memory_objects() as made:
        yield made


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.wait_for(asyncio.to_thread(work), 20)


def tensors(client: Any, array: np.ndarray[Any, Any], datatype: str, size: int) -> Any:
    tensor = client.InferInput("INPUT0", list(array.shape), datatype)
    tensor.set_shared_memory("in", size)
    inline = client.InferInput("INPUT1", [1, 16], "FP32")
    inline.set_data_from_numpy(X)
    output = client.InferRequestedOutput("OUTPUT0")
    output.set_shared_memory("out", size + 8, offset=16)
    # Only one of the inputs and one of the outputs are in regions.
    return [inline, tensor], [output, client.InferRequestedOutput("OUTPUT1")]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_blocking_clients(site: GatewaySite, objects: Objects, protocol: str) -> None:
    client_module: Any = getattr(tritonclient, protocol)
    serialized = serialize_byte_tensor(STRINGS).item()

    def work() -> None:
        regions = [
            shm.create_shared_memory_region(name, objects.make(bytes(SIZE)), SIZE)
            for name in ("in", "out")
        ]
        with client_module.InferenceServerClient(getattr(site, protocol)) as client:
            for region in regions:
                name, key = region._triton_shm_name, region._shm_key
                client.register_system_shared_memory(name, key, SIZE)
            for array, datatype, data in (
                (X, "FP32", X.tobytes()),
                (STRINGS, "BYTES", serialized),
                (X, "FP32", X.tobytes()),
            ):
                shm.set_shared_memory_region(regions[0], [np.frombuffer(data, np.uint8)])
                asked = tensors(client_module, array, datatype, len(data))
                result = client.infer("echo", asked[0], outputs=asked[1], request_id="q")
                output = shm.get_contents_as_numpy(regions[1], array.dtype, array.shape, 16)
                np.testing.assert_array_equal(output, array)
                np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), X)
            client.unregister_system_shared_memory()
        # An array on a region keeps it from being closed.
        del output
        for region in regions:
            shm.destroy_shared_memory_region(region)

    await in_thread(work)


# --- by hand, over HTTP --------------------------------------------------------------------------


async def post(site: GatewaySite, path: str, document: Any) -> tuple[int, Any]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    status, response = await in_thread(lambda: ask(site.http, path, "POST", body))
    return status, json.loads(response) if response else None


async def register(site: GatewaySite, name: str, key: str, size_bytes: int = SIZE) -> None:
    path = f"/v2/systemsharedmemory/region/{name}/register"
    assert await post(site, path, {"key": key, "byte_size": size_bytes}) == (200, None)


def infer_body(given: dict[str, Any], wanted: dict[str, Any] | None = None) -> dict[str, Any]:
    tensor = {"name": "INPUT0", "shape": [4], "datatype": "FP32", "parameters": given}
    output = {"name": "OUTPUT0", **({"parameters": wanted} if wanted else {})}
    return {"inputs": [tensor], "outputs": [output]}


def place(region: Any, size: Any = 16, offset: Any = 0) -> dict[str, Any]:
    return {
        "shared_memory_region": region,
        "shared_memory_byte_size": size,
        "shared_memory_offset": offset,
    }


PAST = "Invalid offset + byte size for shared memory region: 'r'"


async def test_a_region_in_use_is_unregistered_after_its_requests(
    site: GatewaySite, objects: Objects
) -> None:
    key = objects.make(X.tobytes() + bytes(SIZE))
    await register(site, "r", key)
    await register(site, "free", objects.make(bytes(SIZE)))
    body = infer_body(place("r"), place("r", 16, 1024))
    response = asyncio.create_task(post(site, "/v2/models/hold/infer", body))
    held = await site.scheduler.next_held()
    for path in ("region/r/unregister", "unregister"):
        assert await post(site, f"/v2/systemsharedmemory/{path}", b"") == (200, None)
    _, kept = await in_thread(lambda: ask(site.http, "/v2/systemsharedmemory/status"))
    assert [each["name"] for each in json.loads(kept)] == ["r"]
    site.scheduler.link.send(site.scheduler.echo(held))
    assert (await response)[0] == 200
    assert objects.read(key)[1024:1040] == X.tobytes()[:16]
    _, left = await in_thread(lambda: ask(site.http, "/v2/systemsharedmemory/status"))
    assert json.loads(left) == []


@pytest.mark.parametrize("wrong", [place("r", -1), place("r", 16, "0")])
async def test_ranges_are_made_of_numbers(site: GatewaySite, wrong: dict[str, Any]) -> None:
    assert (await post(site, "/v2/models/echo/infer", infer_body(wrong)))[0] == 500


async def test_a_region_that_shrinks_fails_its_requests_alone(
    site: GatewaySite, objects: Objects
) -> None:
    read, written = objects.make(X.tobytes()), objects.make(bytes(64))
    await register(site, "r", read, 64)
    await register(site, "w", written, 64)
    body = infer_body(place("r"), place("w"))
    assert (await post(site, "/v2/models/echo/infer", body))[0] == 200
    os.truncate(objects.path(written), 8)
    error = {"error": PAST.replace("'r'", "'w'")}
    assert await post(site, "/v2/models/echo/infer", body) == (400, error)
    assert len(objects.read(written)) == 8
    os.truncate(objects.path(read), 8)
    assert await post(site, "/v2/models/echo/infer", body) == (400, {"error": PAST})


async def test_a_cancelled_request_releases_its_regions(
    site: GatewaySite, objects: Objects
) -> None:
    key = objects.make(bytes(SIZE))
    await register(site, "r", key)
    tensor = tritonclient.grpc.InferInput("INPUT0", [4], "FP32")
    tensor.set_shared_memory("r", 16, 64)
    output = tritonclient.grpc.InferRequestedOutput("OUTPUT0")
    output.set_shared_memory("r", 16)
    async with tritonclient.grpc.aio.InferenceServerClient(site.grpc) as client:
        call = asyncio.create_task(client.infer("hold", [tensor], outputs=[output]))
        held = await site.scheduler.next_held()
        await client.unregister_system_shared_memory("r")
        status = await client.get_system_shared_memory_status()
        assert [*status.regions] == ["r"]
        call.cancel()
        await asyncio.wait_for(site.scheduler.cancelled.get(), 5)
        status = await client.get_system_shared_memory_status()
        assert not status.regions
    site.scheduler.link.send(site.scheduler.echo(held))
    assert objects.read(key) == bytes(SIZE)


async def test_stream_responses_in_shared_memory(site: GatewaySite, objects: Objects) -> None:
    key = objects.make(X.tobytes() + bytes(SIZE))
    await register(site, "r", key)
    tensor = tritonclient.grpc.InferInput("INPUT0", [4], "FP32")
    tensor.set_shared_memory("r", 16)
    output = tritonclient.grpc.InferRequestedOutput("OUTPUT0")

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for offset in (1024, 2048, SIZE):
            output.set_shared_memory("r", 16, offset)
            yield {"model_name": "echo", "inputs": [tensor], "outputs": [output]}

    async with tritonclient.grpc.aio.InferenceServerClient(site.grpc) as client:
        errors = [str(error) async for _, error in client.stream_infer(requests()) if error]
    assert errors == ["Invalid offset for shared memory region: 'r'"]
    for offset in (1024, 2048):
        assert objects.read(key)[offset : offset + 16] == X.tobytes()[:16]
