"""Life cycle of a model version: its state, computed from executors' reports about loading it.

After a refusal, or once an unload has begun, reports no longer change the state.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from nereid.core.errors import (
    AlreadyExists,
    Cancelled,
    Internal,
    InvalidArgument,
    NotFound,
    Unavailable,
    Unimplemented,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

_TRITON_NAME: Final = {
    Cancelled.code: "Cancelled",
    InvalidArgument.code: "Invalid argument",
    NotFound.code: "Not found",
    AlreadyExists.code: "Already exists",
    Unimplemented.code: "Unsupported",
    Internal.code: "Internal",
    Unavailable.code: "Unavailable",
}
NO_INSTANCE: Final = "no executor has it at the moment; requests wait"
UNLOADED: Final = "unloaded"


class VersionState(Enum):
    """States of the repository index, as in Triton.

    UNKNOWN      found; nothing has been done with it yet
    LOADING      an executor is loading it, or it waits for an executor to join
    READY        all its instances on one executor have been ready at some time
    UNLOADING    it finishes the requests that it has accepted, and takes no new requests
    UNAVAILABLE  it was refused or unloaded, or every executor that tried has failed to load it
    """

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


# Unless it is final, a version leaves UNAVAILABLE when another executor joins, or for an ensemble
# when a step's model is loaded again.
TRANSITIONS: Final[Mapping[VersionState, frozenset[VersionState]]] = {
    VersionState.UNKNOWN: frozenset({VersionState.LOADING, VersionState.UNAVAILABLE}),
    VersionState.LOADING: frozenset(
        {VersionState.READY, VersionState.UNLOADING, VersionState.UNAVAILABLE}
    ),
    VersionState.READY: frozenset({VersionState.UNLOADING, VersionState.UNAVAILABLE}),
    VersionState.UNLOADING: frozenset({VersionState.UNAVAILABLE}),
    VersionState.UNAVAILABLE: frozenset(
        {VersionState.LOADING, VersionState.READY, VersionState.UNLOADING}
    ),
}
_LOAD_OVER: Final = frozenset({VersionState.READY, VersionState.UNAVAILABLE})


class LoadStatus(Enum):
    """Progress of one executor in loading a version."""

    LOADING = 1
    UP = 2
    FAILED = 3


class VersionLife:
    """State of one version, computed from the last report of each executor.

    A version stays READY if all executors are lost: requests then wait. It is no longer READY if an
    executor fails while no other has or loads the version.
    """

    def __init__(self) -> None:
        self.state = VersionState.UNKNOWN
        self.final = False
        # Error of a failed change of the instance groups; the version stays ready.
        self.update_error = ""
        self._reason = ""
        self._reports: dict[Hashable, tuple[LoadStatus, str]] = {}

    @property
    def up(self) -> bool:
        """True if an executor has the version, so that requests can be executed now."""
        return any(standing is LoadStatus.UP for standing, _ in self._reports.values())

    @property
    def serving(self) -> bool:
        """True if the version is READY and an executor has it."""
        return self.state is VersionState.READY and self.up

    @property
    def loading(self) -> bool:
        """True if an executor is loading the version."""
        return any(standing is LoadStatus.LOADING for standing, _ in self._reports.values())

    @property
    def load_finished(self) -> bool:
        """True if every executor that tried to load the version has succeeded or failed."""
        return self.final or (self.state in _LOAD_OVER and not self.loading)

    @property
    def unloaded(self) -> bool:
        """True if the version was unloaded; for an ensemble, also if a model of its steps was."""
        return self.state is VersionState.UNAVAILABLE and self._reason == UNLOADED

    @property
    def failed(self) -> bool:
        """True if the version is unavailable for another reason than an unload."""
        return self.state is VersionState.UNAVAILABLE and not self.unloaded

    @property
    def unload_begun(self) -> bool:
        """True if an unload of this version has begun or has ended."""
        return self.final and (self.unloaded or self.state is VersionState.UNLOADING)

    @property
    def refused(self) -> bool:
        """True if the version is unavailable for good, so that no executor needs to load it."""
        return self.final and self.state is VersionState.UNAVAILABLE

    @property
    def reason(self) -> str:
        """Reason for the state, as the repository index shows it; empty if there is none."""
        if self.state is VersionState.READY and not self.up:
            return NO_INSTANCE
        if self.state is VersionState.READY:
            return self.update_error
        return self._reason

    def refuse(self, reason: str) -> None:
        """Refuse the load, because no executor can load the version with its configuration."""
        self.final = True
        self._set_state(VersionState.UNAVAILABLE, reason)

    def await_executor(self) -> None:
        """Begin the load; it waits for an executor to join if there is none."""
        self._set_state(VersionState.LOADING)

    def begin_unload(self) -> None:
        """Accept no more requests. Accepted requests still need the executors."""
        self.final = True
        self._set_state(VersionState.UNLOADING)

    def end_unload(self) -> None:
        """End the unload; all requests must be finished and all instances unloaded."""
        self.final = True
        self._reports.clear()
        self._set_state(VersionState.UNAVAILABLE, UNLOADED)

    def report(self, executor: Hashable, standing: LoadStatus, reason: str = "") -> None:
        """Record the progress of an executor in loading the version.

        reason: why it has failed, or what a load does that takes long.
        """
        self._reports[executor] = (standing, reason)
        self._update_state()

    def forget_executor(self, executor: Hashable) -> None:
        """Forget the report of an executor that has left."""
        report = self._reports.pop(executor, None)
        if report is not None and self.state is not VersionState.READY:
            self._update_state()

    def failed_on(self, executor: Hashable) -> bool:
        """Return whether this executor has tried to load the version and failed."""
        return self._reports.get(executor, (None,))[0] is LoadStatus.FAILED

    def _update_state(self) -> None:
        standings = {standing for standing, _ in self._reports.values()}
        if self.final or not standings:
            return
        if LoadStatus.UP in standings:
            self._set_state(VersionState.READY)
        elif LoadStatus.LOADING in standings:
            if self.state is not VersionState.READY:
                reports = self._reports.values()
                texts = [text for status, text in reports if status is LoadStatus.LOADING and text]
                self._set_state(VersionState.LOADING, next(iter(texts), ""))
        else:
            # The first failure is nearest to the cause, and later ones may follow from it.
            self._set_state(VersionState.UNAVAILABLE, next(iter(self._reports.values()))[1])

    def _set_state(self, state: VersionState, reason: str = "") -> None:
        valid = state is self.state or state in TRANSITIONS[self.state]
        assert valid, f"a version cannot go from {self.state.value} to {state.value}"
        self.state = state
        self._reason = reason


def reason_of(code: int, message: str) -> str:
    """Return an error as Triton's index shows it: 'Internal: …'."""
    return f"{_TRITON_NAME.get(code, 'Unknown')}: {message}"
