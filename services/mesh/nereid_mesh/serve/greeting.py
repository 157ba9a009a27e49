"""Greeting of `nereid serve` once the mesh is ready: models, URLs and an example request."""

from __future__ import annotations

import asyncio
import json
import shlex
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import quote

from nereid import rpc
from nereid.core.terminal import escape_controls
from nereid.rpc.net.address import authority_of, unix_path
from nereid.rpc.net.backoff import Backoff, BackoffOptions
from nereid.text.mapping import CLASSIFY, DECIDE, EMBED, GENERATE, RANK

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# Loads may take long, so the pauses between two requests grow.
_PAUSES = BackoffOptions(first_s=0.1, factor=1.5, largest_s=3.0)
# A longer example is of no use.
_MAX_EXAMPLE_LENGTH = 1024
# Number of elements that are assumed for a variable dimension of a response.
_VARIABLE_DIM = 100
_TEXT = "A mesh of small services."
_QUESTION = {"type": "predicate", "instructions": "It is about software."}
# Paths and bodies of OpenAI's API, by task.
_TEXT_BODIES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    EMBED: ("embeddings", {"input": _TEXT}),
    RANK: ("rerank", {"query": "What is a mesh?", "documents": [_TEXT, "It rains."]}),
    CLASSIFY: ("classify", {"input": _TEXT}),
    DECIDE: ("decisions", {"input": _TEXT, "questions": [_QUESTION]}),
    GENERATE: ("completions", {"prompt": _TEXT, "max_tokens": 16}),
}


class Models(Protocol):
    """The mesh's models, described in Triton's JSON; each method may raise RpcError."""

    async def index(self) -> list[dict[str, Any]]:
        """Return an entry for each version."""

    async def config(self, model: str) -> dict[str, Any]:
        """Return a model's configuration."""

    async def metadata(self, model: str) -> dict[str, Any]:
        """Return a model's metadata."""

    async def text_tasks(self, model: str) -> Collection[str]:
        """Return what a model does with texts; empty if nothing."""


class ClientAccess(NamedTuple):
    """Needs of clients; https: "yes", "mutual" for client certificates, or ""."""

    https: str = ""
    # True if a request for inference needs a key or a token.
    needs_key: bool = False
    # True if the HTTP port serves the console.
    console: bool = False
    # True if the HTTP port serves OpenAI's API.
    openai: bool = False

    def curl(self, address: str) -> str:
        """Return a shell command with the address, without the path."""
        path = unix_path(address)
        words = ["curl"]
        if path is not None:
            words.append(f"--unix-socket {path}")
        if self.https == "mutual":
            words.append("--cert CERTIFICATE --key KEY")
        if self.needs_key:
            words.append("-H 'Authorization: Bearer KEY-OR-TOKEN'")
        return f"{' '.join(words)} {self.scheme}{authority_of(address)}"

    @property
    def scheme(self) -> str:
        """Scheme of the HTTP port's URL."""
        return "https://" if self.https else "http://"


async def loaded_models(mesh: Models) -> list[dict[str, Any]]:
    """Wait until no model is loading any more, and return an entry for each version."""
    backoff = Backoff(_PAUSES)
    while True:
        try:
            models = await mesh.index()
        except rpc.RpcError:
            models = None
        if models is not None and not any(model.get("state") == "LOADING" for model in models):
            return models
        await asyncio.sleep(backoff.next_delay_s())


async def greet(
    models: list[dict[str, Any]], addresses: Mapping[str, str], mesh: Models, access: ClientAccess
) -> None:
    """Print the greeting of a mesh with an HTTP port."""
    print(_table(models), end="\n\n")
    _print_addresses(addresses, access)
    # A ready model with a reason is not in memory; describing it would load it.
    loaded = [
        model for model in models if model.get("state") == "READY" and not model.get("reason")
    ]
    curl = access.curl(_reachable(addresses["http"]))
    examples = []
    for name in sorted({model["name"] for model in loaded}):
        try:
            example = await _text_example(curl, mesh, name) if access.openai else None
            example = example or await _example(curl, mesh, name)
        except rpc.RpcError:
            continue  # the model was unloaded meanwhile
        if example is not None and len(example.command) < _MAX_EXAMPLE_LENGTH:
            examples.append(example)
    command = min(examples).command if examples else f"{curl}/v2"
    print(f"\nA first request to try:\n\n  {command}", flush=True)


def _print_addresses(addresses: Mapping[str, str], access: ClientAccess) -> None:
    http, metrics = addresses["http"], addresses.get("metrics")
    is_tcp = unix_path(http) is None
    print(f"KServe v2 over HTTP  {access.scheme if is_tcp else ''}{_reachable(http)}")
    if "grpc" in addresses:
        print(f"KServe v2 over gRPC  {_reachable(addresses['grpc'])}")
    if metrics is not None:
        scheme = "" if unix_path(metrics) is not None else "http://"
        tail = "/metrics" if scheme else ""
        print(f"Metrics              {scheme}{_reachable(metrics)}{tail}")
    if access.openai and is_tcp:
        print(f"OpenAI's API         {access.scheme}{_reachable(http)}/v1")
    if access.console and is_tcp:
        print(f"Console              {access.scheme}{_reachable(http)}/console")


def _reachable(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"localhost:{port}" if host in ("0.0.0.0", "::", "[::]") else address


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


async def _text_example(curl: str, mesh: Models, model: str) -> _Example | None:
    """Return a curl command for OpenAI's API, which comes before all others."""
    tasks = await mesh.text_tasks(model)
    for task, (path, body) in _TEXT_BODIES.items():
        if task in tasks:
            text = json.dumps({"model": model, **body})
            command = f"{curl}/v1/{path} -H 'Content-Type: application/json' -d {shlex.quote(text)}"
            return _Example(0, len(command), command)
    return None


async def _example(curl: str, mesh: Models, model: str) -> _Example | None:
    """Return a curl command that sends text or zeros; `None` for a decoupled model."""
    config = await mesh.config(model)
    if config.get("model_transaction_policy", {}).get("decoupled"):
        return None
    metadata = await mesh.metadata(model)
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
    path = f"/v2/models/{quote(model, safe='')}/infer"
    command = f"{curl}{path} -d {shlex.quote(body)}"
    rank = 1 if config.get("max_batch_size") else 0
    shapes = [tensor["shape"][rank:] for tensor in metadata.get("outputs", ())]
    elements = sum(
        prod(_VARIABLE_DIM if int(dim) < 0 else int(dim) for dim in shape) for shape in shapes
    )
    return _Example(elements, len(command), command)
