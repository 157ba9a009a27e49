"""Records of the trace and log settings that clients have changed, for the whole mesh."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import NereidError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nereid_scheduler.control.state.recorder import StateRecorder

_log = logging.getLogger(__name__)

TRACE: Final = "settings/trace"
LOG: Final = "settings/log"
# Key of the measured memory of models.
SIZES: Final = "models/sizes"


class SettingRecords:
    """Writes settings, and has settings applied once they have been read."""

    def __init__(self, recorder: StateRecorder | None) -> None:
        self._recorder = recorder

    async def record(self, key: str, document: Mapping[str, Any]) -> None:
        """Record settings. Wait a limited time until the record is written; writing may fail."""
        if self._recorder is not None:
            self._recorder.put(key, document, over_others=True)
            await self._recorder.written(key)

    def apply(
        self,
        documents: Mapping[str, Mapping[str, Any]],
        key: str,
        restore: Callable[[Mapping[str, Any]], object],
    ) -> None:
        """Call `restore` with what the recorder has read, unless the settings changed since."""
        if self._recorder is None or key not in documents or self._recorder.is_pending(key):
            return
        try:
            restore(documents[key])
        except (NereidError, ValueError, TypeError, KeyError, AttributeError) as error:
            # For example, a server without tracing refuses trace settings.
            _log.warning("%s as clients had changed them are not restored: %s", key, error)
