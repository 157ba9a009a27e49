"""The life of a model version: what the executors report of it, and what state that makes.

Pure: who reports and what, in; state and reason, out. Knows no stream, no configuration, no clock.
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
    from collections.abc import Hashable

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
    """The states of the repository index.

    UNKNOWN      found, nothing done with it yet            -> LOADING, UNAVAILABLE
    LOADING      waits for an executor, or one is loading   -> READY, UNAVAILABLE
    READY        an executor has had all its instances up   -> UNAVAILABLE, UNLOADING
    UNLOADING    finishes what it accepted, takes no more   -> UNAVAILABLE ("unloaded")
    UNAVAILABLE  refused, or no executor could load it      -> LOADING (another executor joined)

    Any of them goes to UNLOADING; what is loaded once more after that has a life of its own.
    """

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


_DECIDED: Final = frozenset({VersionState.READY, VersionState.UNAVAILABLE})


class Standing(Enum):
    """How far one executor has come with a version."""

    LOADING = 1
    UP = 2
    FAILED = 3


class VersionLife:
    """One version's state, from what each executor has made of it.

    READY outlives its instances: when executors go, requests wait for them or for others. Only the
    news that an executor has failed, while no other has it or is loading it, ends that.
    """

    def __init__(self) -> None:
        self.state = VersionState.UNKNOWN
        # Nothing that an executor reports can change the state any more.
        self.final = False
        self._reason = ""
        self._standings: dict[Hashable, tuple[Standing, str]] = {}

    @property
    def up(self) -> bool:
        """Whether requests can be executed now."""
        return any(standing is Standing.UP for standing, _ in self._standings.values())

    @property
    def serving(self) -> bool:
        """READY, and an executor has it."""
        return self.state is VersionState.READY and self.up

    @property
    def decided(self) -> bool:
        """Whether everybody who tries to load it has come to an end."""
        if self.final:
            return True
        return self.state in _DECIDED and not self.attempted

    @property
    def attempted(self) -> bool:
        """Whether an executor is loading it."""
        return any(standing is Standing.LOADING for standing, _ in self._standings.values())

    @property
    def unloaded(self) -> bool:
        """Taken out of service because somebody wanted that, of it or of what it consists of."""
        return self.state is VersionState.UNAVAILABLE and self._reason == UNLOADED

    @property
    def gone(self) -> bool:
        """Unloaded, or about to be."""
        return self.final and (self.unloaded or self.state is VersionState.UNLOADING)

    @property
    def refused(self) -> bool:
        """No executor need try."""
        return self.final and self.state is VersionState.UNAVAILABLE

    @property
    def reason(self) -> str:
        """Why it is in its state, where that needs telling."""
        if self.state is VersionState.READY and not self.up:
            return NO_INSTANCE
        return self._reason

    def refuse(self, reason: str) -> None:
        """No executor can help: the configuration itself is wrong."""
        self.final = True
        self._become(VersionState.UNAVAILABLE, reason)

    def await_executor(self) -> None:
        """It shall be loaded as soon as an executor joins."""
        self._become(VersionState.LOADING)

    def begin_unload(self) -> None:
        """It takes nothing new from now on. Executors still matter to what it accepted."""
        self.final = True
        self._become(VersionState.UNLOADING)

    def end_unload(self) -> None:
        """Nothing is left of it."""
        self.final = True
        self._standings.clear()
        self._become(VersionState.UNAVAILABLE, UNLOADED)

    def report(self, executor: Hashable, standing: Standing, reason: str = "") -> None:
        """An executor has come this far with it."""
        self._standings[executor] = (standing, reason)
        self._settle()

    def forget(self, executor: Hashable) -> None:
        """An executor is gone, and with it what it had and what it said."""
        gone = self._standings.pop(executor, None)
        if gone is not None and self.state is not VersionState.READY:
            self._settle()

    def failed_on(self, executor: Hashable) -> bool:
        """Whether this executor has tried and failed."""
        return self._standings.get(executor, (None,))[0] is Standing.FAILED

    def _settle(self) -> None:
        standings = {standing for standing, _ in self._standings.values()}
        if self.final or not standings:
            return
        if Standing.UP in standings:
            self._become(VersionState.READY)
        elif Standing.LOADING in standings:
            if self.state is not VersionState.READY:
                self._become(VersionState.LOADING)
        else:
            # The first failure is the one whose cause nothing has covered up.
            self._become(VersionState.UNAVAILABLE, next(iter(self._standings.values()))[1])

    def _become(self, state: VersionState, reason: str = "") -> None:
        self.state = state
        self._reason = reason


def reason_of(code: int, message: str) -> str:
    """A failure in the form that Triton's index has it: 'Internal: …'."""
    return f"{_TRITON_NAME.get(code, 'Unknown')}: {message}"
