"""Watch of the files of one flag: they are read again when one of them changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_log = logging.getLogger(__name__)

Content = TypeVar("Content")

_INTERVAL_S: Final = 2.0

# Modification time in ns, size and inode. None if the file cannot be read.
_State = dict[Path, tuple[int, int, int] | None]


class FileError(ValueError):
    """Raised if a file cannot be used. `errors` has one line for each reason."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("; ".join(errors))
        self.errors = errors


def _only_itself(_: object) -> Iterable[str]:
    return ()


class FileWatch(Generic[Content]):
    """Calls on_change with each new content. Content that cannot be used is logged and ignored.

    A thread looks at the files, because the file system may hang.
    """

    def __init__(  # noqa: PLR0913 (by keyword)
        self,
        flag: str,
        path: str,
        content: Content,
        *,
        read: Callable[[str], Content],
        on_change: Callable[[Content], None],
        describe: Callable[[Content], str],
        files_of: Callable[[Content], Iterable[str]] = _only_itself,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        """Prepare the watch of a file whose content was read.

        read: may raise FileError. describe: returns facts for the log. files_of: names the other
        files that belong to a content.
        """
        self._flag = flag
        self._path = path
        self._read = read
        self._on_change = on_change
        self._describe = describe
        self._files_of = files_of
        self._interval_s = interval_s
        self._files = self._list_files(content)
        self._state = _state_of(self._files)
        # The same errors are logged only once.
        self._errors: list[str] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch the files on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Stop watching the files."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            state = await asyncio.to_thread(_state_of, self._files)
            if state != self._state:
                await self._reload(state)

    async def _reload(self, state: _State) -> None:
        try:
            content = await asyncio.to_thread(self._read, self._path)
        except FileError as error:
            # `_state` is not updated, so the next interval tries again. The cause may be a file
            # that is not watched yet.
            if error.errors != self._errors:
                self._errors = error.errors
                _log.error(
                    "%s %s cannot be used; keeping the previous configuration: %s",
                    self._flag,
                    self._path,
                    "; ".join(error.errors),
                )
            return
        self._errors = []
        self._files = self._list_files(content)
        # A file that was watched before keeps its earlier state, so a change during the reading is
        # noticed.
        fresh = await asyncio.to_thread(_state_of, self._files)
        self._state = {path: state.get(path, fresh[path]) for path in self._files}
        self._on_change(content)
        _log.info("%s %s reloaded: %s", self._flag, self._path, self._describe(content))

    def _list_files(self, content: Content) -> tuple[Path, ...]:
        return (Path(self._path), *map(Path, self._files_of(content)))


def _state_of(files: tuple[Path, ...]) -> _State:
    state: _State = {}
    for path in files:
        try:
            status = path.stat()
        except OSError:
            state[path] = None
        else:
            state[path] = status.st_mtime_ns, status.st_size, status.st_ino
    return state
