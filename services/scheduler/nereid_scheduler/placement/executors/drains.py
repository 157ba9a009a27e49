"""Has executors leave, and waits until they have announced it. What follows is as on their SIGTERM.

Of several schedulers one is enough: an executor leaves them all. The first by name that it has
joined decides, so only executors that have joined the same one count as others: the rest may be
asked to leave elsewhere at this moment, or have left and not said so there.
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

# It announces that it leaves before it finishes its batches.
_CONFIRM_LIMIT_S: Final = 5.0
_NOT_ALLOWED: Final = (
    "executors may be drained with --model-control-mode=explicit, as models may be loaded and"
    " unloaded, or by clients that --auth-config or --http-restricted-api lets in"
)
_MAX_NAMED: Final = 5


class Drains:
    """Of the executors that have joined one scheduler."""

    def __init__(
        self,
        sessions: Callable[[], Iterable[Session]],
        facts: Callable[[], Awaitable[pb.FactsResponse]],
        *,
        for_all: bool,
        confirm_limit_s: float = _CONFIRM_LIMIT_S,
    ) -> None:
        """facts: of the whole mesh. for_all: whether any client may drain, as it may load and
        unload models. confirm_limit_s: how long an executor may take to announce that it leaves.
        """
        self._sessions = sessions
        self._facts = facts
        self._for_all = for_all
        self._confirm_limit_s = confirm_limit_s
        # Whether it has announced it, or its stream has ended; callers share it.
        self._ends: dict[Session, asyncio.Event] = {}

    async def drain(self, request: pb.DrainExecutorRequest) -> pb.DrainExecutorResponse:
        """Have one leave.

        Raises:
            PermissionDenied: the client may not change the mesh.
            InvalidArgument: it is the last one, and the call does not say that it may be.
            NotFound: there is none of this name.
            Unimplemented: it does not know the command.
            Unavailable: it has not announced that it leaves, or a scheduler does not say which
                models have others.
        """
        if not (self._for_all or request.authorized):
            raise PermissionDenied(_NOT_ALLOWED)
        name = request.name
        session = next((each for each in self._sessions() if each.name == name), None)
        if session is None:
            raise NotFound(f"no executor '{name[:100]}' has joined the mesh, or it has left")
        if not session.hello.drains:
            raise Unimplemented(
                f"executor '{name}' cannot be drained by a call: it is of an older release, or in"
                " the process of its scheduler; end its process with SIGTERM"
            )
        if not request.allow_last:
            facts = await self._facts()
            silent = [each.name for each in facts.schedulers if not each.reachable]
            if silent:
                raise Unavailable(
                    f"scheduler '{silent[0]}' does not say which models executor '{name}' has"
                    " alone: try again, or say that it may be the last one, with ?allow_last=true"
                )
            going = {each.name for each in self._ends}
            remaining = {each.name for each in self._sessions()} - going
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
        """It has announced that it leaves, or its Join stream has ended."""
        end = self._ends.pop(session, None)
        if end is not None:
            end.set()


def last_of(facts: pb.FactsResponse, name: str, remaining: Collection[str]) -> str:
    """What would be left without an executor if the one of this name left; empty: nothing.
    remaining: the names of those that do not leave.
    """
    others = [each for each in facts.executors if each.name != name and each.name in remaining]
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
    return "model " + ", ".join(f"'{each}'" for each in lost[:_MAX_NAMED]) + more
