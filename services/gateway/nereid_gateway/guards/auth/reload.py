"""Reads the files of --auth-config, and reads them again when one of them changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid_gateway.guards.auth.config import AuthConfig, AuthConfigError, read_config
from nereid_gateway.guards.auth.tokens import TokenVerifier

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

_INTERVAL_S: Final = 2.0

# Modification time in ns, size and inode. None if the file cannot be read.
_State = dict[Path, tuple[int, int, int] | None]


class LoadedConfig(NamedTuple):
    """Valid configuration, and the verifier that has its issuers' keys."""

    config: AuthConfig
    verifier: TokenVerifier | None


def load_config(path: str) -> LoadedConfig:
    """Read a configuration file and its key files. Raises AuthConfigError if one is wrong."""
    config = read_config(Path(path))
    return LoadedConfig(config, TokenVerifier(config.issuers) if config.issuers else None)


class ConfigWatch:
    """Calls on_change with each new configuration. A wrong configuration is logged and ignored.

    A thread looks at the files, because the file system may hang.
    """

    def __init__(
        self,
        path: str,
        loaded: LoadedConfig,
        on_change: Callable[[LoadedConfig], None],
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self._path = path
        self._on_change = on_change
        self._interval_s = interval_s
        self._files = _files_of(path, loaded.config)
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
            loaded = await asyncio.to_thread(load_config, self._path)
        except AuthConfigError as error:
            # `_state` is not updated, so the next interval tries again. The cause may be a file
            # that is not watched yet.
            if error.errors != self._errors:
                self._errors = error.errors
                _log.error(
                    "--auth-config %s cannot be used; keeping the previous configuration: %s",
                    self._path,
                    "; ".join(error.errors),
                )
            return
        self._errors = []
        self._files = _files_of(self._path, loaded.config)
        # A file that was watched before keeps its earlier state, so a change during the reading is
        # noticed.
        fresh = await asyncio.to_thread(_state_of, self._files)
        self._state = {path: state.get(path, fresh[path]) for path in self._files}
        self._on_change(loaded)
        keys, issuers = len(loaded.config.keys), len(loaded.config.issuers)
        _log.info("--auth-config %s reloaded: keys=%d issuers=%d", self._path, keys, issuers)


def _files_of(path: str, config: AuthConfig) -> tuple[Path, ...]:
    return (Path(path), *(issuer.key_file for issuer in config.issuers))


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
