"""What workers tell beside answers: lines for the log, and metrics of the models' own."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from nereid.services.executor.backends.python.supervisor.custom_metrics import METRICS
from nereid.services.executor.backends.python.worker_site.nereid_worker import wire

if TYPE_CHECKING:
    from typing import Any

_log = logging.getLogger(__name__)

_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)


class Listener:
    """Takes what one instance's worker tells; what makes no sense is passed over."""

    def __init__(self, instance: str) -> None:
        self._instance = instance

    def hear(self, kind: int, body: bytearray) -> None:
        try:
            message: Any = json.loads(bytes(body))
            if kind == wire.LOG:
                level, text = message
                _log.log(_LEVELS[level], "%s: %s", self._instance, text)
            elif kind == wire.METRIC:
                METRICS.hear(self, message)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            _log.warning("%s: its worker told what makes no sense", self._instance)

    def forget(self) -> None:
        """The worker is gone, and its metrics with it."""
        METRICS.forget(self)
