"""What each model of the campaign computes, and which failures a fault may cause.

The pages docs/architecture.md ("Failures") and docs/model-authors/models.md say the same in words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from tests.torment.disruptions import SERVICES, Disruption
from tests.torment.history import Outcome, Request

FACTOR: Final = 7


# Half of the values of the model with branches are below it.
HALF: Final = 1 << 19


def linear(value: int, version: int) -> int:
    return FACTOR * value + version


def branched(value: int, _version: int) -> int:
    return linear(value, 1) if value < HALF else -linear(value, 1)


@dataclass(frozen=True)
class Model:
    """A model: its value of one request, by the version that computes it."""

    name: str
    function: Callable[[int, int], int] = linear
    # Its files change during a campaign; others are of version 1 for ever.
    is_edited: bool = False
    is_python: bool = False
    is_sequence: bool = False
    at_most_once: bool = False
    # Calls other models while it executes.
    calls: bool = False
    # Adds the correlation id to the last sum.
    adds_id: bool = False
    # How many values there are, if not any: few, so that the cache has some.
    values: int = 0


MODELS: Final[dict[str, Model]] = {
    model.name: model
    for model in (
        Model("onnx", is_edited=True),
        Model("steady"),
        Model("large"),
        Model("cached", is_edited=True, values=40),
        Model("python", is_edited=True, is_python=True),
        Model("decoupled", is_python=True),
        Model("once", is_python=True, at_most_once=True),
        Model("ensemble", function=lambda value, _: linear(linear(value, 1), 1)),
        # A condition of what its first step makes decides which of two others runs.
        Model("branches", function=branched, values=2 * HALF),
        Model("bls", function=lambda value, _: 2 * linear(value, 1), is_python=True, calls=True),
        Model("direct", is_sequence=True),
        Model("oldest", is_sequence=True, adds_id=True),
    )
}

# Kinds of failures.
UNAVAILABLE, ABORTED, INTERNAL, NOT_STARTED, DISCONNECTED, DEADLINE, CANCELLED = (
    "unavailable",
    "aborted",
    "internal",
    "not started",
    "disconnected",
    "deadline",
    "cancelled",
)
# An error that says that the state of a sequence is lost; the request after it may START.
LOST_STATE: Final = "is lost:"
_PASSED: Final = ("the deadline passed", "deadline exceeded while the request was queued")
_STATUSES: Final = {
    "UNAVAILABLE": UNAVAILABLE,
    "ABORTED": ABORTED,
    "INTERNAL": INTERNAL,
    "DEADLINE_EXCEEDED": DEADLINE,
    "CANCELLED": CANCELLED,
    # Errors in a stream have no status.
    "": UNAVAILABLE,
}

# Clients' timers count milliseconds.
_ROUNDING_S: Final = 2e-3

_BY_SERVICE: Final = {
    "gateway": {UNAVAILABLE, DISCONNECTED},
    "scheduler": {UNAVAILABLE, ABORTED, INTERNAL, NOT_STARTED},
    "executor": {UNAVAILABLE, ABORTED, INTERNAL},
    "worker": {UNAVAILABLE, ABORTED, INTERNAL},
    "cache": set(),
    "redis": set(),
}


def kind_of_failure(request: Request) -> str:
    """One of the kinds, or else what the client was told."""
    if request.outcome is Outcome.DISCONNECTED:
        return DISCONNECTED
    if request.outcome is Outcome.CANCELLED:
        return CANCELLED
    if request.status == "INVALID_ARGUMENT" and "specify the START flag" in request.text:
        return NOT_STARTED
    if not request.status and any(each in request.text for each in _PASSED):
        return DEADLINE
    return _STATUSES.get(request.status, f"{request.status}: {request.text}")


def is_own(request: Request, failure: str) -> bool:
    """Whether its client wanted it to end in this way, by this time: that needs no fault."""
    took_s = request.ended_s - request.began_s
    if failure == DEADLINE:
        return request.deadline_s is not None and took_s >= request.deadline_s - _ROUNDING_S
    if failure == CANCELLED:
        return request.cancel_s is not None and took_s >= request.cancel_s - _ROUNDING_S
    return False


def permits(disruption: Disruption, request: Request, failure: str) -> bool:
    """Whether a request may fail in this way because of this fault."""
    model = MODELS[request.model]
    if "the server's log" in request.text:
        return False
    if failure == ABORTED and not model.at_most_once:
        return False
    # What a Python model was executing fails with its process, or with a nested call.
    if failure == INTERNAL and not (model.is_python if _ends_workers(disruption) else model.calls):
        return False
    # Its executor, and the other models there, go on.
    if disruption.kind.endswith("-worker") and not model.is_python:
        return False
    if failure == NOT_STARTED and not (request.step and request.step.number):
        return False
    return failure in _permitted(disruption)


def has_no_version(disruptions: Collection[Disruption], request: Request) -> bool:
    """Whether a model may have no version: who loads it while its file is broken has no older one
    to go on with.
    """
    return (
        MODELS[request.model].is_edited
        and request.status == "NOT_FOUND"
        and "has no available versions" in request.text
        and any(each.kind == "broken-edit" for each in disruptions)
        and any(loads_instances(each) for each in disruptions)
    )


def _ends_workers(disruption: Disruption) -> bool:
    """Whether processes of Python models may end, or seem to."""
    concerned = f"{disruption.kind} {disruption.target}"
    return "executor" in concerned or "worker" in concerned


def loads_instances(disruption: Disruption) -> bool:
    """Whether an instance may be loaded that would not have been."""
    how, _, service = disruption.kind.partition("-")
    if how in {"kill", "stop", "roll"}:
        return service in {"executor", "worker", "scheduler"}
    return how in {"join", "partition", "loss", "delay"}


def _permitted(disruption: Disruption) -> set[str]:
    how, _, service = disruption.kind.partition("-")
    if how == "roll" and service == "executor":
        # A drain: nothing is lost, except for models that answer for themselves later.
        return set()
    if how == "stop" and service == "gateway":
        # Its link may have ended meanwhile: what it sends before it has seen that may have run.
        return _BY_SERVICE[service] | {ABORTED}
    if how in {"kill", "stop", "roll"}:
        return _BY_SERVICE[service]
    if how in {"partition", "loss", "delay"}:
        ends = {each.partition("-")[0] for each in disruption.target.split(",")}
        if ends & {"cache", "redis"}:
            return set()
        return set().union(*(_BY_SERVICE[each] for each in ends & set(SERVICES))) - {DISCONNECTED}
    return set()
