"""NVIDIA's four clients behind one face, on which every call is blocking.

Which of a client's methods were called is noted, so that a test can check that none is left out.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import np_to_triton_dtype

from tests.support.mesh.mesh import Mesh

FLAVOURS = {
    "http": tritonclient.http,
    "grpc": tritonclient.grpc,
    "http.aio": tritonclient.http.aio,
    "grpc.aio": tritonclient.grpc.aio,
}

# On which engine each client is tried, and each protocol: HTTP has nothing to do with it.
SITES = [
    *(("nereid", flavour) for flavour in FLAVOURS),
    *(("grpcio", flavour) for flavour in ("grpc", "grpc.aio")),
]
# HTTP does not depend on the gRPC engine.
PROTOCOLS = [("nereid", "http"), ("nereid", "grpc"), ("grpcio", "grpc")]
# As parameters of tests: whole meshes on the fall-back engine are nightly.
MARKED_PROTOCOLS = [
    *PROTOCOLS[:2],
    pytest.param(*PROTOCOLS[2], marks=pytest.mark.nightly),
]


def public_methods(flavour: str) -> set[str]:
    """Return the methods that a user of the client can call."""
    members = inspect.getmembers(FLAVOURS[flavour].InferenceServerClient, callable)
    return {name for name, _ in members if not name.startswith("_")}


class Client:
    """One client of one flavour, until it is closed."""

    def __init__(self, mesh: Mesh, flavour: str, **options: Any) -> None:
        self.mesh, self.flavour = mesh, flavour
        self.module = FLAVOURS[flavour]
        self.is_http = flavour.startswith("http")
        self.called: set[str] = set()
        self._url = mesh.http if self.is_http else mesh.grpc
        self._options = options
        # An aio client belongs to the loop that it was made in.
        self._runner = asyncio.Runner() if flavour.endswith("aio") else None
        self._client = self.wait(self._make()) if self._runner else self._made()

    def _made(self) -> Any:
        return self.module.InferenceServerClient(self._url, **self._options)

    async def _make(self) -> Any:
        return self._made()

    def wait(self, awaitable: Any) -> Any:
        """Return the result of a coroutine."""
        assert self._runner
        return self._runner.run(awaitable)

    def __call__(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.called.add(method)
        result = getattr(self._client, method)(*args, **kwargs)
        return self.wait(result) if inspect.iscoroutine(result) else result

    def reported(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """A call's response as JSON, which HTTP's clients give anyway."""
        return self(method, *args, **kwargs, **({} if self.is_http else {"as_json": True}))

    def inputs(self, arrays: dict[str, np.ndarray[Any, Any]], **how: Any) -> list[Any]:
        made = []
        for name, array in arrays.items():
            each = self.module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            each.set_data_from_numpy(array, **how)
            made.append(each)
        return made

    def infer(self, model: str, arrays: dict[str, np.ndarray[Any, Any]], **kwargs: Any) -> Any:
        return self("infer", model, self.inputs(arrays), **kwargs)

    def close(self) -> None:
        self("close")
        if self._runner:
            self._runner.close()


@contextmanager
def connected(mesh: Mesh, flavour: str, **options: Any) -> Iterator[Client]:
    client = Client(mesh, flavour, **options)
    try:
        yield client
    finally:
        client.close()
