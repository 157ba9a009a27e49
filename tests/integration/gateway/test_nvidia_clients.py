"""NVIDIA's own clients against a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from tests.support.gateway.gateway_site import GatewaySite


def tensors(client: Any, array: np.ndarray[Any, Any], datatype: str, **how: bool) -> list[Any]:
    tensor = client.InferInput("INPUT0", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, **how)
    return [tensor]


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.wait_for(asyncio.to_thread(work), 20)


async def test_parameters_and_deadlines_reach_the_scheduler(site: GatewaySite) -> None:
    array = np.array([[0.1, -3e38]], np.float32)
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    def work() -> None:
        with tritonclient.http.InferenceServerClient(site.http) as http:
            http.infer(
                "echo",
                tensors(tritonclient.http, array, "FP32"),
                priority=2,
                timeout=1000,
                parameters={"k": "v"},
                headers={"traceparent": traceparent},
            )
        with tritonclient.grpc.InferenceServerClient(site.grpc) as grpc:
            grpc.infer(
                "echo",
                tensors(tritonclient.grpc, array, "FP32"),
                priority=2,
                timeout=1000,
                parameters={"k": "v"},
                headers={"traceparent": traceparent},
                client_timeout=100,
            )

    await in_thread(work)
    over_http, over_grpc = site.scheduler.received
    assert over_http.head == over_grpc.head
    for each in (over_http, over_grpc):
        assert (each.priority, each.timeout_us, each.parameters) == (2, 1000, {"k": "v"})
        assert each.trace_context == bytes.fromhex(traceparent.replace("-", ""))
    assert over_http.deadline is None
    assert over_grpc.deadline is not None
