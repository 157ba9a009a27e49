"""Random inputs that grow: fragments of a target's words, between known beginnings and ends."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace

from tests.fuzz.cost.growing import Excess, Growing, Target, examine

# Most are tried only as far as this; those that cost most for their size, to the full.
_TRIED_BYTES = 1 << 17


def random_inputs(target: Target, chance: random.Random) -> Iterator[Growing]:
    """Without end."""
    while True:
        known = chance.choice(target.inputs)
        middle = known.fragment if isinstance(known.fragment, bytes) else known.fragment(7)
        parts = [*chance.choices((*target.words, middle), k=chance.randint(1, 4))]
        fragment = bytearray(b"".join(parts))
        if chance.random() < 0.3:
            fragment[chance.randrange(len(fragment))] = chance.randint(0, 255)
        start, end = known.start, known.end
        if chance.random() < 0.2:
            end = chance.choice((b"", *target.words))
        if chance.random() < 0.1:
            start += chance.choice((b"", *target.words))
        # Of the same class: it knows where the fragment goes.
        name = known.name if type(known) is not Growing else f"like {known.name}"
        yield replace(known, name=name, fragment=bytes(fragment), start=start, end=end)


def search(target: Target, chance: random.Random, seconds: float) -> Excess | None:
    """Try inputs for so long; the first that costs too much."""
    deadline = time.monotonic() + seconds
    for growing in random_inputs(target, chance):
        excess = examine(target, growing, _TRIED_BYTES)
        if excess is None and chance.random() < 0.02:
            excess = examine(target, growing, target.largest_bytes)
        if excess is not None or time.monotonic() > deadline:
            return excess
    raise AssertionError("random inputs do not end")
