"""Times of sampled requests, gathered until the answer takes them along."""

import pytest

from nereid.messages import Answer, TracedModel
from nereid.tracing import TraceSettings, is_sampled
from services.scheduler.entry import Entry
from services.scheduler.statistics import Execution
from services.scheduler.trace_times import TimeTraces
from services.scheduler.tracing import EntryTrace, Refusal, SpanTraces, open_traces
from tests.unit.scheduler.samples import entry_of

FIRST, SECOND = (b"\0" + bytes([number]) * 24 + b"\1" for number in (1, 2))
COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]


def begun(traces: TimeTraces, context: bytes, now_ns: int = 100) -> EntryTrace:
    trace = traces.begin(context, now_ns)
    assert trace is not None
    return trace


def ended(trace: EntryTrace, entry: Entry, now_ns: int, name: str = "m") -> tuple[TracedModel, ...]:
    answer = Answer(1)
    trace.end(entry, (name, 3), answer, now_ns)
    return answer.trace


def executed(input_ns: int, infer_ns: int, output_ns: int, *, finished_ns: int) -> Execution:
    return Execution(0, finished_ns, 0, input_ns, infer_ns, output_ns)


def test_an_answer_takes_the_times_along() -> None:
    traces = TimeTraces()
    trace = begun(traces, FIRST)
    entry = entry_of()
    entry.request.request_id = "mine"
    entry.enqueued_ns = 110
    assert trace.begin_attempt(200) == trace.context
    # 40 ns of 100 were not the instance's.
    entry.execution = executed(10, 30, 20, finished_ns=300)
    (told,) = ended(trace, entry, 310)
    assert told == TracedModel(
        trace.context,
        FIRST,
        "m",
        3,
        "mine",
        (
            ("REQUEST_START", 100),
            ("QUEUE_START", 110),
            *zip(COMPUTE, (220, 230, 260, 280), strict=True),
            ("REQUEST_END", 310),
        ),
    )


@pytest.mark.parametrize(
    ("execution", "times"),
    [
        # Longer than there was time for, by another clock.
        (executed(10, 300, 20, finished_ns=300), (200, 210, 280, 300)),
        (executed(500, 0, 0, finished_ns=300), (200, 300, 300, 300)),
        # A decoupled model that ended its request and goes on executing; an instance that died.
        (None, (200, 200, 310, 310)),
        # Of an attempt that was lost.
        (executed(1, 1, 1, finished_ns=150), (200, 200, 310, 310)),
    ],
)
def test_times_are_in_order_whatever_the_instance_says(
    execution: Execution | None, times: tuple[int, ...]
) -> None:
    trace = begun(TimeTraces(), FIRST)
    trace.begin_attempt(200)
    entry = entry_of()
    entry.execution = execution
    (told,) = ended(trace, entry, 310)
    assert told.times[2:-1] == tuple(zip(COMPUTE, times, strict=True))


def test_what_was_not_executed_has_no_times_of_it() -> None:
    traces = TimeTraces()
    trace = begun(traces, FIRST)
    # An ensemble's: it is that of its steps.
    entry = entry_of()
    entry.execution = executed(1, 2, 3, finished_ns=300)
    (told,) = ended(trace, entry, 310)
    assert [name for name, _ in told.times] == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]


def test_the_answer_brings_what_was_below_the_request() -> None:
    traces = TimeTraces()
    root, other = begun(traces, FIRST), begun(traces, SECOND)
    step = begun(traces, root.begin_steps())
    inner = begun(traces, step.begin_attempt(105))
    # Their answers go to whoever asked, who has no use for times.
    assert ended(inner, entry_of(), 120, "inner") == ()
    assert ended(step, entry_of(), 130, "step") == ()
    told = ended(root, entry_of(), 140, "root")
    assert [each.name for each in told] == ["root", "inner", "step"]
    assert told[1].parent == told[2].context == step.context
    assert told[2].parent == root.context
    assert [each.name for each in ended(other, entry_of(), 140, "other")] == ["other"]
    # Nothing is kept.
    assert [each.name for each in ended(begun(traces, FIRST), entry_of(), 150)] == ["m"]


def test_who_gives_up_or_is_refused_is_forgotten() -> None:
    traces = TimeTraces()
    trace = begun(traces, FIRST)
    step = begun(traces, trace.begin_steps())
    ended(step, entry_of(), 120)
    # A refused step is no refused request.
    refused = entry_of().request
    refused.trace_context = trace.context
    traces.refused(Refusal(refused, "m", "", 0, "no"))
    assert len(ended(trace, entry_of(), 130)) == 2
    for give_up in (True, False):
        trace = begun(traces, FIRST)
        ended(begun(traces, trace.begin_steps()), entry_of(), 120)
        if give_up:
            trace.end(entry_of(), ("m", 1), None, 130)
        else:
            refused.trace_context = FIRST
            traces.refused(Refusal(refused, "m", "", 0, "no"))
    assert len(ended(begun(traces, FIRST), entry_of(), 140)) == 1


def test_one_request_goes_through_so_many_models() -> None:
    traces = TimeTraces()
    root = begun(traces, FIRST)
    for _ in range(2000):
        ended(begun(traces, root.begin_steps()), entry_of(), 120)
    assert len(ended(root, entry_of(), 130)) == 1025


def test_what_is_not_sampled_has_no_trace() -> None:
    assert TimeTraces().begin(FIRST[:25] + b"\0", 100) is None
    assert is_sampled(begun(TimeTraces(), FIRST).begin_lookup())


def test_the_settings_choose() -> None:
    assert open_traces(TraceSettings()) is None
    assert isinstance(open_traces(TraceSettings(trace_config=("triton,file=f",))), TimeTraces)
    spans = open_traces(TraceSettings(trace_config=("mode=opentelemetry",)))
    assert isinstance(spans, SpanTraces)
    spans.close()
