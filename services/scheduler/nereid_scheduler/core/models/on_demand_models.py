"""Models that are loaded on demand, and the table of their pending loads.

A load is pending from the first request for the model until it has ended. It may wait for memory
meanwhile. Requests, calls and ensembles wait for it; the load queue has the requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nereid_scheduler.core.models.lifecycle import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nereid.core.errors import NereidError
    from nereid_scheduler.core.models.found_model import FoundModel

_LATEST: Final = -1
_NOT_IN_MEMORY: Final = "not in memory; the next request loads it"


@dataclass(slots=True)
class OnDemandModel:
    """Model that is loaded when the first request for it comes. It may be loaded already."""

    found: FoundModel
    # Error of the last load, until a request begins another load.
    error: NereidError | None = None
    # Time of the error, on the monotonic clock.
    failed_s: float = 0.0
    # Time of the load, on the monotonic clock.
    since_ns: int = 0

    @property
    def name(self) -> str:
        """Qualified name of the model."""
        return self.found.name

    @property
    def reason(self) -> str:
        """Reason that the index gives while the model is not loaded."""
        if self.error is not None:
            return reason_of(self.error.code, self.error.message)
        return _NOT_IN_MEMORY

    def has(self, number: int) -> bool:
        """Return whether a load of the model includes this version; -1 stands for any version."""
        return number == _LATEST or number in self.found.versions


class OnDemandModels(dict[str, OnDemandModel]):
    """The models that requests load, by qualified name."""

    def defer(self, found: FoundModel) -> None:
        """Let the first request load this model. Call this whenever the model is found."""
        known = self.setdefault(found.name, OnDemandModel(found))
        if known.found.digest != found.digest or found.url:
            # The files have changed, or the object store may have them by now.
            known.error = None
        known.found = found

    def find(self, name: str) -> OnDemandModel | None:
        """Return the model that a client names; `None` if there is none or it is ambiguous."""
        model = self.get(name)
        if model is None and self:
            named = [each for each in self.values() if each.found.plain_name == name]
            model = named[0] if len(named) == 1 else None
        return model


@dataclass(slots=True, eq=False)
class PendingLoad:
    """Load that has not ended."""

    # Bytes by executor and device; empty until they are known, and without budgets.
    needs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # Executor on which other models make way for the load.
    executor: str = ""
    # Time since when the load waits for memory; 0 if it does not wait.
    waiting_since_ns: int = 0
    # Number of calls and ensembles that wait for the load.
    waiters: int = 0
    # Called with the load's error, or with `None`.
    on_end: list[Callable[[NereidError | None], None]] = field(default_factory=list)


class PendingLoads(dict[str, PendingLoad]):
    """Pending loads by model."""

    def __init__(self) -> None:
        super().__init__()
        # Loads that wait for memory, in order of arrival.
        self.waiting: dict[str, PendingLoad] = {}

    def begin(self, name: str) -> PendingLoad:
        """Return the pending load of a model, which may be new."""
        return self.setdefault(name, PendingLoad())

    def await_memory(self, name: str, needs: Mapping[str, Mapping[str, int]]) -> None:
        """Let a load wait for memory. It keeps its place if its needs are known anew."""
        load = self.waiting[name] = self.begin(name)
        load.needs = needs
        if load.executor not in needs:
            load.executor = ""

    def stop_waiting(self, name: str) -> None:
        """Record that a load has memory, or is refused."""
        load = self.waiting.pop(name, None)
        if load is not None:
            load.executor = ""

    def end(self, name: str, error: NereidError | None) -> None:
        """End a load if it is pending."""
        self.waiting.pop(name, None)
        load = self.pop(name, None)
        for on_end in () if load is None else load.on_end:
            on_end(error)
