"""What model files state, as far as it is known from an earlier scheduler's question.

A scheduler that takes a model over asks what its file states, which may take as long as loading it.
One that asks twice in a row wants to know anew: what a model completes by itself may depend on more
than its files.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nereid.services.executor.takeover.model_files import ModelFiles

_MOST: Final = 1024


class _Known(NamedTuple):
    # The one that was given it last.
    session: int
    files: ModelFiles
    described: pb.Described


class Descriptions:
    """One executor's; used by one thread."""

    def __init__(self, read_files: Callable[[Path], ModelFiles | None], most: int = _MOST) -> None:
        """read_files: a version's files as they are; most: how many are remembered."""
        self._read_files = read_files
        self._most = most
        self._known: OrderedDict[bytes, _Known] = OrderedDict()

    def describe(
        self,
        session: int,
        command: pb.Describe,
        version_path: Path,
        describe: Callable[[], pb.Described],
    ) -> pb.Described:
        """The response to a command: known from another session, or what describe returns.

        session: a number of its own for each.
        """
        key = pb.Describe(
            config=command.config, version_path=command.version_path
        ).SerializeToString(deterministic=True)
        # Before they are read: a file that changes meanwhile must not count as known.
        files = self._read_files(version_path)
        known = self._known.pop(key, None)
        if known is not None and known.session != session and known.files.same_in(files):
            self._known[key] = known._replace(session=session)
            described = pb.Described()
            described.CopyFrom(known.described)
            described.command = command.command
            return described
        described = describe()
        if files is not None and not described.HasField("error"):
            self._known[key] = _Known(session, files, described)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        return described
