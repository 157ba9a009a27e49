"""What `nereid serve` prints once the mesh answers: the models, the URLs and a request to try."""

from __future__ import annotations

import asyncio
import http.client
import json
from math import prod
from typing import Any

_PAUSE_S = 0.1
# A longer first request is no help to anybody.
_LONGEST_EXAMPLE = 1024


async def greet(
    http_address: str | None, grpc_address: str | None, metrics_address: str | None
) -> None:
    """Wait until the mesh serves and its models have settled, then print."""
    if http_address is None:
        return
    http_address, grpc_address = _reachable(http_address), grpc_address and _reachable(grpc_address)
    while True:
        try:
            models = await asyncio.to_thread(_post, http_address, "/v2/repository/index")
        except (OSError, http.client.HTTPException, ValueError):
            models = None
        if models is not None and not any(model.get("state") == "LOADING" for model in models):
            break
        await asyncio.sleep(_PAUSE_S)
    print(_table(models))
    print(f"\nKServe v2 over HTTP  http://{http_address}")
    if grpc_address:
        print(f"KServe v2 over gRPC  {grpc_address}")
    if metrics_address:
        print(f"Metrics              http://{_reachable(metrics_address)}/metrics")
    ready = sorted({model["name"] for model in models if model.get("state") == "READY"})
    requests = [await asyncio.to_thread(_example, http_address, name) for name in ready]
    requests = [request for request in requests if len(request) < _LONGEST_EXAMPLE]
    if requests:
        print(f"\nA first request to try:\n\n{min(requests, key=len)}", flush=True)
    else:
        print(f"\nA first request to try:\n\n  curl http://{http_address}/v2", flush=True)


def _reachable(address: str) -> str:
    """An address to try on this machine where a server listens on all interfaces."""
    host, _, port = address.rpartition(":")
    return f"localhost:{port}" if host in ("0.0.0.0", "::", "[::]") else address


def _post(address: str, path: str) -> Any:
    return _ask(address, "POST", path)


def _ask(address: str, method: str, path: str) -> Any:
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
        if response.status != http.HTTPStatus.OK:
            raise http.client.HTTPException(body.decode(errors="replace"))
        return json.loads(body)
    finally:
        connection.close()


def _table(models: list[dict[str, str]]) -> str:
    rows = [("MODEL", "VERSION", "STATE")]
    for model in models:
        state = model.get("state", "")
        reason = model.get("reason", "")
        rows.append(
            (model["name"], model.get("version", "-"), f"{state}: {reason}" if reason else state)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(
        f"{name:{widths[0]}}  {version:{widths[1]}}  {state}" for name, version, state in rows
    )


def _example(address: str, model: str) -> str:
    """A curl line that sends the model a request of zeros."""
    metadata = _ask(address, "GET", f"/v2/models/{model}")
    inputs = []
    for tensor in metadata["inputs"]:
        shape = [max(1, int(dim)) for dim in tensor["shape"]]
        zero: Any = {"BYTES": "", "BOOL": False}.get(tensor["datatype"], 0)
        inputs.append(
            {
                "name": tensor["name"],
                "shape": shape,
                "datatype": tensor["datatype"],
                "data": [zero] * min(prod(shape), _LONGEST_EXAMPLE),
            }
        )
    body = json.dumps({"inputs": inputs}, separators=(",", ":"))
    return f"  curl http://{address}/v2/models/{model}/infer -d '{body}'"
