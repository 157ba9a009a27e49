"""Reads the files of --auth-config, and reads them anew when one of them has changed."""

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

# Of each file what changes with its contents; None: it cannot be found.
_State = dict[Path, tuple[int, int, int] | None]


class LoadedConfig(NamedTuple):
    """A configuration that can be used, and the keys of its issuers."""

    config: AuthConfig
    verifier: TokenVerifier | None


def load_config(path: str) -> LoadedConfig:
    """Read the configuration in this file, and the files that it names.

    Raises:
        AuthConfigError: one of them cannot be used.
    """
    config = read_config(Path(path))
    return LoadedConfig(config, TokenVerifier(config.issuers) if config.issuers else None)


class ConfigWatch:
    """Calls on_change with each new configuration; one that cannot be used is logged and ignored.

    Files are looked at in a thread: a file system that hangs delays nothing but this.
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
        # Why it could not be used when it was read last.
        self._errors: list[str] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look, in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Look no more."""
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
            # Tried again each time, because the cause may be a file that is not watched yet.
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
        # Of other files as before they were read: a change meanwhile is not to be missed.
        fresh = await asyncio.to_thread(_state_of, self._files)
        self._state = {path: state.get(path, fresh[path]) for path in self._files}
        self._on_change(loaded)
        keys, issuers = len(loaded.config.keys), len(loaded.config.issuers)
        _log.info("--auth-config %s read anew: keys=%d issuers=%d", self._path, keys, issuers)


def _files_of(path: str, config: AuthConfig) -> tuple[Path, ...]:
    return (Path(path), *(each.key_file for each in config.issuers))


def _state_of(files: tuple[Path, ...]) -> _State:
    state: _State = {}
    for path in files:
        try:
            found = path.stat()
        except OSError:
            state[path] = None
        else:
            state[path] = found.st_mtime_ns, found.st_size, found.st_ino
    return state
