"""Replays traces: sends each request at its time and within its sequence."""

from __future__ import annotations

import zlib
from array import array
from collections import deque
from math import prod
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.byte_elements import split_bytes
from nereid.core.tensors.datatypes import byte_size
from nereid.core.tensors.shapes import VARIABLE, format_shape
from nereid_perf.inputs.encoding import make_encoder
from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.sequences import SequenceIds
from nereid_perf.inputs.shares import IdFormat, Place, RequestIds, make_sequences, sequence_part
from nereid_perf.inputs.signature import TensorSpec
from nereid_perf.inputs.tensors import Tensor, TensorMaker, raw_of
from nereid_perf.inputs.trace.reading import read_traces
from nereid_perf.inputs.trace.record import TraceLimits
from nereid_perf.inputs.workload import input_specs, make_steps
from nereid_perf.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid_perf.inputs.encoding import RequestTemplate
    from nereid_perf.inputs.plan import InputPlan
    from nereid_perf.inputs.sequences import Sequences
    from nereid_perf.inputs.trace.record import TraceInput, TraceRecord

_NONE: Final = -1
_START, _END = 1, 2
_LIMITS: Final = TraceLimits()


class _Model:
    def __init__(self, plan: InputPlan, index: int, worker: int, workers: int) -> None:
        model = plan.models[index]
        assert model.signature is not None, "the plan is resolved"
        self._plan = plan
        self._index = index
        self._specs = {spec.name: spec for spec in input_specs(model)}
        self._maker = TensorMaker(plan, model)
        self._steps: list[tuple[Tensor, ...]] = []
        self._turn = 0
        self.encoder = make_encoder(plan, model, dict.fromkeys(model.outputs))
        self.ids = IdFormat(plan, model)
        # For requests to a sequence model that have no sequence in the trace.
        self.sequences: Sequences | None = None
        if model.signature.is_sequence:
            ids = SequenceIds(plan.sequence_ids, worker, workers)
            self.sequences = make_sequences(Place(plan, index, worker, workers), model, [1], ids)

    def next_step(self) -> int:
        """Return the index of the plan's step for the next request without recorded inputs."""
        if not self._steps:
            self._steps = [step.inputs for step in make_steps(self._plan, self._index)]
        self._turn = (self._turn + 1) % len(self._steps)
        return self._turn

    def tensors(self, record: TraceRecord, step: int) -> tuple[Tensor, ...]:
        """Return the tensors of a record, or those of the plan's step if it has none."""
        if record.inputs is None:
            return self._steps[step]
        return tuple(self._tensor(record.place, tensor) for tensor in record.inputs)

    def _tensor(self, place: str, given: TraceInput) -> Tensor:
        spec = self._specs.get(given.name)
        datatype = given.datatype or (spec.datatype if spec else "")
        if self._specs and spec is None:
            raise InputError(
                f"{place}: the model has no input '{given.name}': expected {', '.join(self._specs)}"
            )
        if not datatype:
            raise InputError(f"{place}: input '{given.name}': the server does not say its datatype")
        place = f"{place}: input '{given.name}'"
        dims = (VARIABLE,) * len(given.shape)
        if given.raw is None and given.values is None:
            wanted = TensorSpec(given.name, datatype, dims)
            try:
                return self._maker.make(wanted, given.shape, given.string_bytes)
            except InputError as error:
                raise InputError(f"{place}: {error}") from None
        try:
            raw = given.raw if given.raw is not None else raw_of(given.values or (), datatype)[0]
            size = byte_size(datatype, given.shape)
            fits = (
                len(raw) == size
                if size is not None
                else (len(split_bytes(raw)) == prod(given.shape))
            )
        except (ValueError, InvalidArgument) as error:
            raise InputError(f"{place}: {error}") from None
        if not fits:
            raise InputError(
                f"{place}: expected {prod(given.shape)} {datatype} elements for the shape "
                f"{format_shape(given.shape)}"
            )
        return Tensor(given.name, datatype, given.shape, raw)


