"""All attacks, by what they do; each module has its table."""

from tests.support.hostile.attack import Attack
from tests.support.hostile.attacks import (
    compression,
    configurations,
    frames,
    json_bodies,
    memory,
    messages,
    requests,
    shared_memory,
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
    *memory.ATTACKS,
    *shared_memory.ATTACKS,
)
