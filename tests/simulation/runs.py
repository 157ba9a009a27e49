"""Which requests models have begun to run, and on which streams they were sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.simulation.channel import Stream
    from tests.simulation.history import History
    from tests.simulation.models import SimulatedModel


class Runs:
    """Of all requests. A request runs again only if the stream of its last run is lost."""

    def __init__(self, history: History) -> None:
        self._history = history
        # By model and request: an ensemble's request has the number of its steps' requests.
        self._last: dict[tuple[str, int], Stream] = {}
        # Requests that a worker had begun when it crashed.
        self.crashed: set[int] = set()
        # Of at-most-once models, each run.
        self.once: list[int] = []
        # How many had been sent when a gateway's link was last lost: those may be sent, and run,
        # again. Their numbers are in the order of their sending.
        self._sent_at_loss = 0

    def on_link_lost(self) -> None:
        """Of a gateway."""
        self._sent_at_loss = len(self._history.requests)

    def begin(self, model: SimulatedModel, requests: Iterable[int], stream: Stream) -> None:
        for request in requests:
            if not request:
                continue  # it is as good as others
            if model.once:
                self.once.append(request)
            last = self._last.get((model.name, request))
            is_resent = request <= self._sent_at_loss
            if last is not None and not (last.lost or stream.lost or is_resent):
                self._history.violate("a request runs twice, though no stream was lost", [request])
            self._last[model.name, request] = stream
