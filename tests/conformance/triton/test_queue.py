"""A bounded queue in front of a busy model: what is refused, what expires, and why."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any, Final

import pytest

from tests.conformance.exchange import NoResponseError, Rpc, Server, Step
from tests.conformance.grpc_infer import parameter, request, tensor
from tests.conformance.http_infer import infer, one
from tests.conformance.triton.conftest import Pair
from tests.support.mesh.mesh import ask, until

_PENDING: Final = re.compile(
    r'^nv_inference_pending_request_count\{model="slow".*\} (\d+)', re.MULTILINE
)


def _http(busy_ms: int, timeout_us: int) -> Step:
    document = one([busy_ms], (1, 1), "INT64", id="7", parameters={"timeout": timeout_us})
    return infer("", "slow", document).steps[0]


def _grpc(busy_ms: int, timeout_us: int) -> Step:
    timeout = parameter(int64_param=timeout_us)
    inputs = [tensor(datatype="INT64", shape=(1, 1))]
    content = struct.pack("<q", busy_ms)
    message = request("slow", inputs, (content,), id="7", parameters={"timeout": timeout})
    return Rpc("ModelInfer", message)


def _pending(server: Server) -> int:
    _, page = ask(f"127.0.0.1:{server.metrics_port}", "/metrics")
    found = _PENDING.search(page.decode())
    assert found is not None
    return int(found[1])


def _story(server: Server, step: Callable[[int, int], Step]) -> list[Any]:
    """One executes, one like it waits, one expires behind them, and one finds the queue full."""
    with ThreadPoolExecutor(3) as pool:
        executing = [pool.submit(server.ask, step(5000, 0)) for _ in range(2)]
        until(lambda: _pending(server) == 1, "one to be queued", 10)
        expiring = pool.submit(server.ask, step(1, 1_000_000))
        until(lambda: _pending(server) == 2, "another to be queued", 10)
        refused = server.ask(step(1, 0))
        return [each.result() for each in (*executing, expiring)] + [refused]


def _real_story(pair: Pair, step: Callable[[int, int], Step]) -> list[Any]:
    """Nothing where it goes otherwise: the real server died, or was slow."""
    try:
        return _story(pair.triton.server, step)
    except (AssertionError, NoResponseError, OSError, HTTPException) as error:
        print(f"tritonserver told no story: {error!r}")
        return []


@pytest.mark.parametrize("pair", ["default"], indirect=True)
@pytest.mark.parametrize("step", [_http, _grpc])
def test_a_full_queue(pair: Pair, step: Callable[[int, int], Step]) -> None:
    ours = _story(pair.nereid, step)
    real = pair.real(lambda: _real_story(pair, step), lambda reported: bool(reported == ours))
    if not real:
        pytest.skip("the real Triton has no story, or now this one, now that one")
    assert ours == real
