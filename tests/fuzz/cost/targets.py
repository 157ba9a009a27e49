"""All targets."""

from __future__ import annotations

from tests.fuzz.cost import bodies, connections, mesh, text_bodies, work
from tests.fuzz.cost.growing import Target

TARGETS: tuple[Target, ...] = tuple(
    value
    for module in (bodies, connections, mesh, text_bodies, work)
    for value in vars(module).values()
    if isinstance(value, Target)
)
