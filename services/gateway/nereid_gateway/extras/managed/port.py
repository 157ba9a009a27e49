"""One managed port: its calls become calls of KServe routes, behind the guards of the HTTP port."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from nereid.core.errors import NereidError, http_status
from nereid_gateway.core.routes import RULES, resolve
from nereid_gateway.server.call import JSON, TEXT
from nereid_gateway.server.call_tasks import CallTasks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nereid_gateway.extras.managed.server.calls import ManagedCall
    from nereid_gateway.server.body import AllocateBody
    from nereid_gateway.server.call import BodyBuffer, HttpCall
    from nereid_gateway.server.ordered_responses import Dispatch

    # Puts the guards in front of a dispatch: what asks whether a call is permitted.
    Guard = Callable[[Dispatch], tuple[Dispatch, AllocateBody]]


class SpawnControl(Protocol):
    """HttpFront.spawn_control."""

    def __call__(
        self,
        call: HttpCall,
        handle: Callable[[], Coroutine[Any, Any, None] | None],
        *,
        goes_on: bool,
    ) -> None: ...


class Platform(Protocol):
    """What the routes of a platform mean. Both methods may raise NereidError."""

    def translate_head(self, call: ManagedCall) -> bool:
        """Translate a call that is an inference request by its head; whether it is one. Its body
        has not arrived yet, so there can be no response.
        """

    def translate(self, call: ManagedCall) -> Coroutine[Any, Any, None] | None:
        """Translate any other call, or respond to it; a coroutine does so where that takes a call
        to the scheduler.
        """


class ManagedPort:
    """Dispatches the calls of one port, which are ManagedCalls. Calling it is dispatching one."""

    def __init__(
        self,
        name: str,
        platform: Platform,
        front: Dispatch,
        guard: Guard,
        spawn_control: SpawnControl,
    ) -> None:
        """name: as the table of routes has it. front: serves the KServe routes, behind guard.
        spawn_control: as of HttpFront, for calls that the platform serves by itself.
        """
        self.name = name
        self._spawn_control = spawn_control
        self._platform = platform
        self._front = front
        self._guarded, self._allocate_body = guard(self._serve)
        self._tasks = CallTasks()

    def allocate_body(self, call: HttpCall, size_bytes: int) -> BodyBuffer | None:
        """As the HTTP port does, if the head says that it is an inference request."""
        # An error is found again, and reported, once the body is there.
        with contextlib.suppress(NereidError):
            if self._platform.translate_head(cast("ManagedCall", call)):
                return self._allocate_body(call, size_bytes)
        return None

    def __call__(self, call: HttpCall) -> None:
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
        rule = RULES.get(resolve(call.target).kind)
        if rule is None or self.name not in rule.ports:
            refuse_route(call)
        else:
            self._guarded(call)

    def _serve(self, call: HttpCall) -> None:
        """Serve what the guards have let pass."""
        managed = cast("ManagedCall", call)
        if managed.work is None:
            self._front(call)
            return
        self._spawn_control(call, partial(managed.work, managed), goes_on=True)


def refuse_route(call: ManagedCall) -> None:
    """Respond as Triton does to a target that is none of the platform's."""
    call.fail(400, "there is no such route on this port", JSON)
