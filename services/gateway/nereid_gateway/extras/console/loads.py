"""Load of the versions that have had requests lately, at two times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.observability import metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nereid.observability.metrics_page import Family
    from nereid.pb import nereid_pb2 as pb

# Growth since an older reading would say little about now.
_MAX_AGE_S: Final = 60.0
_FIELDS: Final = {
    metrics.SUCCESS: "requests",
    metrics.FAILURE: "failures",
    **{family: f"{phase}_us" for phase, family in metrics.DURATIONS.items()},
}


class Key(NamedTuple):
    """Version of a model. `version` is empty for a model without versions."""

    name: str
    version: str


@dataclass(frozen=True)
class Loads:
    """The last two readings of versions' loads."""

    now: Mapping[Key, pb.VersionLoad] = field(default_factory=dict)
    at_s: float = 0.0
    _before: Mapping[Key, pb.VersionLoad] = field(default_factory=dict)
    # 0 if no earlier reading is known.
    elapsed_s: float = 0.0

    def later(self, now: Mapping[Key, pb.VersionLoad], at_s: float) -> Loads:
        """Return these loads with a later reading."""
        elapsed_s = at_s - self.at_s
        if not self.at_s or elapsed_s > _MAX_AGE_S:
            return Loads(now, at_s, now)
        return Loads(now, at_s, self.now, elapsed_s)

    def growth(self, shows: Callable[[str], bool]) -> Callable[[Family], float]:
        """Return a function that returns a counter's growth, for models that shows() accepts.

        A restarted counter counts as 0, so that the sum is not too small.
        """
        loads = [(load, self._before.get(key)) for key, load in self.now.items() if shows(key.name)]

        def recently(family: Family) -> float:
            name = _FIELDS[family]
            return sum(_growth(load, before, name) for load, before in loads)

        return recently


def _growth(load: pb.VersionLoad, before: pb.VersionLoad | None, name: str) -> float:
    value = int(getattr(load, name))
    if before is not None:
        return max(0, value - int(getattr(before, name)))
    # Without requests in the 30 minutes before the earlier reading: all of these are later.
    if name == "failures":
        return load.last_30.failures
    requests = load.last_30.requests
    return requests if name == "requests" else value * requests / max(1, load.requests)
