"""Handles messages that workers send unasked: lines for the log, and models' metrics."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from nereid_executor.backends.python.supervisor.custom_metrics import METRICS
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire

if TYPE_CHECKING:
    from typing import Any

_log = logging.getLogger(__name__)

_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)


class NotificationHandler:
    """Handles messages of one instance's worker. Malformed messages are logged and dropped."""

    def __init__(self, instance: str, model: str) -> None:
        self._instance = instance
        self._model = model

    def on_notification(self, kind: int, body: bytearray) -> None:
        """Handle a frame of kind LOG or METRIC; ignore other kinds."""
        try:
            message: Any = json.loads(bytes(body))
            if kind == wire.LOG:
                level, text = message
                _log.log(_LEVELS[level], "%s: %s", self._instance, text)
            elif kind == wire.METRIC:
                METRICS.on_message(self, self._model, message)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            _log.warning(
                "instance %s: malformed notification from its worker; dropped", self._instance
            )

    def remove_metrics(self) -> None:
        """Remove the metrics of an unloaded instance."""
        METRICS.remove_holder(self)

    def on_worker_end(self) -> None:
        """Keep the counts of a worker that has ended and will be replaced."""
        METRICS.on_worker_end(self)
