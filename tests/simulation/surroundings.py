"""What all parts of a simulation share: its loop, its randomness, its history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    import random
    from collections.abc import Callable

    from nereid.services.scheduler.executors.executor_streams import ExecutorStreams
    from tests.simulation.bugs import Bugs
    from tests.simulation.history import History
    from tests.simulation.network import Network, Stream
    from tests.simulation.runs import Runs


class Surroundings:
    """The scheduler as executors reach it, and what records what they do."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        choices: random.Random,
        network: Network,
        history: History,
        runs: Runs,
        streams: ExecutorStreams,
        bugs: Bugs,
    ) -> None:
        self.loop = loop
        self.random = choices
        self.network = network
        self.history = history
        self.runs = runs
        self._streams = streams
        self.bugs = bugs

    def accept_join(self, stream: Stream) -> None:
        self._streams.accept_join(stream)  # type: ignore[arg-type]

    def accept_execute(self, stream: Stream) -> None:
        self._streams.accept_execute(stream)  # type: ignore[arg-type]

    def later(
        self, after_s: tuple[float, float], call: Callable[..., Any], *arguments: Any
    ) -> None:
        """Call it once, after a time between these."""
        self.loop.call_later(self.random.uniform(*after_s), call, *arguments)
