"""Describe commands that executors have not replied to: which version's file each one reads."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid_scheduler.placement.executors.sessions import Session
    from nereid_scheduler.placement.models.catalogue import ServedVersion

_log = logging.getLogger(__name__)


class DescribeCommands:
    """A version's model file is read by one executor at a time."""

    def __init__(self, numbers: Iterator[int]) -> None:
        """numbers: for the commands."""
        self._numbers = numbers
        # None: the version is not to be loaded any more.
        self._pending: dict[int, tuple[ServedVersion | None, Session]] = {}

    def begin(self, served: ServedVersion, session: Session) -> pb.ExecutorCommand:
        """The command for an executor, to be sent now."""
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
        """Whether some executor reads a version's model file."""
        return any(waiting is served for waiting, _ in self._pending.values())

    def end(self, session: Session, command: int) -> ServedVersion | None:
        """An executor has replied; None: nobody waits for that."""
        served, describer = self._pending.get(command, (None, None))
        if describer is not session:
            _log.warning(
                "executor '%s' sent a description for an unknown command; it is ignored",
                session.name,
            )
            return None
        del self._pending[command]
        return served

    def drop_version(self, served: ServedVersion) -> None:
        """A version is not to be loaded any more."""
        for command, (described, describer) in self._pending.items():
            if described is served:
                self._pending[command] = None, describer

    def drop_executor(self, session: Session) -> Iterator[ServedVersion]:
        """An executor was lost: the versions whose files it was to read."""
        for command, (served, describer) in list(self._pending.items()):
            if describer is session:
                del self._pending[command]
                if served is not None:
                    yield served
