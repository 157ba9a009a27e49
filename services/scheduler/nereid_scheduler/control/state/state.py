"""The state of a scheduler: its records, and how they are read at the start."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from nereid.config.recovery import DEFAULT_TIMES
from nereid_scheduler.control.state.model_records import ModelRecords
from nereid_scheduler.control.state.recorder import StateRecorder
from nereid_scheduler.control.state.setting_records import SettingRecords
from nereid_scheduler.control.state.store import StateError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from nereid_scheduler.control.state.store import StateStore

    Documents = Mapping[str, Mapping[str, Any]]

_log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0


class SchedulerState:
    """The records of a scheduler: the objects that write them, and what was found at the start."""

    def __init__(
        self,
        store: StateStore | None,
        secret: bytes = b"",
        *,
        start_s: float = DEFAULT_TIMES.state_s,
        retry_s: float = _RETRY_S,
    ) -> None:
        self._recorder = None if store is None else StateRecorder(store, secret)
        self._start_s = start_s
        self._retry_s = retry_s
        self._reading: asyncio.Task[None] | None = None
        self.models = None
        if self._recorder is not None:
            self.models = ModelRecords(self._recorder, retry_s=retry_s)
        self.settings = SettingRecords(self._recorder)

    @property
    def failures(self) -> int | None:
        """Number of reads and writes that failed; `None` if there is no store."""
        return None if self._recorder is None else self._recorder.failures

    async def read(self, on_read_after: Callable[[Documents], Awaitable[None]]) -> Documents | None:
        """Return all documents, by key; `None` if the store cannot be read now.

        `on_read_after` is then called as soon as the store has been read.
        """
        recorder = self._recorder
        if recorder is None:
            return {}
        reading = asyncio.ensure_future(self._read_patiently(recorder))
        done, _ = await asyncio.wait([reading], timeout=self._start_s)
        if done:
            return reading.result()
        _log.error(
            "the state cannot be read yet (--state-directory): what clients had loaded is not"
            " known, and the server is not ready until it is"
        )

        async def restore() -> None:
            await on_read_after(await reading)
            _log.info("the state has been read; the server is as clients had left it")

        self._reading = asyncio.ensure_future(restore())
        return None

    async def close(self) -> None:
        """Write pending changes, for a limited time, and close the store."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._recorder is not None:
            await self._recorder.close()

    async def _read_patiently(self, recorder: StateRecorder) -> Documents:
        logged = False
        while True:
            try:
                return await recorder.read()
            except StateError as error:
                if not logged:
                    _log.warning("%s; trying again", error)
                    logged = True
                await asyncio.sleep(self._retry_s)
