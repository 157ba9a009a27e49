"""All attacks, by what they do; each module has its table."""

from tests.support.hostile.attack import Attack
from tests.support.hostile.attacks import (
    compression,
    configurations,
    control_calls,
    frames,
    json_bodies,
    managed_ports,
    messages,
    requests,
    unfinished,
)

ATTACKS: tuple[Attack, ...] = (
    *json_bodies.ATTACKS,
    *messages.ATTACKS,
    *compression.ATTACKS,
    *frames.ATTACKS,
    *unfinished.ATTACKS,
    *requests.ATTACKS,
    *configurations.ATTACKS,
    *control_calls.ATTACKS,
    *managed_ports.ATTACKS,
)
