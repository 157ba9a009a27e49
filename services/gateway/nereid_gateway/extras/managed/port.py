"""Managed port: turns calls into calls of KServe routes, behind the HTTP port's guards."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from nereid.core.errors import NereidError, http_status
from nereid_gateway.core.routes import resolve
from nereid_gateway.server.call import JSON, TEXT
from nereid_gateway.server.call_tasks import CallTasks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nereid_gateway.extras.managed.server.calls import ManagedCall
    from nereid_gateway.server.body import AllocateBody
    from nereid_gateway.server.call import BodyBuffer, HttpCall
    from nereid_gateway.server.ordered_responses import Dispatch

    # Puts the guards in front of a Dispatch.
    Guard = Callable[[Dispatch], tuple[Dispatch, AllocateBody]]


class SpawnControl(Protocol):
    """Type of HttpFront.spawn_control."""

    def __call__(
        self,
        call: HttpCall,
        handle: Callable[[], Coroutine[Any, Any, None] | None],
        *,
        survives_disconnect: bool,
    ) -> None:
        """Serve a control call when it is the client's turn."""


class Platform(Protocol):
    """Translates a platform's routes to KServe routes. Methods may raise NereidError."""

    def translate_head(self, call: ManagedCall) -> bool:
        """Translate a call by its head and return True if it is an inference request.

        The body has not arrived, so the method cannot respond.
        """

    def translate(self, call: ManagedCall) -> Coroutine[Any, Any, None] | None:
        """Translate any other call, or respond to it.

        If this needs the scheduler, return a coroutine that does the work.
        """


class ManagedPort:
    """Dispatches the ManagedCalls of one managed port. An instance is a Dispatch."""

    def __init__(
        self,
        name: str,
        platform: Platform,
        front: Dispatch,
        guard: Guard,
        spawn_control: SpawnControl,
    ) -> None:
        """Put the guard in front of this port.

        front: serves the KServe routes. spawn_control: runs calls that the platform serves itself.
        """
        self.name = name
        self._spawn_control = spawn_control
        self._platform = platform
        self._front = front
        self._guarded, self._allocate_body = guard(self._serve)
        self._tasks = CallTasks()

    def allocate_body(self, call: HttpCall, size_bytes: int) -> BodyBuffer | None:
        """Return a buffer as the HTTP port does, for inference requests only."""
        # The error occurs again when the body has arrived, and is reported then.
        with contextlib.suppress(NereidError):
            if self._platform.translate_head(cast("ManagedCall", call)):
                return self._allocate_body(call, size_bytes)
        return None

    def __call__(self, call: HttpCall) -> None:
        """Translate a call and dispatch it."""
        managed = cast("ManagedCall", call)
        try:
            if not managed.translated and not self._platform.translate_head(managed):
                work = self._platform.translate(managed)
                if work is not None:
                    self._tasks.spawn(call, self._dispatch_later(managed, work))
                    return
        except NereidError as error:
            call.fail(http_status(error.code), error.message, TEXT)
        else:
            self._dispatch(managed)

    async def _dispatch_later(
        self, call: ManagedCall, translating: Coroutine[Any, Any, None]
    ) -> None:
        await translating
        self._dispatch(call)

    def _dispatch(self, call: ManagedCall) -> None:
        if call.done:
            return
        if self.name in resolve(call.target).endpoint.ports:
            self._guarded(call)
        else:
            refuse_route(call)

    def _serve(self, call: HttpCall) -> None:
        managed = cast("ManagedCall", call)
        if managed.work is None:
            self._front(call)
            return
        self._spawn_control(call, partial(managed.work, managed), survives_disconnect=True)


def refuse_route(call: ManagedCall) -> None:
    """Respond as Triton does to a target that is not one of the platform's routes."""
    call.fail(400, "there is no such route on this port", JSON)
