"""A worker's share of one model's requests."""

from __future__ import annotations

from itertools import cycle
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from nereid_perf.inputs.sequences import Sequences, StreamChoice
from nereid_perf.request import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_perf.inputs.encoding import Encoder, RequestTemplate
    from nereid_perf.inputs.plan import InputPlan, ModelPlan
    from nereid_perf.inputs.sequences import SequenceIds, SequenceStep
    from nereid_perf.inputs.workload import Workload

# perf_analyzer's default.
_DEFAULT_LENGTH: Final = 20
MADE_UP: Final = (("random",), ("zero",))


class Place(NamedTuple):
    """Identifies a share: the plan, the model, the worker, and the number of workers."""

    plan: InputPlan
    workload: int
    worker: int
    workers: int


class RequestIds:
    """Makes request ids that are unique in the run."""

    def __init__(self, worker: int) -> None:
        self._prefix = f"{worker}-"
        self._count = 0

    def next_id(self) -> str:
        """Return the next id."""
        self._count += 1
        return f"{self._prefix}{self._count}"


class Share(Protocol):
    """The RequestSource of one model."""

    def next_request(self) -> Request | None:
        """Return the next request, or `None` while all sequences wait."""

    def on_end(self, request: Request) -> None:
        """Note the end of a request."""

    def set_draining(self, *, draining: bool) -> None:
        """Start or stop draining."""


class PlainShare:
    """The model's requests in turn; each worker begins with a different request."""

    def __init__(
        self, templates: Sequence[RequestTemplate], place: Place, ids: RequestIds | None = None
    ) -> None:
        self._place = place
        self._ids = ids
        self._draining = False
        count = len(templates)
        first = count * place.worker // place.workers
        turns = [*range(first, count), *range(first)]
        self._templates = templates
        self._turns = cycle(turns)
        self._ready = cycle([self._request(turn) for turn in (turns if ids is None else ())])

    def next_request(self) -> Request | None:
        """Return the next request."""
        if self._draining:
            return None
        if self._ids is None:
            return next(self._ready)
        return self._request(next(self._turns), self._ids.next_id())

    def on_end(self, request: Request) -> None:
        """Do nothing: requests do not wait for each other."""

    def set_draining(self, *, draining: bool) -> None:
        """Do nothing: no sequence is open."""
        self._draining = draining

    def _request(self, index: int, identity: str = "") -> Request:
        message, json_bytes = self._templates[index].encode(identity.encode())
        return Request(message, json_bytes, self._place.workload, id=identity, data=index)


class SequenceShare:
    """Sequences, each of which sends the requests of one stream in order."""

    def __init__(
        self,
        workload: Workload,
        place: Place,
        sequence_ids: SequenceIds,
        ids: RequestIds | None,
    ) -> None:
        self._place = place
        self._ids = ids
        self._draining = False
        self._streams = workload.streams
        self._templates = workload.templates
        self._encoder = workload.encoder
        self._with_id = IdFormat(place.plan, workload.model)
        lengths = [len(stream) for stream in workload.streams]
        self._sequences = make_sequences(place, workload.model, lengths, sequence_ids)

    def next_request(self) -> Request | None:
        """Return a request of the next sequence, or `None` while all sequences wait."""
        step = self._sequences.next_step(may_begin=not self._draining)
        if step is None:
            return None
        data = self._streams[step.stream][step.step]
        identity = "" if self._ids is None else self._ids.next_id()
        message, json_bytes = self._templates[data].encode(
            identity.encode(), sequence_part(self._encoder, self._with_id, step)
        )
        # The number is unique among the sequences of all models.
        sequence = step.sequence * len(self._place.plan.models) + self._place.workload
        return Request(message, json_bytes, self._place.workload, sequence, identity, data)

    def on_end(self, request: Request) -> None:
        """Note the end of a request, and continue its sequence."""
        self._sequences.on_end(request.sequence // len(self._place.plan.models))

    def set_draining(self, *, draining: bool) -> None:
        """Start or stop draining."""
        self._draining = draining


class IdFormat:
    """Format of sequence ids: numbers, or texts for models that take texts."""

    def __init__(self, plan: InputPlan, model: ModelPlan) -> None:
        assert model.signature is not None, "the plan is resolved"
        self._is_text = plan.text_ids
        if plan.text_ids is None:
            self._is_text = model.signature.has_text_ids

    def format(self, number: int) -> int | str:
        """Return the sequence id for a number, in the form that the model takes."""
        return str(number) if self._is_text else number


def sequence_part(encoder: Encoder, ids: IdFormat, step: SequenceStep) -> bytes:
    """Return the encoded bytes with a step's place in its sequence."""
    return encoder.sequence_part(ids.format(step.id), start=step.is_start, end=step.is_end)


def make_sequences(
    place: Place, model: ModelPlan, lengths: Sequence[int], ids: SequenceIds
) -> Sequences:
    """Return the sequences of one worker; lengths: number of steps in each stream."""
    plan, index, worker, workers = place
    limit = plan.sequences
    if limit is not None:
        limit = limit // workers + (worker < limit % workers)
    length = model.sequence_length
    if length is None and model.input_data in MADE_UP:
        length = _DEFAULT_LENGTH
    choice = StreamChoice(
        [*lengths],
        (worker, workers),
        length,
        model.sequence_length_variation,
        Random(f"{plan.seed}/{index}/{worker}"),  # noqa: S311 - no secret
    )
    return Sequences(ids, limit, choice)
