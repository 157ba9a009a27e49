"""Has executors leave, and waits until they have announced it. What follows is as on their SIGTERM.

Of several schedulers one is enough: an executor leaves them all.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nereid.core.errors import NotFound, Unavailable, Unimplemented
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.services.scheduler.executors.sessions import Session

# It announces that it leaves before it finishes its batches.
_CONFIRM_LIMIT_S: Final = 5.0


class Drains:
    """Of the executors that have joined one scheduler."""

    def __init__(
        self,
        sessions: Callable[[], Iterable[Session]],
        *,
        confirm_limit_s: float = _CONFIRM_LIMIT_S,
    ) -> None:
        """confirm_limit_s: how long an executor may take to announce that it leaves."""
        self._sessions = sessions
        self._confirm_limit_s = confirm_limit_s
        # Whether it has announced it, or its stream has ended; callers share it.
        self._ends: dict[Session, asyncio.Event] = {}

    async def drain(self, request: pb.DrainExecutorRequest) -> pb.DrainExecutorResponse:
        """Have one leave.

        Raises:
            NotFound: there is none of this name.
            Unimplemented: it does not know the command.
            Unavailable: it has not announced that it leaves.
        """
        name = request.name
        session = next((each for each in self._sessions() if each.name == name), None)
        if session is None:
            raise NotFound(f"no executor '{name[:100]}' has joined the mesh, or it has left")
        if not session.hello.drains:
            raise Unimplemented(
                f"executor '{name}' cannot be drained by a call: it is of an older release, or in"
                " the process of its scheduler; end its process with SIGTERM"
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
