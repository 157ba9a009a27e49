"""What an instance's thread does, with a scheduler and without one."""

from __future__ import annotations

from enum import Enum
from typing import Final


class InstanceState(Enum):
    """What the instance's thread is doing."""

    LOADING = "loading"
    WARMING_UP = "warming up"
    CONNECTING = "connecting"
    # It has a stream, or its model has.
    SERVING = "serving"
    # Without a scheduler.
    KEPT = "kept"
    STOPPED = "stopped"


# A stream that breaks leads back to CONNECTING. Every state may also end in STOPPED: by stop(), by
# an error while loading or warming up, or by the scheduler refusing the instance; all but the first
# in KEPT, by stop() with keep.
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
