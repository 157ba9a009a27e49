"""All attacks, by what they do; each module has its table."""

from tests.support.hostile.attack import Attack
from tests.support.hostile.attacks import (
    compression,
    configurations,
    consoles,
    control_calls,
    decoders,
    frames,
    handshakes,
    json_bodies,
    managed_ports,
    memory,
    messages,
    requests,
    shared_memory,
    texts,
    timelines,
    traffic,
    unfinished,
)

# At a gRPC port with TLS; the others are in clear.
TLS_ATTACKS: tuple[Attack, ...] = handshakes.ATTACKS
ATTACKS: tuple[Attack, ...] = (
    *json_bodies.ATTACKS,
    *messages.ATTACKS,
    *compression.ATTACKS,
    *frames.ATTACKS,
    *unfinished.ATTACKS,
    *requests.ATTACKS,
    *configurations.ATTACKS,
    *decoders.ATTACKS,
    *control_calls.ATTACKS,
    *consoles.ATTACKS,
    *timelines.ATTACKS,
    *managed_ports.ATTACKS,
    *memory.ATTACKS,
    *shared_memory.ATTACKS,
    *texts.ATTACKS,
    *traffic.ATTACKS,
)
