"""Handles messages that workers send unasked: lines for the log, and models' metrics."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from nereid_executor.backends.python.supervisor.custom_metrics import METRICS
from nereid_executor.backends.python.supervisor.worker_output import output_budget
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire

if TYPE_CHECKING:
    from typing import Any

_log = logging.getLogger(__name__)

# About what the logger adds to a line.
_LINE_BYTES = 100
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)


class NotificationHandler:
    """Handles messages of one instance's worker. Malformed messages are logged and dropped."""

    def __init__(self, instance: str, model: str, *, bounded: bool = False) -> None:
        """bounded: drop lines that are more than a confined worker may write."""
        self._instance = instance
        self._model = model
        self._budget = output_budget() if bounded else None

    def on_notification(self, kind: int, body: bytearray) -> None:
        """Handle a frame of kind LOG or METRIC; ignore other kinds."""
        try:
            message: Any = json.loads(bytes(body))
            if kind == wire.LOG:
                level, text = message
                if self._may_log(len(text)):
                    _log.log(_LEVELS[level], "%s: %s", self._instance, text)
            elif kind == wire.METRIC:
                METRICS.on_message(self, self._model, message)
        except (
            ValueError,
            TypeError,
            KeyError,
            IndexError,
            AttributeError,
            RecursionError,
        ):
            if self._may_log(0):
                _log.warning(
                    "instance %s: malformed notification from its worker; dropped", self._instance
                )

    def _may_log(self, size: int) -> bool:
        budget = self._budget
        if budget is None:
            return True
        if not budget.spend(size + _LINE_BYTES):
            return False
        if dropped := budget.take_dropped():
            _log.warning("%s: %d lines were dropped: too much output", self._instance, dropped)
        return True

    def remove_metrics(self) -> None:
        """Remove the metrics of an unloaded instance."""
        METRICS.remove_holder(self)

    def on_worker_end(self) -> None:
        """Keep the counts of a worker that has ended and will be replaced."""
        METRICS.on_worker_end(self)
