from dataclasses import replace

from nereid_perf.measurement import ClientCost, LoadLevel, PhaseTiming, ServerSplit
from nereid_perf.output.result import FoundRate
from nereid_perf.output.summary import level_lines, max_rate_text, summary_lines
from tests.support import perf_results
from tests.support.measurements import concurrency, measured, rate, split


def test_a_level_reads_as_perf_analyzer_s() -> None:
    level = measured(concurrency(2), [1000] * 59, server=(split(requests=60, total_us=120.0),))
    whole = (
        "    Avg request latency: 120 usec (overhead 7 usec + queue 10 usec + compute input 1 usec "
        "+ compute infer 100 usec + compute output 2 usec)"
    )
    assert level_lines(perf_results.server(level), level) == [
        "Request concurrency: 2",
        "  Client:",
        "    Request count: 59",
        "    Throughput: 59 infer/sec",
        "    Avg latency: 1000 usec (standard deviation 0 usec)",
        "    p50 latency: 1000 usec",
        "    p90 latency: 1000 usec",
        "    p95 latency: 1000 usec",
        "    p99 latency: 1000 usec",
        "    Client CPU: 20.0 usec per request, busiest worker 30 % of a CPU",
        "  Server:",
        "    Inference count: 60",
        "    Execution count: 30",
        "    Successful request count: 60",
        whole,
    ]


def test_tokens_are_counted_where_responses_say_them() -> None:
    level = replace(measured(concurrency(1), [1000]), input_tokens=50, output_tokens=20)
    lines = level_lines(perf_results.server(level, is_decoupled=True), level)
    assert "    Token Throughput: 50 input/sec, 20 output/sec" in lines
    assert any(line.startswith("    Time to first token: ") for line in lines)


def test_what_else_there_is_to_say_of_a_level() -> None:
    level = replace(
        measured(
            rate(10),
            [1000] * 10,
            failures={f"error {n}": n for n in range(1, 8)},
            server=(split("e", cache_hits=3, cache_misses=1), split("inner")),
            gauges={"nv_cpu_utilization": (0.5, 0.75)},
            models={"m": measured(rate(5), [2000] * 5)},
            client=ClientCost(30, 0.99, 19, True),
            is_stable=False,
        ),
        cancelled=2,
    )
    lines = level_lines(perf_results.server(level, is_decoupled=True), level)
    for line in (
        "Request Rate: 10",
        "    Response Throughput: 10 infer/sec",
        "    Service time (from sending): p50 1000 usec, p99 1000 usec",
        "    First response: p50 1000 usec, p99 1000 usec",
        "    Between responses: p50 0 usec, p99 0 usec",
        "    Failed request count: 28 (73.7 %)",
        "      7: error 7",
        "      and 2 other errors",
        "    Cancelled request count: 2",
        "    Delayed request count: 19 (50 %)",
        "    [WARNING] The client was the bottleneck: this says more of it than of the server.",
        "    [WARNING] Not stable after 3 windows.",
        "    m: 5 requests, 5/s, p50 2 ms, p99 2 ms",
        "    Cache hit count: 3",
        "    Composing models:",
        "      inner, version: 1",
        "    nv_cpu_utilization: 0.5, 0.75",
    ):
        assert line in lines


def test_without_statistics_there_is_no_server_s_part() -> None:
    level = measured(concurrency(1))
    lines = level_lines(perf_results.server(level), level)
    assert lines[-1].startswith("    Client CPU")


def test_a_server_that_says_no_times() -> None:
    unsaid = ServerSplit("m", "1", 100, 50, None, None, None, None)
    level = measured(LoadLevel("trace", 1), server=(unsaid,))
    lines = level_lines(perf_results.server(level), level)
    assert lines[0] == "Trace"
    assert lines[-1] == "    Successful request count: 100"


def test_a_sweep_ends_with_its_table_and_knee() -> None:
    lines = summary_lines(perf_results.sweep(slo="p99=20ms", notes=("a note",)))
    at = lines.index("Inferences/Second vs. Client p99 Batch Latency")
    assert lines[at + 1].startswith("Concurrency: 1, throughput: 500 infer/sec, latency ")
    assert lines[at + 7].startswith("Knee (most rate per p99): Request concurrency 8, 4000/s, ")
    assert lines[at + 8].startswith("Request concurrency 1: goodput 500/s under p99=20ms")
    assert lines[-2].endswith(", which is missed")
    assert lines[-1] == "a note"


def test_a_knee_at_the_end_of_the_range() -> None:
    result = perf_results.sweep()
    first = replace(result.servers[0], measurements=result.servers[0].measurements[:3])
    text = "\n".join(summary_lines(replace(result, servers=(first,))))
    assert "an end of the range: it may be beyond" in text


def test_a_search_ends_with_the_rate() -> None:
    lines = summary_lines(perf_results.rate_search())
    assert lines[0] == "Inferences/Second vs. Client p99 Batch Latency"
    assert lines[-1] == (
        "Highest rate under p99=20ms: 3700/s, goodput 3655/s, kept by 2 measurements;"
        " missed at 3760/s"
    )


def test_a_search_that_found_no_rate_says_why() -> None:
    none = FoundRate("p99=1ms", "not even the lowest", 0, 0.1, 0, 0)
    assert max_rate_text(none) == "Highest rate under p99=1ms: none (not even the lowest)"
    ceiling = FoundRate("p99=1ms", "the highest allowed", 10, None, 10, 2)
    assert max_rate_text(ceiling).endswith("kept by 2 measurements; the highest allowed")


def test_a_comparison_is_its_ratios() -> None:
    result = perf_results.comparison()
    lines = summary_lines(replace(result, violations=("p99>1ms: it is 2 ms",)))
    assert lines[:3] == [
        "*** A: localhost:8001 ***",
        "*** B: localhost:9001 ***",
        "B to A at Request concurrency 4: 12 rounds each, unpaired, 99 % intervals",
    ]
    assert lines[3].startswith("  rate: 0.909 (0.909 to 0.909): different; A 2000/s, B 1818/s")
    assert lines[-1] == "Failed: p99>1ms: it is 2 ms"


def test_a_comparison_s_note() -> None:
    result = perf_results.comparison()
    noted = replace(result.comparisons[0], is_paired=True, note="too few")
    lines = summary_lines(replace(result, comparisons=(noted,)))
    assert "12 pairs of rounds" in lines[2]
    assert lines[-1] == "  too few"


def test_what_responses_say_of_their_time() -> None:
    timings = {"queue": PhaseTiming(3, 12.0, 40.0), "client and wire": PhaseTiming(3, 7.0, 9.0)}
    level = measured(concurrency(1), timings=timings)
    lines = level_lines(perf_results.server(level), level)
    at = lines.index("  Server-Timing (mean, p99):")
    assert lines[at + 1 : at + 3] == [
        "    queue: 12 usec, 40 usec",
        "    client and wire: 7 usec, 9 usec",
    ]
