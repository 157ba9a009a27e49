"""Timelines: floods of those who want all that the mesh has recorded."""

from __future__ import annotations

from tests.support.hostile.attack import ANY, SERVED, Attack
from tests.support.hostile.attacks.control_calls import flood
from tests.support.hostile.raw_clients import post
from tests.support.hostile.sending import ask

_TIMELINE = "/v2/nereid/timeline"
_ALL = post(f"{_TIMELINE}?last=100000", method="GET")

ATTACKS = (
    Attack("one timeline", lambda target: ask(target, _ALL), SERVED),
    Attack("4,000 timelines", flood(lambda _: _ALL), ANY),
    Attack(
        "a timeline of no number of seconds",
        lambda target: ask(target, post(f"{_TIMELINE}?last=nan", method="GET")),
    ),
)
