"""Base class of dispatchers, which execute the requests of a model version."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nereid.model_config import ModelConfig
    from nereid_scheduler.batching.batcher import Batcher, LatencyTarget
    from nereid_scheduler.core.requests.entry import Entry


class Dispatcher(ABC):
    """Executes the queued requests of one version."""

    def __init__(
        self,
        batcher: Batcher,
        target: LatencyTarget | None = None,
        *,
        calls_other_models: bool = False,
    ) -> None:
        """batcher: the version's queue. calls_other_models: so that there are no instances."""
        self.batcher = batcher
        self.target = target
        self.calls_other_models = calls_other_models

    @property
    @abstractmethod
    def pending(self) -> int:
        """Number of requests that wait for an instance."""

    @property
    @abstractmethod
    def instances(self) -> tuple[int, int]:
        """Number of ready instances, and how many of these are free."""

    @property
    @abstractmethod
    def sequences(self) -> tuple[int, int] | None:
        """Number of live sequences, and how many wait for a slot; `None` without sequences."""

    @abstractmethod
    def has_sequence(self, key: Hashable) -> bool:
        """Return whether a sequence accepts requests. key: as `sequence_key` returns it."""

    @abstractmethod
    def end_sequence(self, key: Hashable) -> None:
        """End a sequence of copies, which no request will end."""

    @abstractmethod
    def on_queued(self) -> None:
        """See to it that a request that was just queued gets its turn."""

    @abstractmethod
    def dispatch(self, now_ns: int) -> int | None:
        """Execute the requests that can run now; return when the next step is due."""

    @abstractmethod
    def cancel_execution(self, entry: Entry) -> str:
        """Cancel an entry that has left the queue; return a reason if it counts as failed now."""

    @abstractmethod
    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        """Pause the responses of a client that cannot keep up with them, or resume them."""

    @abstractmethod
    def is_blocked(self, entry: Entry) -> bool:
        """Return whether an entry waits for an executor or a slot, which may never come."""

    @abstractmethod
    def set_config(self, config: ModelConfig) -> None:
        """Set a configuration that differs in instance groups, or in whether it is decoupled."""

    @abstractmethod
    def close(self) -> None:
        """Cancel the timers."""
