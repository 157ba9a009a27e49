"""Traffic and shadows of models as operators have set them: by calls, and in a file.

What the file has counts first, then the last call, then the model's configuration. A call about a
model in the file is refused, so that nothing has two owners.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.comparison.shadow import Shadow, read_shadow
from nereid.core.traffic.rollout_plan import read_rollout
from nereid.core.traffic.weights import Traffic, read_traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nereid.core.traffic.rollout_plan import Rollout

FILE, CALL, CONFIGURATION = "file", "call", "configuration"
# Gateways that are connected learn of another source of keys in far less time.
_ANNOUNCED_S: Final = 5.0


class FoundTraffic(NamedTuple):
    """Traffic of a model, and where it comes from."""

    traffic: Traffic
    source: str


class FoundShadow(NamedTuple):
    """Shadow of a model, and where it comes from."""

    shadow: Shadow
    source: str


class FileSetting(NamedTuple):
    """Traffic and shadow of one model in a file."""

    traffic: Traffic | None = None
    shadow: Shadow | None = None


class TrafficSetting(NamedTuple):
    """Setting of a call. traffic: `None` if it was cleared. set_ns: UNIX time of the call.

    rollout: the one that has set it. shadow: kept when the rest is set.
    """

    traffic: Traffic | None
    set_ns: int
    rollout: Rollout | None = None
    shadow: Shadow | None = None

    def document(self) -> dict[str, Any]:
        """Return what `read_setting` reads."""
        traffic = None if self.traffic is None else self.traffic.document()
        rollout = None if self.rollout is None else self.rollout.document()
        shadow = None if self.shadow is None else self.shadow.document()
        return {"traffic": traffic, "set_ns": self.set_ns, "rollout": rollout, "shadow": shadow}


def read_setting(document: Mapping[str, Any]) -> TrafficSetting:
    """Return the setting in a document; raise ValueError if it has none."""
    traffic, set_ns = document.get("traffic"), document.get("set_ns")
    if type(set_ns) is not int or set_ns < 0:
        raise ValueError("expected the time of the setting")
    rollout, shadow = document.get("rollout"), document.get("shadow")
    return TrafficSetting(
        None if traffic is None else read_traffic(traffic),
        set_ns,
        None if rollout is None else read_rollout(rollout),
        None if shadow is None else read_shadow(shadow),
    )


_NOT_IN_FILE: Final = FileSetting()


class _Before(NamedTuple):
    traffic: Traffic | None
    until_s: float


class TrafficTable:
    """Settings of all models by the names that clients use."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Make an empty table. clock: returns seconds of a monotonic clock."""
        self.settings: dict[str, TrafficSetting] = {}
        self.file: Mapping[str, FileSetting] = {}
        self._clock = clock
        # Key: a model whose callers' keys have another source since a short time.
        self._before: dict[str, _Before] = {}

    def __bool__(self) -> bool:
        return bool(self.settings or self.file)

    def names(self) -> Iterable[str]:
        """Return the models that may have traffic apart from their configurations."""
        return {*self.settings, *self.file}

    def find(self, name: str, configured: Traffic | None) -> FoundTraffic | None:
        """Return a model's traffic; `None` if all requests go to the latest version."""
        traffic = self.in_file(name).traffic
        if traffic is not None:
            return FoundTraffic(traffic, FILE)
        setting = self.settings.get(name)
        if setting is not None and setting.traffic is not None:
            return FoundTraffic(setting.traffic, CALL)
        return None if configured is None else FoundTraffic(configured, CONFIGURATION)

    def apply(self, name: str, setting: TrafficSetting) -> bool:
        """Keep a setting unless a later one is known; return whether it was kept."""
        known = self.settings.get(name)
        if known is not None and known.set_ns >= setting.set_ns:
            return False
        self.settings[name] = setting
        return True

    def next_setting(
        self, name: str, traffic: Traffic | None, now_ns: int, rollout: Rollout | None = None
    ) -> TrafficSetting:
        """Return a setting that is later than the model's present one. now_ns: UNIX time."""
        known = self.settings.get(name)
        if known is None:
            return TrafficSetting(traffic, now_ns, rollout)
        return TrafficSetting(traffic, max(now_ns, known.set_ns + 1), rollout, known.shadow)

    def in_file(self, name: str) -> FileSetting:
        """Return what the file has of a model."""
        return self.file.get(name, _NOT_IN_FILE)

    def find_shadow(self, name: str, configured: Shadow | None) -> FoundShadow | None:
        """Return what gets copies of a model's requests."""
        shadow = self.in_file(name).shadow
        if shadow is not None:
            return FoundShadow(shadow, FILE)
        setting = self.settings.get(name)
        if setting is not None and setting.shadow is not None:
            return FoundShadow(setting.shadow, CALL)
        return None if configured is None else FoundShadow(configured, CONFIGURATION)

    def remember_before(self, name: str, traffic: Traffic | None) -> None:
        """Keep the traffic that requests get whose gateways do not know the new source of keys."""
        self._before[name] = _Before(traffic, self._clock() + _ANNOUNCED_S)

    def before(self, name: str) -> tuple[Traffic | None] | None:
        """Return the traffic before the source of keys changed, in a tuple.

        `None` means that all gateways know the present source.
        """
        before = self._before.get(name)
        if before is None:
            return None
        if before.until_s <= self._clock():
            del self._before[name]
            return None
        return (before.traffic,)
