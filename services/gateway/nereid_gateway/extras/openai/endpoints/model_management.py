"""Loads and unloads of models, as Triton's OpenAI front end has them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import orjson

from nereid.core.errors import InvalidArgument, NereidError, error_from_code
from nereid.pb import kserve_pb2
from nereid_gateway.core.access.principal import as_requested_by
from nereid_gateway.extras.openai.endpoints.models import model_document

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nereid_gateway.core.routes import Route
    from nereid_gateway.extras.openai.calls import TextCall, TextServices
    from nereid_gateway.plane.control.control import Control
    from nereid_gateway.server.call import HttpCall


class OpenAiModelManagement:
    """Handlers of the routes that load and unload models."""

    def __init__(self, services: TextServices, control: Control) -> None:
        self._serve = services.serve
        self._models = services.models
        self._control = control
        # One of several calls for a model at once loads it, and the others are refused.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def load(self, call: HttpCall, route: Route) -> None:
        """Load a model that is not loaded, and respond with its entry of the list of models."""
        name = route.model

        async def load(text_call: TextCall) -> Sequence[bytes]:
            if name in await self._models.loaded_names():
                raise InvalidArgument(f"Model '{name}' is already loaded")
            request = kserve_pb2.RepositoryModelLoadRequest(model_name=name).SerializeToString()
            try:
                await self._control.load(as_requested_by(call.sender, request))
            except NereidError as error:
                raise _named(error, f"Failed to load model '{name}'") from error
            text_call.model_name = name
            return (orjson.dumps(model_document(name, await self._models.find(name))),)

        await self._serve(call, "load_model", self._one_at_a_time(name, load))

    async def unload(self, call: HttpCall, route: Route) -> None:
        """Unload a model that is loaded."""
        name = route.model

        async def unload(text_call: TextCall) -> Sequence[bytes]:
            if name not in await self._models.loaded_names():
                raise InvalidArgument(f"Unknown model: {name}")
            request = kserve_pb2.RepositoryModelUnloadRequest(model_name=name).SerializeToString()
            try:
                await self._control.call_bytes(
                    "RepositoryModelUnload", as_requested_by(call.sender, request)
                )
            except NereidError as error:
                raise _named(error, f"Failed to unload model '{name}'") from error
            text_call.model_name = name
            return (orjson.dumps({"status": "success", "model": name}),)

        await self._serve(call, "unload_model", self._one_at_a_time(name, unload))

    def _one_at_a_time(
        self, name: str, change: Callable[[TextCall], Awaitable[Sequence[bytes]]]
    ) -> Callable[[TextCall], Awaitable[Sequence[bytes]]]:
        async def locked(text_call: TextCall) -> Sequence[bytes]:
            lock = self._locks.setdefault(name, asyncio.Lock())
            async with lock:
                return await change(text_call)

        return locked


def _named(error: NereidError, what: str) -> NereidError:
    message = f"{what}: {error.message}"
    return error_from_code(error.code, message, retry_after_ms=error.retry_after_ms)
