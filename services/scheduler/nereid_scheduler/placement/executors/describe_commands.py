"""Keeps pending Describe commands. Each has an executor read the model file of a version."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from nereid.observability.refusal_log import RefusalLog
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid_scheduler.placement.executors.sessions import Session
    from nereid_scheduler.placement.models.catalogue import ServedVersion

_log = logging.getLogger(__name__)

_UNKNOWN: Final = "executor '%s' sent a description for an unknown command; it is ignored"


class DescribeCommands:
    """Pending commands. Only one executor at a time reads a version's model file."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        # Key: a command's number. The version is `None` if it should not be loaded any more.
        self._pending: dict[int, tuple[ServedVersion | None, Session]] = {}
        self._refusals = RefusalLog(_log)

    def begin(self, served: ServedVersion, session: Session) -> pb.ExecutorCommand:
        """Return the command to send to an executor now, and expect a reply to it."""
        command = next(self._numbers)
        self._pending[command] = (served, session)
        describe = pb.Describe(
            command=command,
            config=served.draft,
            version_path=served.path,
            files_digest=served.stored_digest,
        )
        return pb.ExecutorCommand(describe=describe)

    def is_pending(self, served: ServedVersion) -> bool:
        """Return whether an executor is reading the model file of a version."""
        return any(waiting is served for waiting, _ in self._pending.values())

    def version_of(self, session: Session, command: int) -> ServedVersion | None:
        """Return the version that an executor reads for a command; `None` if no load needs it."""
        served, describer = self._pending.get(command, (None, None))
        return served if describer is session else None

    def end(self, session: Session, command: int) -> ServedVersion | None:
        """Return the version that a reply describes; `None` if no load needs the description."""
        served, describer = self._pending.get(command, (None, None))
        if describer is not session:
            self._refusals.report(session.name, "description", _UNKNOWN)
            return None
        del self._pending[command]
        return served

    def drop_version(self, served: ServedVersion) -> None:
        """Ignore the reply for a version that should not be loaded any more."""
        for command, (described, describer) in self._pending.items():
            if described is served:
                self._pending[command] = None, describer

    def drop_executor(self, session: Session) -> Iterator[ServedVersion]:
        """Forget the commands to a lost executor; yield the versions that it should describe."""
        for command, (served, describer) in list(self._pending.items()):
            if describer is session:
                del self._pending[command]
                if served is not None:
                    yield served
