"""Makes the source of one worker process's requests from a plan."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Final

from nereid_perf.inputs.expected import describe_mismatch
from nereid_perf.inputs.mix import Deck
from nereid_perf.inputs.replay import ReplaySource
from nereid_perf.inputs.sequences import SequenceIds
from nereid_perf.inputs.shares import MADE_UP, Place, PlainShare, RequestIds, SequenceShare
from nereid_perf.inputs.text_calls import make_calls
from nereid_perf.inputs.workload import make_workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_perf.inputs.plan import InputPlan
    from nereid_perf.inputs.regions import Region
    from nereid_perf.inputs.shares import Share
    from nereid_perf.inputs.tensors import Tensor
    from nereid_perf.inputs.text_calls import TextCall
    from nereid_perf.inputs.workload import Workload
    from nereid_perf.request import Request, RequestSource

# While all sequences of a model are busy, its turns are held. At this maximum, the other models
# wait too, so that proportions stay exact.
_MAX_HELD: Final = 64


def make_source(plan: InputPlan, worker: int = 0, workers: int = 1) -> RequestSource:
    """Return a worker's source of a resolved plan; raise InputError for data that does not fit."""
    if plan.traces:
        return ReplaySource(plan, worker, workers)
    sequence_ids = SequenceIds(plan.sequence_ids, worker, workers)
    ids = RequestIds(worker) if plan.request_ids else None
    shares: list[Share] = []
    expected: list[list[tuple[Tensor, ...]]] = []
    if plan.path:
        places = [Place(plan, index, worker, workers) for index in range(len(plan.models))]
        shares += map(PlainShare, _calls(plan), places)
        return MixedSource(plan, shares, _deck(plan, worker), expected)
    for index, (model, workload) in enumerate(zip(plan.models, _workloads(plan), strict=True)):
        place = Place(plan, index, worker, workers)
        assert model.signature is not None, "the plan is resolved"
        if model.signature.is_sequence:
            shares.append(SequenceShare(workload, place, sequence_ids, ids))
        else:
            shares.append(PlainShare(workload.templates, place, ids))
        expected.append(workload.expected)
    return MixedSource(plan, shares, _deck(plan, worker), expected)


def _deck(plan: InputPlan, worker: int) -> Deck:
    weights = [model.weight for model in plan.models]
    return Deck(weights, Random(f"{plan.seed}/{worker}"))  # noqa: S311 - no secret


def expects_outputs(plan: InputPlan) -> bool:
    """Return whether the plan has expected outputs for find_mismatch(). May raise InputError."""
    if plan.traces or plan.path or all(model.input_data in MADE_UP for model in plan.models):
        return False
    return any(any(workload.expected) for workload in _workloads(plan))


def make_regions(plan: InputPlan) -> list[Region]:
    """Return the regions that must exist before workers send, if any. May raise InputError."""
    if not plan.region_prefix:
        return []
    return [
        region for index in range(len(plan.models)) for region in make_workload(plan, index).regions
    ]


# A worker makes a source from the same data for each level of load.
@lru_cache(1)
def _workloads(plan: InputPlan) -> tuple[Workload, ...]:
    return tuple(
        make_workload(plan, index)._replace(regions=()) for index in range(len(plan.models))
    )


@lru_cache(1)
def _calls(plan: InputPlan) -> tuple[list[TextCall], ...]:
    return tuple(make_calls(plan, index) for index in range(len(plan.models)))


class MixedSource:
    """Requests of one model, or of several models in proportion to their weights."""

    def __init__(
        self,
        plan: InputPlan,
        shares: Sequence[Share],
        deck: Deck,
        expected: Sequence[Sequence[tuple[Tensor, ...]]],
    ) -> None:
        self._protocol = plan.protocol
        self._shares = shares
        self._deck = deck
        self._expected = expected
        self._draining = False
        # Number of held turns of each model.
        self._held: Counter[int] = Counter()

    def next_request(self) -> Request | None:
        """Return the next request, or `None` while all sequences wait."""
        if len(self._shares) == 1:
            return self._shares[0].next_request()
        if self._draining:
            return next(filter(None, (share.next_request() for share in self._shares)), None)
        for index in self._held:
            request = self._shares[index].next_request()
            if request is not None:
                self._held[index] -= 1
                # The unary plus drops the models that have no held turns.
                self._held = +self._held
                return request
        while self._held.total() < _MAX_HELD:
            index = self._deck.deal()
            request = None if index in self._held else self._shares[index].next_request()
            if request is not None:
                return request
            self._held[index] += 1
        return None

    def on_end(self, request: Request) -> None:
        """Pass the end of a request on to its model's share."""
        self._shares[request.workload].on_end(request)

    def set_draining(self, *, draining: bool) -> None:
        """Start or stop draining of all models."""
        self._draining = draining
        for share in self._shares:
            share.set_draining(draining=draining)

    def find_mismatch(self, request: Request, message: bytes, json_bytes: int = 0) -> str:
        """Return how a response differs from the user's validation data, or "" if it does not."""
        expected = self._expected[request.workload][request.data]
        return describe_mismatch(self._protocol, expected, message, json_bytes)
