"""Whether a history keeps the contract. Pure: a history, faults and the runs of models come in."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.torment import contract
from tests.torment.contract import MODELS
from tests.torment.disruptions import Occurrence
from tests.torment.history import History, Outcome, Request

# How long after a fault has been undone failures may still be its, on a machine that is not busy:
# what was sent meanwhile waits for a scheduler or an executor, by default for 30 s.
AFTERMATH_S: Final = 35.0


@dataclass(frozen=True)
class Violation:
    """One way in which the mesh broke its contract."""

    rule: str
    # The requests concerned, in the order of time.
    requests: tuple[int, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text} (requests {', '.join(map(str, self.requests))})"


@dataclass(frozen=True)
class Evidence:
    """All that a campaign has seen."""

    history: History
    occurrences: Sequence[Occurrence] = ()
    # When each version of an edited model was written, by model and version; version 1 is there
    # from the begin.
    written_s: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    # The ids that at-most-once models noted when they ran them.
    runs: Sequence[int] = ()
    aftermath_s: float = AFTERMATH_S


def check(evidence: Evidence) -> list[Violation]:
    """All violations of the contract, by rule."""
    rules: tuple[Callable[[Evidence], Iterator[Violation]], ...] = (
        _one_end,
        _right_values,
        _versions_in_order,
        _at_most_once,
        _permitted_failures,
        _sequences,
        _recovery,
    )
    return [violation for rule in rules for violation in rule(evidence)]


def _completed(evidence: Evidence) -> Iterable[Request]:
    return (each for each in evidence.history.requests.values() if each.outcome is not None)


def _one_end(evidence: Evidence) -> Iterator[Violation]:
    for each in evidence.history.repeated:
        yield Violation("one end", (each,), "it began or ended twice, or ended without a begin")
    for request in evidence.history.requests.values():
        if request.outcome is None or request.outcome is Outcome.TIMEOUT:
            ended = f"{request.ended_s:.1f} s" if request.outcome else "the end"
            yield Violation(
                "one end",
                (request.id,),
                f"{request.model} of {request.began_s:.1f} s had no response until {ended}",
            )


def _right_values(evidence: Evidence) -> Iterator[Violation]:
    for request in _completed(evidence):
        model = MODELS[request.model]
        if model.is_sequence:
            continue
        for place, result in enumerate(request.results):
            expected = model.function(request.value, result.version) + place
            if result.value != expected:
                yield Violation(
                    "right value",
                    (request.id,),
                    f"{model.name}({request.value}) is {expected} by version {result.version}"
                    f" but response {place} is {result.value}",
                )
        if len({each.version for each in request.results}) > 1:
            yield Violation("right value", (request.id,), "responses of several versions")
        count = len(request.results)
        if count > request.count or (count < request.count and request.outcome is Outcome.OK):
            yield Violation(
                "right number",
                (request.id,),
                f"{count} responses instead of {request.count}, with the outcome"
                f" {request.outcome.value if request.outcome else None}",
            )


def _versions_in_order(evidence: Evidence) -> Iterator[Violation]:
    """A version is there when it has been written, and gone when a newer one has responded.

    But an instance that is loaded after an edit, and before the repository has been polled, has the
    new file beside others with the old one. So what loads instances excuses both together, for a
    while after the edit.
    """
    by_model: dict[str, list[Request]] = defaultdict(list)
    for request in _completed(evidence):
        if request.results and not MODELS[request.model].is_sequence:
            by_model[request.model].append(request)
    for name, requests in by_model.items():
        written_s = {1: float("-inf"), **evidence.written_s.get(name, {})}
        by_end = sorted(requests, key=lambda each: each.ended_s)
        ended, newest, newest_id = 0, 0, 0
        for request in sorted(requests, key=lambda each: each.began_s):
            while ended < len(by_end) and by_end[ended].ended_s < request.began_s:
                version = by_end[ended].results[-1].version
                if version > newest and version in written_s:
                    newest, newest_id = version, by_end[ended].id
                ended += 1
            version = request.results[0].version
            if version not in written_s:
                yield Violation("version", (request.id,), f"{name} never had version {version}")
            elif written_s[version] > request.ended_s:
                yield Violation(
                    "version", (request.id,), f"version {version} of {name} was not written yet"
                )
            elif version < newest and not _is_excused(evidence, written_s[newest], request):
                yield Violation(
                    "version",
                    (newest_id, request.id),
                    f"{name} responded by version {newest} before, and by {version} since",
                )


def _is_excused(evidence: Evidence, edited_s: float, request: Request) -> bool:
    if request.began_s > edited_s + evidence.aftermath_s:
        return False
    return any(
        contract.loads_instances(each.disruption)
        and each.began_s <= request.ended_s
        and each.ended_s >= edited_s - evidence.aftermath_s
        for each in evidence.occurrences
    )


def _at_most_once(evidence: Evidence) -> Iterator[Violation]:
    runs = Counter(evidence.runs)
    for each, count in runs.items():
        if count > 1:
            yield Violation("at most once", (each,), f"it ran {count} times")
        if each not in evidence.history.requests:
            yield Violation("at most once", (each,), "it ran without having been sent")
    for request in _completed(evidence):
        if (
            MODELS[request.model].at_most_once
            and request.outcome is Outcome.OK
            and not runs[request.id]
        ):
            yield Violation("at most once", (request.id,), "it succeeded without having run")


def _permitted_failures(evidence: Evidence) -> Iterator[Violation]:
    for request in _completed(evidence):
        if request.outcome in {Outcome.OK, Outcome.TIMEOUT}:
            continue
        failure = contract.kind_of_failure(request)
        if contract.is_own(request, failure):
            continue
        meanwhile = [
            each.disruption
            for each in evidence.occurrences
            if each.began_s <= request.ended_s
            and request.began_s <= each.ended_s + evidence.aftermath_s
        ]
        permitted = any(contract.permits(each, request, failure) for each in meanwhile)
        if not (permitted or contract.has_no_version(meanwhile, request)):
            disruptions = ", ".join(f"#{each.number} {each.kind}" for each in meanwhile) or "none"
            yield Violation(
                "permitted failure",
                (request.id,),
                f"{request.model} from {request.began_s:.1f} to {request.ended_s:.1f} s failed with"
                f" {request.status} {request.text!r}; faults meanwhile: {disruptions}",
            )


def _sequences(evidence: Evidence) -> Iterator[Violation]:
    """Each attempt is right up to its end, which is END or one error; a loss is one error."""
    attempts: dict[tuple[str, int], dict[int, list[Request]]] = defaultdict(dict)
    for request in evidence.history.requests.values():
        if request.step:
            ours = attempts[request.model, request.step.sequence]
            ours.setdefault(request.step.attempt, []).append(request)
    for of_sequence in attempts.values():
        lost: Request | None = None
        for _, requests in sorted(of_sequence.items()):
            requests.sort(key=lambda each: each.began_s)
            yield from _attempt(requests)
            if lost and requests[0].text == lost.text:
                yield Violation(
                    "sequence",
                    (lost.id, requests[0].id),
                    f"its START failed with the same loss: {lost.text!r}",
                )
            last = requests[-1]
            lost = last if contract.LOST_STATE in last.text else None


def _attempt(requests: Sequence[Request]) -> Iterator[Violation]:
    """Requests from a START on, in the order of time."""
    total = 0
    failed: Request | None = None
    for request in requests:
        assert request.step
        total += request.value
        if failed:
            yield Violation(
                "sequence", (failed.id, request.id), "its client goes on after an error"
            )
        if request.outcome is not Outcome.OK:
            failed = request
            continue
        step = request.step
        is_last = step.number == step.length - 1
        expected = total + (step.sequence if MODELS[request.model].adds_id and is_last else 0)
        values = [each.value for each in request.results]
        if values != [expected]:
            yield Violation(
                "sequence",
                tuple(each.id for each in requests),
                f"request {step.number} of sequence {step.sequence} of {request.model} is"
                f" {expected} but had {values}",
            )


def _recovery(evidence: Evidence) -> Iterator[Violation]:
    """After the last fault every model serves again."""
    if not evidence.occurrences:
        return
    last_s = max(each.ended_s for each in evidence.occurrences)
    names = {each.model for each in evidence.history.requests.values()}
    for request in _completed(evidence):
        if request.outcome is Outcome.OK and request.began_s >= last_s:
            names.discard(request.model)
    for name in sorted(names):
        yield Violation("recovery", (), f"{name} has not served since the last fault")
