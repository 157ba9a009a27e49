"""Contexts, and which requests are traced."""

from nereid.observability.trace_config import TraceConfig
from nereid.observability.tracing import (
    Sampler,
    above_steps,
    child_context,
    is_above_steps,
    is_sampled,
    shows_tensors,
    with_tensors,
)

TRACE, SPAN = bytes(range(1, 17)), bytes(range(1, 9))
SAMPLED = b"\0" + TRACE + SPAN + b"\1"
UNSAMPLED = b"\0" + TRACE + SPAN + b"\2"


def test_a_context_says_whether_it_is_sampled() -> None:
    assert is_sampled(SAMPLED)
    assert is_sampled(SAMPLED[:25] + b"\3")
    assert not is_sampled(UNSAMPLED)
    assert not is_sampled(b"")
    assert not is_sampled(SAMPLED[:-1])


def test_a_child_keeps_the_trace_and_is_sampled() -> None:
    child = child_context(UNSAMPLED)
    assert child[:17] == SAMPLED[:17]
    assert child[17:25] != SPAN
    assert is_sampled(child)
    assert len(child) == 26
    root, other = child_context(b""), child_context(b"")
    assert len(root) == 26
    assert is_sampled(root)
    assert root[1:17] != other[1:17]


def test_a_tracestate_goes_along_to_every_child() -> None:
    stated = SAMPLED + b"a=1,b=2"
    assert is_sampled(stated)
    assert not is_sampled(UNSAMPLED + b"a=1")
    child = child_context(child_context(stated))
    assert (child[:17], child[26:]) == (stated[:17], b"a=1,b=2")
    assert with_tensors(stated)[26:] == above_steps(stated)[26:] == b"a=1,b=2"
    assert shows_tensors(with_tensors(stated))
    assert is_above_steps(above_steps(stated))
    assert not is_above_steps(child_context(above_steps(stated)))


def wanted(config: TraceConfig, contexts: list[bytes]) -> list[int]:
    sampler = Sampler(config.rule)
    return [number for number, context in enumerate(contexts) if sampler.wants(context)]


def test_every_rate_th_while_count_lasts() -> None:
    levels = ("TIMESTAMPS",)
    assert wanted(TraceConfig(rate=3, levels=levels), [b""] * 10) == [2, 5, 8]
    assert wanted(TraceConfig(rate=3, levels=levels, count=2), [b""] * 10) == [2, 5]
    assert wanted(TraceConfig(rate=1, levels=levels, count=0), [b""] * 3) == []
    assert wanted(TraceConfig(rate=2, levels=levels), [UNSAMPLED] * 4) == [1, 3]


def test_sampled_requests_are_always_traced_and_not_counted() -> None:
    contexts = [SAMPLED, b"", SAMPLED, b"", b""]
    assert wanted(TraceConfig(rate=1, levels=("TIMESTAMPS",), count=1), contexts) == [0, 1, 2]
    # Without a level, or at rate 0, only sampled requests.
    assert wanted(TraceConfig(rate=1, mode="opentelemetry"), contexts) == [0, 2]
    assert wanted(TraceConfig(rate=0, levels=("TIMESTAMPS",)), contexts) == [0, 2]
