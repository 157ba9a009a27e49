"""What is said of a timeline: planted problems are named, and nothing else."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereid.facts.reasons import Statement
from nereid.timeline.records import (
    LOADING,
    MEMORY,
    RATE_LIMITER,
    BatchRecord,
    EndedRequest,
    Event,
    GatewayRequest,
    Member,
    ServiceTimeline,
    Timeline,
    Wait,
)
from nereid_timeline.joined import joined
from nereid_timeline.summary import Summary, summarized
from tests.support.scripted_timeline import MS, START, US, Load, S, scripted


def said(*loads: Load, **mesh: Any) -> Summary:
    return summarized(joined(scripted(*loads, **mesh)))


def problems(summary: Summary) -> list[str]:
    return [each.code for each in summary.statements if each.problem]


def statement(summary: Summary, code: str) -> Statement:
    return next(each for each in summary.statements if each.code == code)


# ---- healthy


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))]
)
@pytest.mark.parametrize(
    "load",
    [
        Load(rate=5),
        Load(rate=50),
        Load(rate=2000),
        Load(rate=300, burst=10),
        Load(rate=100, noise=3.0),
        Load(rate=1000, delay=1 * MS),
        Load(rate=100, delay=3 * MS, compute=lambda size: 10 * MS + size * MS),
        Load(rate=500, compute=lambda size: 50 * US, copy_in=200 * US),
        Load(rate=20, copy_in=10 * MS, compute=lambda size: 20 * MS),
        Load(rate=20, compute=lambda size: 400 * MS),
        Load(rate=100, limited=200 * US),
        # As long as its inputs are.
        Load(rate=20, compute=lambda size: [5, 5, 300][random.randrange(3)] * MS),
        Load(rate=50, compute=lambda size: int(random.lognormvariate(2, 1.5) * MS)),
        Load(rate=500, executors=tuple(f"e{each}" for each in range(20))),
    ],
    ids=lambda load: f"{load.rate:g}/s-{load.max_batch}",
)
def test_a_healthy_load_has_no_problem(load: Load, seed: int) -> None:
    random.seed(seed)
    summary = said(load, Load("other", rate=20), seed=seed)
    assert problems(summary) == []
    assert not summary.problems


@settings(max_examples=40, deadline=None)
@given(
    rate=st.floats(2, 800),
    burst=st.integers(1, 16),
    max_batch=st.sampled_from((1, 4, 32)),
    executors=st.integers(1, 4),
    base_us=st.integers(50, 20_000),
    row_us=st.integers(0, 500),
    copy_share=st.floats(0, 0.8),
    delay_share=st.floats(0, 0.8),
    noise=st.floats(0, 2),
    seed=st.integers(0, 1000),
)
def test_no_healthy_load_has_a_problem(**given_: Any) -> None:
    base, row = given_["base_us"] * US, given_["row_us"] * US
    load = Load(
        rate=given_["rate"],
        burst=given_["burst"],
        max_batch=given_["max_batch"],
        executors=tuple(f"e{each}" for each in range(given_["executors"])),
        compute=lambda size: base + row * size,
        copy_in=int(base * given_["copy_share"] / 2),
        copy_out=int(base * given_["copy_share"] / 2),
        delay=int(base * given_["delay_share"]),
        noise=given_["noise"],
    )
    summary = said(load, seconds=2, seed=given_["seed"])
    if problems(summary) == ["saturated"]:
        # More requests than it can serve are no healthy load.
        assert statement(summary, "saturated").figures["busy"] > 0.9
    else:
        assert problems(summary) == []


# ---- one problem each, beside a model without


@pytest.mark.parametrize("rate", [30, 200, 600])
@pytest.mark.parametrize("stall", [500 * MS, 2 * S])
def test_a_stalled_instance(rate: float, stall: int) -> None:
    load = Load(rate=rate, executors=("e0", "e1"), stalls={"e1": [(2 * S, stall)]})
    summary = said(load, Load("other"))
    assert problems(summary) == ["stalled-instance"]
    figures = statement(summary, "stalled-instance").figures
    assert figures["instance"] == "m_0_e1"
    assert figures["stalls"] == 1
    assert stall <= figures["stalled_ms"] * MS <= stall + 20 * MS
    assert figures["requests"] >= 1


@pytest.mark.parametrize("age", [5 * MS, 1500 * MS])
def test_an_execution_that_has_not_ended(age: int) -> None:
    timeline = scripted(Load(rate=100, executors=("e0", "e1")))
    scheduler = next(each for each in timeline.services if each.kind == "scheduler")
    began = scheduler.to_ns - age
    member = Member(1 << 40, began, began, 0)
    times = began, began, began, 0, 0, 0, 0
    scheduler.records.append(BatchRecord("m", "1", "m_0_e1", "e1", 999, 1, (member,), *times))
    summary = summarized(joined(timeline))
    if age < S:
        assert problems(summary) == []
    else:
        assert problems(summary) == ["stalled-instance"]
        assert "stalled once, for 1.50 s so far" in statement(summary, "stalled-instance").text


def test_a_model_that_stalls_often() -> None:
    stalls = [(each * S + S // 2, 400 * MS) for each in range(4)]
    summary = said(Load(rate=100, stalls={"e0": stalls}))
    assert problems(summary) == ["stalled-instance"]
    assert statement(summary, "stalled-instance").figures["stalls"] == 4


def held_up(duration: int, *models: str) -> Summary:
    """All executions of an executor at a time take longer, but not the models in them."""
    timeline = scripted(*(Load(each, rate=300) for each in models))
    at = START + 2 * S
    for service in timeline.services:
        for place, record in enumerate(service.records):
            if isinstance(record, BatchRecord) and record.sent_ns <= at <= record.finished_ns:
                later = record._replace(finished_ns=record.finished_ns + duration)
                service.records[place] = later
    return summarized(joined(timeline))


def test_an_executor_that_is_held_up() -> None:
    summary = held_up(900 * MS, "m", "n", "o")
    assert problems(summary) == ["stalled-executor"]
    figures = statement(summary, "stalled-executor").figures
    assert figures["executor"] == "e0"
    assert 900 <= figures["stalled_ms"] < 950
    assert len(figures["instances"]) >= 2
    assert problems(held_up(900 * MS, "m")) == ["stalled-executor"]
    # As any busy machine does.
    assert problems(held_up(300 * MS, "m", "n", "o")) == []


def test_a_stall_beside_executions_of_many_lengths() -> None:
    random.seed(5)
    stalls = {"e0": [(2 * S, 3 * S)]}
    load = Load(rate=100, compute=lambda size: random.choice([3] * 9 + [250]) * MS, stalls=stalls)
    summary = said(load, seconds=10)
    assert problems(summary) == ["stalled-instance"]
    assert statement(summary, "stalled-instance").figures["stalls"] == 1


def test_inputs_of_many_lengths() -> None:
    random.seed(4)
    lengths = [5, 5, 5, 500]
    summary = said(Load(rate=20, compute=lambda size: random.choice(lengths) * MS), seconds=20)
    assert problems(summary) == []
    assert statement(summary, "uneven-executions").figures["executions"] > 20


@pytest.mark.parametrize(("rate", "delay"), [(5, 50), (50, 50), (200, 20), (1000, 100)])
def test_a_delay_too_long(rate: float, delay: int) -> None:
    summary = said(Load(rate=rate, delay=delay * MS, max_batch=256), Load("other"))
    assert problems(summary) == ["delay-too-long"]
    found = statement(summary, "delay-too-long")
    assert delay * MS / 3 < found.figures["wait_ms"] * MS <= delay * MS
    assert found.figures["model"] == "m"
    reasons = statement(summary, "idle").figures["reasons"]
    assert reasons["waiting for delay"] > 0.05


@pytest.mark.parametrize(
    "load",
    [
        Load(rate=4000),
        Load(rate=3000, max_batch=64, compute=lambda size: size * MS),
        Load(rate=400, max_batch=1),
    ],
    ids=["batches", "large batches", "no batches"],
)
def test_more_requests_than_it_can_serve(load: Load) -> None:
    summary = said(load, Load("other"))
    assert problems(summary) == ["saturated"]
    figures = statement(summary, "saturated").figures
    assert (figures["model"], figures["instances"]) == ("m", 1)
    assert figures["busy"] > 0.95
    assert figures["share"] > 0.5


def test_p99_of_each_model_the_largest_first() -> None:
    summary = said(Load("fast"), Load("slow", rate=50, compute=lambda size: 30 * MS))
    first, second = (each.figures for each in summary.statements if each.code == "p99-of-model")
    assert (first["model"], second["model"]) == ("slow", "fast")
    assert first["p99_ms"] > first["p50_ms"] > 30 > second["p99_ms"] > 2
    assert 200 < first["requests"] < 300


@pytest.mark.parametrize("rate", [10, 50, 200])
def test_a_slow_copy(rate: float) -> None:
    summary = said(Load(rate=rate, copy_in=8 * MS, copy_out=6 * MS), Load("other"))
    assert problems(summary) == ["slow-copy"]
    figures = statement(summary, "slow-copy").figures
    assert figures["copy_ms"] > 13
    assert figures["bytes"] > 0


@pytest.mark.parametrize("rate", [40, 100])
def test_a_rate_limited_model(rate: float) -> None:
    summary = said(Load(rate=rate, limited=40 * MS), Load("other"))
    assert problems(summary) == ["rate-limited"]
    (idle, _) = [each for each in summary.statements if each.code == "idle"]
    assert idle.figures["reasons"]["waiting for the rate limiter"] > 0.1


@pytest.mark.parametrize("rate", [50, 400, 1000])
def test_an_executor_that_was_killed(rate: float) -> None:
    load = Load(rate=rate, executors=("e0", "e1"))
    summary = said(load, Load("other"), killed={"e1": 2 * S})
    assert problems(summary) == ["executor-lost"]
    assert statement(summary, "executor-lost").figures["executor"] == "e1"
    lost = [each for each in summary.statements if each.code == "idle" and "e1" in each.text]
    assert lost[0].figures["seconds"] == pytest.approx(2)


def test_all_of_them_at_once() -> None:
    summary = said(
        Load("stalls", stalls={"e0": [(1 * S, 1 * S)]}),
        Load("delays", rate=50, delay=60 * MS),
        Load("copies", rate=50, copy_in=5 * MS),
        Load("limited", rate=100, limited=30 * MS),
        Load("killed", executors=("e1", "e2")),
        Load("healthy"),
        killed={"e2": 3 * S},
    )
    assert sorted(problems(summary)) == [
        "delay-too-long", "executor-lost", "rate-limited", "slow-copy", "stalled-instance",
    ]  # fmt: skip


# ---- what only records say


def of(*records: Any, kind: str = "scheduler") -> Summary:
    service = ServiceTimeline(kind, "s", from_ns=START, to_ns=START + S, records=[*records])
    return summarized(joined(Timeline(services=[service])))


def mesh(*records: Any, executor: tuple[Any, ...] = ()) -> Summary:
    services = [
        ServiceTimeline("scheduler", "s", from_ns=START, to_ns=START + S, records=[*records]),
        ServiceTimeline("executor", "e", from_ns=START, to_ns=START + S, records=[*executor]),
    ]
    return summarized(joined(Timeline(services=services)))


_FAILED = BatchRecord("m", "1", "m_0", "e", 1, 1, (), 0, START, START, START + 9, 0, 0, 0, "x")


def test_events_that_are_problems() -> None:
    summary = mesh(
        _FAILED,
        _FAILED._replace(executor="f"),
        # Of instances with one name, on two executors.
        Event("instance lost", "m_0", START + 9, 0, "e"),
        Event("executor lost", "f", START + 9, 0, ""),
        Event("instance lost", "m_0", START + 9, 0, "f"),
        Event("load failed", "'n' version 1", START, START + 5, "no file"),
        Event("scheduler takeover", "s1", START, 0, ""),
        Event("load", "'m' version 1", START, 0, ""),
        executor=(
            Event("instance lost", "m_0", START + 9, 0, "its worker was killed"),
            Event("load failed", "n_0", START, START + 4, "no file"),
        ),
    )
    assert sorted(problems(summary)) == [
        "executor-lost", "instance-lost", "load-failed", "scheduler-takeover"
    ]  # fmt: skip
    lost = statement(summary, "instance-lost")
    assert lost.figures["batches"] == 1
    assert "m_0 of executor e was lost (its worker was killed)" in lost.text
    assert "'n' version 1 (no file)" in statement(summary, "load-failed").text


def test_a_stream_that_ends_by_an_unload_is_no_loss() -> None:
    executed = _FAILED._replace(error="")
    summary = mesh(
        executed,
        Event("instance lost", "m_0", START + 9, 0, "e"),
        executor=(Event("unload", "m_0", START + 9, 0, ""),),
    )
    assert problems(summary) == []
    (idle,) = [each for each in summary.statements if each.code == "idle"]
    assert idle.figures["seconds"] == pytest.approx(9e-9)


def test_a_loss_that_only_the_scheduler_noticed() -> None:
    summary = mesh(_FAILED, Event("instance lost", "m_0", START + 9, 0, "e"))
    assert problems(summary) == ["instance-lost"]


def test_a_first_execution_that_takes_long() -> None:
    timeline = scripted(Load(rate=200, stalls={"e0": [(0, 1 * S)]}))
    summary = summarized(joined(timeline))
    assert problems(summary) == ["slow-first-execution"]
    assert "model_warmup" in statement(summary, "slow-first-execution").advice


def test_batches_that_failed_by_themselves() -> None:
    batch = BatchRecord(
        "m", "1", "m_0", "e", 1, 1, (), 0, START, START, START + 9, 0, 0, 0, "no CUDA"
    )
    summary = of(batch)
    assert problems(summary) == ["failed-batches"]
    assert "no CUDA" in statement(summary, "failed-batches").text


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (MEMORY, "waits-for-memory"),
        (LOADING, "waits-for-loading"),
        (RATE_LIMITER, "rate-limited"),
        ("the moon", "waits-for-the-moon"),
    ],
)
def test_long_waits_by_reason(reason: str, code: str) -> None:
    timeline = scripted(Load(rate=50))
    scheduler = timeline.services[1].records
    for each in [each for each in scheduler if isinstance(each, BatchRecord)]:
        members = tuple(m._replace(enqueued_ns=m.enqueued_ns - 9 * MS) for m in each.members)
        scheduler[scheduler.index(each)] = each._replace(members=members)
        scheduler.append(Wait("m", "1", reason, each.sent_ns - 9 * MS, each.sent_ns, 1))
    assert problems(summarized(joined(timeline))) == [code]
    # Executors that come back load again.
    scheduler.append(Event("executor lost", "e9", START, 0, ""))
    expected = ["executor-lost"] if reason == LOADING else ["executor-lost", code]
    assert problems(summarized(joined(timeline))) == expected


@pytest.mark.parametrize(
    ("reason", "code"), [(MEMORY, "waits-for-memory"), (LOADING, "waits-for-loading")]
)
def test_long_waits_before_requests_are_queued(reason: str, code: str) -> None:
    timeline = scripted(Load(rate=50))
    gateway, scheduler = timeline.services[0].records, timeline.services[1].records
    for at, each in enumerate(gateway):
        assert isinstance(each, GatewayRequest)
        gateway[at] = each._replace(received_ns=each.received_ns - 9 * MS)
        scheduler.append(Wait("m", "", reason, each.received_ns - 9 * MS, each.received_ns, 1))
    summary = summarized(joined(timeline))
    assert problems(summary) == [code]
    assert statement(summary, code).figures["wait_ms"] >= 9
    assert statement(summary, "p99").figures["step"] == f"wait for {reason}"


def test_where_p99_comes_from_and_the_slowest() -> None:
    summary = said(Load(rate=100, stalls={"e0": [(2 * S, 1 * S)]}))
    figures = statement(summary, "p99").figures
    assert figures["step"] == "queue"
    assert "requests) spent" in statement(summary, "p99").text
    assert figures["p99_ms"] > 500 > figures["p50_ms"]
    assert len(summary.slowest) == 10
    totals = [each.total_ns for each in summary.slowest]
    assert totals == sorted(totals, reverse=True)
    for each in summary.slowest:
        assert sum(part for _, part in each.steps) == each.total_ns
        assert each.request_id.startswith("r")


def test_fill_against_the_configured_size() -> None:
    whole = joined(scripted(Load(rate=2000, max_batch=8)))
    fill = statement(summarized(whole, {("m", "1"): 8}), "batch-fill")
    assert fill.figures["fill"] == pytest.approx(fill.figures["mean_rows"] / 8)
    assert "of max_batch_size 8" in fill.text
    assert "fill" not in statement(summarized(whole), "batch-fill").figures


def test_idle_while_another_instance_is_waited_for() -> None:
    def batch(instance: str, at: int, enqueued: int, idle: int) -> BatchRecord:
        members = (Member(at, enqueued, enqueued, 0),)
        return BatchRecord(
            "m", "1", instance, "e", at, 1, members, idle, START + at * MS, START + at * MS,
            START + (at + 10) * MS, 0, 0, 0,
        )  # fmt: skip

    # The second one waits for m_0, as a sequence does, while m_1 is idle.
    first, second = batch("m_0", 0, START, START), batch("m_0", 10, START + MS, START + 10 * MS)
    summary = of(first, second, batch("m_1", 100, START + 100 * MS, START))
    idle = [each for each in summary.statements if each.code == "idle"][1]
    assert idle.figures["reasons"]["waiting for another instance"] == pytest.approx(0.009)
    assert idle.figures["reasons"]["nothing to do"] == pytest.approx(0.981)


def test_what_is_missing_is_said() -> None:
    timeline = scripted(Load())
    timeline.missing.append("executor e9: it did not respond")
    timeline.services[1].error_ns = 5 * MS
    summary = summarized(joined(timeline))
    assert not summary.problems
    codes = [each.code for each in summary.statements]
    assert codes[-2:] == ["missing-service", "clock"]


def test_requests_without_an_execution() -> None:
    ended = EndedRequest(3, "m", "1", START, START, START + 5, "cache hit", 0)
    assert "1 cache hit" in statement(of(ended), "requests").text


def test_many_instances_have_one_line() -> None:
    summary = said(Load(rate=2000, executors=tuple(f"e{each}" for each in range(15))))
    assert len([each for each in summary.statements if each.code == "idle"]) == 10
    assert statement(summary, "idle-all").figures["instances"] == 15


def test_nothing_was_recorded() -> None:
    summary = summarized(joined(Timeline()))
    assert [each.code for each in summary.statements] == ["requests"]
    assert summary.slowest == []
