"""Records of the trace and log settings that clients have changed, for the whole mesh.

Any scheduler writes them: the last change counts, as it does for clients.
"""

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
# Measured memory of models, which the next scheduler need not measure again.
SIZES: Final = "models/sizes"


class SettingRecords:
    """Write settings, and have them applied when they have been read."""

    def __init__(self, recorder: StateRecorder | None) -> None:
        """Record nothing without a recorder."""
        self._recorder = recorder

    async def record(self, key: str, document: Mapping[str, Any]) -> None:
        """Record settings. Waits for the record, for a limited time; the write may fail."""
        if self._recorder is not None:
            self._recorder.put(key, document, over_others=True)
            await self._recorder.written(key)

    def apply(
        self,
        documents: Mapping[str, Mapping[str, Any]],
        key: str,
        restore: Callable[[Mapping[str, Any]], object],
    ) -> None:
        """Have `restore` apply what the recorder has read, unless it has changed since."""
        if self._recorder is None or key not in documents or self._recorder.is_pending(key):
            return
        try:
            restore(documents[key])
        except (NereidError, ValueError, TypeError, KeyError, AttributeError) as error:
            # An example is a trace setting of a server that is now started without tracing.
            _log.warning("%s as clients had changed them are not restored: %s", key, error)