class ReplaySource:
    """Source of a trace's requests; arrivals_ns counts from the first request of any worker."""

    def __init__(
        self, plan: InputPlan, worker: int, workers: int, limits: TraceLimits = _LIMITS
    ) -> None:
        """Read the traces, and encode this worker's requests. May raise InputError."""
        self._plan = plan
        self._ids = RequestIds(worker) if plan.request_ids else None
        self._models = [_Model(plan, index, worker, workers) for index in range(len(plan.models))]
        self._templates: list[RequestTemplate] = []
        self._sequence_ids: list[int | str] = []
        # Model, template, sequence and flags of each request.
        self._rows: tuple[array[int], ...] = (array("l"), array("l"), array("l"), array("B"))
        order = _Order(plan, worker, workers, limits)
        self.arrivals_ns = order.arrivals_ns
        self._encode(limits, order)
        self._next = 0
        self._draining = False
        # Key: a sequence with a request in flight. Value: its later requests, which wait.
        self._waiting: dict[int, deque[int]] = {}
        self._ready: deque[int] = deque()

    def next_request(self) -> Request | None:
        """Return the next request; `None` if it has to wait, or after the last request."""
        if self._ready:
            return self._request(self._ready.popleft())
        if self._next == len(self.arrivals_ns) or self._draining:
            return None
        if self._rows[2][self._next] in self._waiting:
            return None
        self._next += 1
        return self._request(self._next - 1)

    def due_request(self, elapsed_ns: int) -> Request | None:
        """Return the next request that has arrived by this time, or `None`."""
        while not self._ready and self._next < len(self.arrivals_ns) and not self._draining:
            if self.arrivals_ns[self._next] > elapsed_ns:
                return None
            self._next += 1
            waiting = self._waiting.get(self._rows[2][self._next - 1])
            if waiting is None:
                return self._request(self._next - 1)
            waiting.append(self._next - 1)
        return self._request(self._ready.popleft()) if self._ready else None

    def next_due_ns(self) -> int | None:
        """Return the arrival time of the next request, or `None` after the last request."""
        return self.arrivals_ns[self._next] if self._next < len(self.arrivals_ns) else None

    def on_end(self, request: Request) -> None:
        """Note the end of a request, and continue its sequence."""
        if request.sequence < 0:
            return
        if request.sequence >= len(self._sequence_ids):
            index = request.sequence - len(self._sequence_ids)
            sequences = self._models[request.workload].sequences
            assert sequences is not None, "its request was in one"
            sequences.on_end(index // len(self._models))
        elif waiting := self._waiting[request.sequence]:
            self._ready.append(waiting.popleft())
        else:
            del self._waiting[request.sequence]

    def set_draining(self, *, draining: bool) -> None:
        """Stop or continue the replay. Sequences end as recorded, without added last requests."""
        self._draining = draining

    def find_mismatch(self, request: Request, message: bytes, json_bytes: int = 0) -> str:
        """Return "": a trace has no expected outputs."""
        del request, message, json_bytes
        return ""

    def _request(self, index: int) -> Request:
        number, template, sequence, flags = (row[index] for row in self._rows)
        model = self._models[number]
        part = b""
        if sequence != _NONE:
            self._waiting.setdefault(sequence, deque())
            part = model.encoder.sequence_part(
                self._sequence_ids[sequence], start=bool(flags & _START), end=bool(flags & _END)
            )
        elif model.sequences is not None and (step := model.sequences.next_step()) is not None:
            part = sequence_part(model.encoder, model.ids, step)
            sequence = len(self._sequence_ids) + step.sequence * len(self._models) + number
        identity = "" if self._ids is None else self._ids.next_id()
        message, json_bytes = self._templates[template].encode(identity.encode(), part)
        at_ns = self.arrivals_ns[index]
        return Request(message, json_bytes, number, sequence, identity, at_ns=at_ns)

    def _encode(self, limits: TraceLimits, order: _Order) -> None:
        """Encode this worker's requests; equal requests are encoded only once."""
        templates: dict[tuple[int, str, int], int] = {}
        sequences: dict[int | str, int] = {}
        size = 0
        for number, record in _chosen(self._plan, limits):
            if not order.is_next_mine():
                continue
            model = self._models[number]
            step = model.next_step() if record.inputs is None else _NONE
            key = number, record.key, step
            if key not in templates:
                tensors = model.tensors(record, step)
                size += sum(len(tensor.raw) for tensor in tensors)
                if size > limits.distinct_bytes:
                    raise InputError(
                        f"{record.place}: requests that differ take more than "
                        f"{limits.distinct_bytes} bytes: leave some out, or use more workers"
                    )
                templates[key] = len(self._templates)
                self._templates.append(
                    model.encoder.template(tensors, parameters=record.parameters)
                )
            sequence, flags = _NONE, 0
            if record.sequence is not None:
                sequence = sequences.setdefault(record.sequence.id, len(sequences))
                flags = _START * record.sequence.is_start + _END * record.sequence.is_end
            values = (number, templates[key], sequence, flags)
            for row, value in zip(self._rows, values, strict=True):
                row.append(value)
        self._sequence_ids = [*sequences]
        self._rows = tuple(
            array(row.typecode, map(row.__getitem__, order.mine)) for row in self._rows
        )


class _Order:
    """Selects and orders one worker's requests; in order of time, workers take turns.

    If the traces have sequences, one worker sends all requests of a sequence.
    """

    def __init__(self, plan: InputPlan, worker: int, workers: int, limits: TraceLimits) -> None:
        times = array("q")
        # Sequence number of each request; equal for the same sequence id.
        sequences = array("q")
        for _, record in _chosen(plan, limits):
            times.append(record.at_ns)
            place = record.sequence
            sequences.append(_NONE if place is None else zlib.crc32(str(place.id).encode()))
        in_time = sorted(range(len(times)), key=times.__getitem__)
        has_sequences = any(sequence != _NONE for sequence in sequences)
        chosen = [
            index
            for turn, index in enumerate(in_time)
            if (turn if not has_sequences or sequences[index] == _NONE else sequences[index])
            % workers
            == worker
        ]
        begin_ns = times[in_time[0]] if in_time else 0
        self.arrivals_ns = array("q", (times[index] - begin_ns for index in chosen))
        self._is_mine = bytearray(len(times))
        for index in chosen:
            self._is_mine[index] = True
        # Key: place among all requests in the files. Value: place among this worker's requests.
        in_files = {index: number for number, index in enumerate(sorted(chosen))}
        self.mine = array("l", (in_files[index] for index in chosen))
        self._next = 0

    def is_next_mine(self) -> bool:
        """Return whether this worker sends the next request in the order of the files."""
        self._next += 1
        return bool(self._is_mine[self._next - 1])


def _chosen(plan: InputPlan, limits: TraceLimits) -> Iterator[tuple[int, TraceRecord]]:
    chosen = _ModelChoice(plan)
    for record in read_traces(plan.traces, limits):
        index = chosen(record)
        if index is not None:
            yield index, record


class _ModelChoice:
    """Chooses the plan's model for a request; `None` means that the request is not replayed."""

    def __init__(self, plan: InputPlan) -> None:
        self._exact = {(model.name, model.version): i for i, model in enumerate(plan.models)}
        self._by_name = {model.name: i for i, model in reversed([*enumerate(plan.models)])}

    def __call__(self, record: TraceRecord) -> int | None:
        exact = self._exact.get((record.model, record.version))
        return self._by_name.get(record.model) if exact is None else exact
