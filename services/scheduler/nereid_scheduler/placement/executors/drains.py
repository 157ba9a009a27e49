"""Asks executors to leave the mesh, and waits until they announce that they leave.

An executor leaves all its schedulers. Only this scheduler's executors count as remaining ones,
since any other may be leaving at this moment.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nereid.core.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unavailable,
    Unimplemented,
)
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from nereid_scheduler.placement.executors.sessions import Session

# Seconds to wait for the announcement, which precedes the executor's last batches.
_CONFIRM_LIMIT_S: Final = 5.0
_NOT_ALLOWED: Final = (
    "executors may be drained with --model-control-mode=explicit, as models may be loaded and"
    " unloaded, or by clients that --auth-config or --http-restricted-api lets in"
)
_MAX_NAMED: Final = 5


class Drains:
    """Drains executors that have joined one scheduler."""

    def __init__(
        self,
        sessions: Callable[[], Iterable[Session]],
        facts: Callable[[], Awaitable[pb.FactsResponse]],
        *,
        for_all: bool,
        confirm_limit_s: float = _CONFIRM_LIMIT_S,
    ) -> None:
        self._sessions = sessions
        self._facts = facts
        self._for_all = for_all
        self._confirm_limit_s = confirm_limit_s
        # Set when the executor announces that it leaves, or is lost. Concurrent calls share the
        # event.
        self._ends: dict[Session, asyncio.Event] = {}

    async def drain(self, request: pb.DrainExecutorRequest) -> pb.DrainExecutorResponse:
        """Ask an executor to leave, and wait until it has announced that it leaves.

        Raises InvalidArgument if the executor is the last one of a model or of the mesh, unless the
        request allows that.
        """
        if not (self._for_all or request.authorized):
            raise PermissionDenied(_NOT_ALLOWED)
        name = request.name
        session = next((joined for joined in self._sessions() if joined.name == name), None)
        if session is None:
            raise NotFound(f"no executor '{name[:100]}' has joined the mesh, or it has left")
        if not session.hello.drains:
            raise Unimplemented(
                f"executor '{name}' cannot be drained by a call: it is of an older release, or in"
                " the process of its scheduler; end its process with SIGTERM"
            )
        if not request.allow_last:
            facts = await self._facts()
            silent = [scheduler.name for scheduler in facts.schedulers if not scheduler.reachable]
            if silent:
                raise Unavailable(
                    f"scheduler '{silent[0]}' does not say which models executor '{name}' has"
                    " alone: try again, or say that it may be the last one, with ?allow_last=true"
                )
            leaving = {other.name for other in self._ends}
            remaining = {other.name for other in self._sessions()} - leaving
            if reason := last_of(facts, name, remaining):
                raise InvalidArgument(
                    f"executor '{name}' is the last one of {reason}: requests would wait for"
                    " another. Have another one serve first, or say that it may be, with"
                    " ?allow_last=true"
                )
        end = self._ends.get(session)
        if end is None:
            end = self._ends[session] = asyncio.Event()
            session.send(pb.ExecutorCommand(drain=pb.Drain()))
        try:
            async with asyncio.timeout(self._confirm_limit_s):
                await end.wait()
        except TimeoutError:
            raise Unavailable(
                f"executor '{name}' has not confirmed within {self._confirm_limit_s:g} s that it"
                " leaves: it may hang; it leaves as soon as it can"
            ) from None
        if not session.leaving:
            raise Unavailable(f"executor '{name}' was lost before it left; try again")
        return pb.DrainExecutorResponse()

    def on_left(self, session: Session) -> None:
        """End the waits for an executor: it announced that it leaves, or its Join stream ended."""
        end = self._ends.pop(session, None)
        if end is not None:
            end.set()


def last_of(facts: pb.FactsResponse, name: str, remaining: Collection[str]) -> str:
    """Return what has no executor but the named one: the mesh, or models; empty if nothing."""
    others = [
        executor
        for executor in facts.executors
        if executor.name != name and executor.name in remaining
    ]
    if not others:
        return "the mesh"
    elsewhere = {
        (model.model, model.version)
        for executor in others
        for model in executor.hosted
        if model.instances
    }
    lost = sorted(
        {
            model.model
            for executor in facts.executors
            if executor.name == name
            for model in executor.hosted
            if model.instances and (model.model, model.version) not in elsewhere
        }
    )
    if not lost:
        return ""
    more = f" and {len(lost) - _MAX_NAMED} others" if len(lost) > _MAX_NAMED else ""
    return "model " + ", ".join(f"'{model}'" for model in lost[:_MAX_NAMED]) + more
