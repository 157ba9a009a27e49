"""States of an instance's thread, with or without a scheduler."""

from __future__ import annotations

from enum import Enum
from typing import Final


class InstanceState(Enum):
    """The current activity of an instance's thread."""

    LOADING = "loading"
    WARMING_UP = "warming up"
    CONNECTING = "connecting"
    # The instance, or its model, has a stream.
    SERVING = "serving"
    # The model is loaded, but no scheduler has the instance.
    KEPT = "kept"
    STOPPED = "stopped"


# A broken stream leads back to CONNECTING. Every state may change to STOPPED: by stop(), by an
# error while loading or warming up, or if the scheduler refuses. All but LOADING may change to
# KEPT.
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
