"""Configurations, requests and entries for the tests of the scheduler's core."""

from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from itertools import count
from typing import Any

from nereid.core.wire.messages import InferRequest, InferResponse
from nereid.model_config import ModelConfig, complete_config, freeze_config, parse_config
from nereid.pb import kserve_pb2
from nereid.version import is_compiled
from nereid_scheduler.core.instances.instance_batches import SentBatch
from nereid_scheduler.core.measurements.latencies import Latencies
from nereid_scheduler.core.measurements.timeline import NO_TIMELINE
from nereid_scheduler.core.requests.entry import (
    TRANSITIONS,
    Batch,
    Entry,
    RequestState,
    ValidHead,
)
from nereid_scheduler.core.requests.execution import Execution
from nereid_scheduler.versions.records import Records
from nereid_scheduler.versions.tracing.traces import NO_TRACES

# Name, datatype, shape.
Tensor = tuple[str, str, Sequence[int]]

_numbers = count(1)


@cache
def model_of(text: str = "", *, name: str = "m", backend: str = "python") -> ModelConfig:
    """Return the complete configuration of a model."""
    written = parse_config(f'name: "{name}" backend: "{backend}" {text}', model_name=name)
    return freeze_config(complete_config(written, model_name=name, description=None))


def head_of(inputs: Iterable[Tensor], outputs: Iterable[str] = ()) -> bytes:
    message = kserve_pb2.ModelInferRequest(model_name="m")
    for name, datatype, shape in inputs:
        message.inputs.add(name=name, datatype=datatype, shape=shape)
    for name in outputs:
        message.outputs.add(name=name)
    return message.SerializeToString(deterministic=True)


def no_response(response: InferResponse) -> None:
    raise AssertionError(response)


def request_with(context: bytes, **more: Any) -> InferRequest:
    """A request in the trace of this context."""
    fields = {"head": b"", "payloads": [], **more}
    return InferRequest(next(_numbers), trace_context=context, **fields)


class CheckedEntry(Entry):
    """Checks each change of its state against the table of transitions.

    Only of the pure form: compiled classes cannot be extended.
    """

    __slots__ = ("_state",)
    _state: RequestState

    @property
    def state(self) -> RequestState:
        return self._state

    @state.setter
    def state(self, state: RequestState) -> None:
        if hasattr(self, "_state") and state is not self._state:
            assert state in TRANSITIONS[self._state], f"{self._state} -> {state}"
        self._state = state


class NoOwner:
    """For entries that nobody cancels."""

    decoupled = False

    def cancel(self, entry: Entry) -> None:
        raise AssertionError(entry)

    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        raise AssertionError(entry, paused)

    def is_blocked(self, entry: Entry) -> bool:
        raise AssertionError(entry)

    def return_entry(self, entry: Entry, response: InferResponse) -> None:
        raise AssertionError(entry, response)


def entry_of(size: int = 1, *, key: Hashable = (), level: int = 1, length: int = 0) -> Entry:
    valid = ValidHead(batch_size=size, shape_key=key, sizes=(), input_names=(), length=length)
    request = InferRequest(id=next(_numbers), head=b"", payloads=[])
    kind = Entry if is_compiled() else CheckedEntry
    return kind(request, valid, no_response, NoOwner(), received_ns=0, key=key, level=level)


def records_of(latencies: Latencies | None = None) -> Records:
    """Return the records of a version without a timeline and traces."""
    return Records(model_of(), ("m", 1), latencies, NO_TIMELINE, NO_TRACES)


def end_whole(
    records: Records, batch: Batch, execution: Execution, failed: Sequence[Entry] = ()
) -> None:
    """Record an executed batch that got one reply; failed: the members that failed."""
    sent = SentBatch(1, batch, execution.started_ns)
    sent.execution, sent.failed = execution, [*failed]
    records.end_batch(sent, execution)
