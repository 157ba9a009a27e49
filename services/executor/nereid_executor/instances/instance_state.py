"""States of an instance's thread, with a scheduler and without one."""

from __future__ import annotations

from enum import Enum
from typing import Final


class InstanceState(Enum):
    """The current activity of an instance's thread."""

    LOADING = "loading"
    WARMING_UP = "warming up"
    CONNECTING = "connecting"
    # The instance has a stream, or its model has one.
    SERVING = "serving"
    # The model is loaded, and no scheduler has the instance.
    KEPT = "kept"
    STOPPED = "stopped"


# A stream that breaks leads back to CONNECTING. Every state may also end in STOPPED: by stop(), by
# an error while loading or warming up, or because the scheduler refuses the instance. Every state
# but LOADING may end in KEPT, by stop() with keep.
TRANSITIONS: Final = {
    InstanceState.LOADING: {InstanceState.WARMING_UP},
    InstanceState.WARMING_UP: {InstanceState.CONNECTING, InstanceState.KEPT},
    InstanceState.CONNECTING: {
        InstanceState.CONNECTING,
        InstanceState.SERVING,
        InstanceState.KEPT,
    },
    InstanceState.SERVING: {InstanceState.CONNECTING, InstanceState.KEPT},
    InstanceState.KEPT: {InstanceState.CONNECTING, InstanceState.KEPT},
}
