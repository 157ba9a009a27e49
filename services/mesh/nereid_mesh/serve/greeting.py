"""Greeting of `nereid serve` once the mesh is ready: models, URLs and an example request."""

from __future__ import annotations

import asyncio
import json
import shlex
import ssl
from http import HTTPStatus
from http import client as http_client
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from nereid.core.terminal import escape_controls
from nereid.rpc.net.address import authority_of, unix_path
from nereid.rpc.net.backoff import Backoff, BackoffOptions
from nereid.rpc.net.dialing import connect

if TYPE_CHECKING:
    from collections.abc import Mapping

# Loads may take long, so the pauses between two requests grow.
_PAUSES = BackoffOptions(first_s=0.1, factor=1.5, largest_s=3.0)
_TIMEOUT_S = 5.0
# A longer example is of no use.
_MAX_EXAMPLE_LENGTH = 1024
# Number of elements that are assumed for a variable dimension of a response.
_VARIABLE_DIM = 100
_TEXT = "A mesh of small services."


async def greet(addresses: Mapping[str, str], https: str = "") -> None:
    """Wait until no model is loading any more, then print the greeting."""
    if "http" not in addresses:
        return
    if https == "mutual":
        # This process has no client certificate.
        _print_addresses(addresses, https)
        return
    http = _Http(_reachable(addresses["http"]), tls=bool(https))
    backoff = Backoff(_PAUSES)
    while True:
        try:
            models = await asyncio.to_thread(http.request, "POST", "/v2/repository/index")
        except _RefusedError:
            # This process has no credentials for the index.
            _print_addresses(addresses, https)
            return
        except (OSError, http_client.HTTPException, ValueError):
            models = None
        if models is not None and not any(model.get("state") == "LOADING" for model in models):
            break
        await asyncio.sleep(backoff.next_delay_s())
    print(_table(models), end="\n\n")
    _print_addresses(addresses, https)
    # A ready model with a reason is not in memory; describing it would load it.
    loaded = [
        model for model in models if model.get("state") == "READY" and not model.get("reason")
    ]
    ready = sorted({model["name"] for model in loaded})
    try:
        requests = [await asyncio.to_thread(_example, http, name) for name in ready]
    except (_RefusedError, OSError, http_client.HTTPException, ValueError):
        requests = []  # credentials are needed, or a model was unloaded
    examples = [
        request for request in requests if request and len(request.command) < _MAX_EXAMPLE_LENGTH
    ]
    if examples:
        print(f"\nA first request to try:\n\n  {min(examples).command}", flush=True)
    else:
        print(f"\nA first request to try:\n\n  {http.curl}/v2", flush=True)


def _print_addresses(addresses: Mapping[str, str], https: str) -> None:
    http, metrics = addresses["http"], addresses.get("metrics")
    scheme = "" if unix_path(http) is not None else "https://" if https else "http://"
    print(f"KServe v2 over HTTP  {scheme}{_reachable(http)}")
    if "grpc" in addresses:
        print(f"KServe v2 over gRPC  {_reachable(addresses['grpc'])}")
    if metrics is not None:
        scheme = "" if unix_path(metrics) is not None else "http://"
        tail = "/metrics" if scheme else ""
        print(f"Metrics              {scheme}{_reachable(metrics)}{tail}", flush=True)


def _reachable(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"localhost:{port}" if host in ("0.0.0.0", "::", "[::]") else address


class _RefusedError(Exception):
    """An API refuses requests without credentials."""


class _Http:
    def __init__(self, address: str, *, tls: bool) -> None:
        self._address = address
        self._tls = tls
        path = unix_path(address)
        where = f"{'https' if tls else 'http'}://{authority_of(address)}"
        # A shell command with the address, without the path.
        self.curl = f"curl {'' if path is None else f'--unix-socket {path} '}{where}"

    def request(self, method: str, path: str) -> Any:
        """Return the response's JSON document; raise _RefusedError, OSError or HTTPException."""
        connection = self._connection()
        try:
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read()
            if response.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                raise _RefusedError
            if response.status != HTTPStatus.OK:
                raise http_client.HTTPException(body.decode(errors="replace"))
            return json.loads(body)
        finally:
            connection.close()

    def _connection(self) -> http_client.HTTPConnection:
        connection = http_client.HTTPConnection(authority_of(self._address))
        connection.sock = connect(self._address, _TIMEOUT_S)
        if self._tls:
            # The server is a child of this process. Its certificate names other hosts than
            # localhost.
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            connection.sock = context.wrap_socket(connection.sock)
        return connection


def _table(models: list[dict[str, str]]) -> str:
    rows = [("MODEL", "VERSION", "STATE")]
    for model in models:
        state = model.get("state", "")
        # The log has the whole traceback.
        reason = model.get("reason", "").partition("\n")[0]
        version = model.get("version", "-")
        row = (model["name"], version, f"{state}: {reason}" if reason else state)
        # Clients may choose names, which must not look like lines of the log.
        rows.append((escape_controls(row[0]), escape_controls(row[1]), escape_controls(row[2])))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(
        f"{name:{widths[0]}}  {version:{widths[1]}}  {state}" for name, version, state in rows
    )


class _Example(NamedTuple):
    """An example request. The smallest, compared as a tuple, is the easiest to read."""

    # Number of elements in the response, as far as the model states it.
    elements: int
    length: int
    command: str


def _example(http: _Http, model: str) -> _Example | None:
    """Return a curl command that sends text or zeros; `None` for a decoupled model."""
    path = f"/v2/models/{quote(model, safe='')}"
    config = http.request("GET", f"{path}/config")
    if config.get("model_transaction_policy", {}).get("decoupled"):
        return None
    metadata = http.request("GET", path)
    inputs = []
    for tensor in metadata["inputs"]:
        shape = [max(1, int(dim)) for dim in tensor["shape"]]
        value: Any = {"BYTES": _TEXT, "BOOL": False}.get(tensor["datatype"], 0)
        inputs.append(
            {
                "name": tensor["name"],
                "shape": shape,
                "datatype": tensor["datatype"],
                "data": [value] * min(prod(shape), _MAX_EXAMPLE_LENGTH),
            }
        )
    body = json.dumps({"inputs": inputs}, separators=(",", ":"))
    command = f"{http.curl}{path}/infer -d {shlex.quote(body)}"
    rank = 1 if config.get("max_batch_size") else 0
    shapes = [tensor["shape"][rank:] for tensor in metadata.get("outputs", ())]
    elements = sum(
        prod(_VARIABLE_DIM if int(dim) < 0 else int(dim) for dim in shape) for shape in shapes
    )
    return _Example(elements, len(command), command)
