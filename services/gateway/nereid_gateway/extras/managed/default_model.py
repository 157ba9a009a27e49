"""Model that serves requests whose target names no model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nereid.core.errors import InvalidArgument
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from nereid_gateway.plane.control.control import Control


class DefaultModel:
    """The model that a flag names, or else the only model that is ready at the first request."""

    def __init__(self, control: Control, name: str, flag: str) -> None:
        """Keep the value of the flag. name: the value, which may be empty."""
        self._control = control
        self._flag = flag
        # The name is empty while the model is not known.
        self.name = name
        self._search: asyncio.Task[str] | None = None

    async def find(self) -> str:
        """Return the model's name. Raises InvalidArgument unless exactly one model is ready."""
        if self._search is None:
            self._search = asyncio.get_running_loop().create_task(self._find_only())
            self._search.add_done_callback(self._on_found)
        return await asyncio.shield(self._search)

    def _on_found(self, search: asyncio.Task[str]) -> None:
        self._search = None
        if not search.cancelled() and search.exception() is None:
            self.name = search.result()

    async def _find_only(self) -> str:
        index = await self._control.call(
            "RepositoryIndex",
            kserve_pb2.RepositoryIndexRequest(ready=True),
            kserve_pb2.RepositoryIndexResponse,
        )
        names = {model.name for model in index.models}
        if len(names) != 1:
            raise InvalidArgument(f"{len(names)} models are ready: {self._flag} has to name one")
        return names.pop()
