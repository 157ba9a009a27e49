"""A model that writes its clock as tokens, 10 a second for each text, one text after the other."""

import heapq
import threading
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

_PERIOD_S = 0.1
_TOKENS = 20


class TritonPythonModel:
    """Decoupled model. One thread writes the tokens of all texts."""

    def initialize(self, _arguments: dict[str, str]) -> None:
        """Start the thread that writes."""
        self._changed = threading.Condition()
        # When the next token of a text is due, a number that makes entries differ, and the rest.
        self._texts: list[tuple[float, int, int, Any]] = []
        self._number = 0
        threading.Thread(target=self._write, daemon=True).start()

    def execute(self, requests: list[Any]) -> None:
        """Begin a text for each request, somewhere within the period."""
        with self._changed:
            for request in requests:
                self._number += 1
                phase = self._number * 0.618 % 1 * _PERIOD_S
                due = time.monotonic() + phase
                sender = request.get_response_sender()
                heapq.heappush(self._texts, (due, self._number, _TOKENS, sender))
            self._changed.notify()

    def _write(self) -> None:
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        while True:
            with self._changed:
                while not self._texts:
                    self._changed.wait()
                wait_s = self._texts[0][0] - time.monotonic()
                if wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                due, number, left, sender = heapq.heappop(self._texts)
                if left > 1:
                    heapq.heappush(self._texts, (due + _PERIOD_S, number, left - 1, sender))
            token = b"@%019d" % time.monotonic_ns()
            tensor = pb_utils.Tensor("SAID", np.array([token], np.object_))
            sender.send(pb_utils.InferenceResponse([tensor]), 0 if left > 1 else final)
