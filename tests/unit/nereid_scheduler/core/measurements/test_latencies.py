"""Histograms and summaries of requests' times."""

import pytest

from nereid.observability.metrics_page import Exemplar
from nereid_scheduler.core.measurements.latencies import (
    DEFAULT_BOUNDS_MS,
    Latencies,
    MetricsConfig,
    parse_metrics_config,
    setting,
)
from nereid_scheduler.core.requests.entry import Batch, Entry
from nereid_scheduler.core.requests.execution import Execution
from nereid_scheduler.core.requests.request_trace import RequestTrace
from tests.support.scheduler.samples import end_whole, entry_of, model_of, records_of

MS = 1_000_000
EXECUTION = Execution(
    started_ns=300 * MS,
    finished_ns=600 * MS,
    epoch_ms=1,
    compute_input_ns=10_000,
    compute_infer_ns=200_000,
    compute_output_ns=30_000,
)


def entry(received_ns: int) -> Entry:
    one = entry_of(1)
    one.received_ns = one.enqueued_ns = received_ns
    return one


def test_no_latencies_are_kept_by_default() -> None:
    assert MetricsConfig().latencies_of(model_of()) is None


def test_a_batch_counts_for_each_of_its_members() -> None:
    latencies = MetricsConfig(histogram_latencies=True, summary_latencies=True).latencies_of(
        model_of()
    )
    assert latencies is not None
    records = records_of(latencies)
    failed = entry(0)
    members = [entry(0), entry(550 * MS), failed]
    end_whole(records, Batch(members, 3, "full"), EXECUTION, [failed])
    assert latencies.first_response is not None
    assert latencies.first_response.bounds == DEFAULT_BOUNDS_MS
    # 600 ms and 50 ms; who failed got no response.
    assert latencies.first_response.counts == [1, 0, 1, 0, 0]
    assert latencies.first_response_ms == 650
    assert latencies.phases is not None
    totals = {phase: summary.total for phase, summary in latencies.phases.items()}
    assert totals == {
        "request": 650_000,
        "queue": 300_000 - 250_000,
        "compute_input": 20,
        "compute_infer": 400,
        "compute_output": 60,
    }


def test_a_request_with_many_responses_counts_at_its_first_and_at_its_end() -> None:
    latencies = MetricsConfig(histogram_latencies=True, summary_latencies=True).latencies_of(
        model_of()
    )
    assert latencies is not None
    one = entry(100 * MS)
    latencies.record_first_response(one, 150 * MS)
    assert latencies.first_response is not None
    assert sum(latencies.first_response.counts) == 1
    latencies.record_success(one, EXECUTION, 900 * MS)
    assert latencies.first_response_ms == 50
    assert latencies.phases is not None
    assert latencies.phases["request"].total == 800_000
    assert latencies.phases["queue"].total == 200_000
    assert latencies.phases["compute_infer"].total == 200


def test_the_cache_has_summaries_of_its_own() -> None:
    latencies = Latencies((100,), summaries=False)
    latencies.record_cache_hit(entry(0), 200 * MS)
    latencies.record_cache_miss(7000)
    assert (latencies.cache_hit.total, latencies.cache_miss.total) == (200_000, 7)
    assert latencies.first_response is not None
    assert latencies.first_response.counts == [0, 1]


def test_summaries_without_histograms() -> None:
    latencies = MetricsConfig(summary_latencies=True).latencies_of(model_of())
    assert latencies is not None
    assert latencies.first_response is None
    end_whole(records_of(latencies), Batch([entry(0)], 1, "full"), EXECUTION)
    assert latencies.first_response_ms == 0


def test_a_models_own_bounds() -> None:
    model = model_of(
        'model_metrics { metric_control { metric_identifier { family: "other" }'
        " histogram_options { buckets: [7] } }"
        ' metric_control { metric_identifier { family: "nv_inference_first_response_histogram_ms" }'
        " histogram_options { buckets: [50, 5] } } }"
    )
    latencies = MetricsConfig(histogram_latencies=True).latencies_of(model)
    assert latencies is not None
    assert latencies.first_response is not None
    assert latencies.first_response.bounds == (5, 50)


def test_settings_together_the_last_of_one_name_counts() -> None:
    texts = ["summary_latencies=true", "summary_quantiles=0.5:0.05,0.9", "summary_latencies=false"]
    config = parse_metrics_config(map(setting, texts))
    assert config == MetricsConfig(summary_latencies=False, summary_quantiles=(0.5, 0.9))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "summary_latencies",
        "summary_latencies=maybe",
        "frobnicate=true",
        "summary_quantiles=",
        "summary_quantiles=0.5:0.1,x",
        "summary_quantiles=50",
    ],
)
def test_an_unknown_setting_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected counter_latencies"):
        setting(text)


def traced_entry(received_ns: int, trace: int) -> Entry:
    one = entry(received_ns)
    context = b"\0" + bytes([trace]) * 16 + bytes(8) + b"\1"
    one.trace = RequestTrace(context, has_spans=True)
    return one


def test_only_sampled_requests_leave_exemplars() -> None:
    latencies = MetricsConfig(histogram_latencies=True).latencies_of(model_of())
    assert latencies is not None
    assert latencies.first_response is not None
    records = records_of(latencies)
    members = [entry(0), traced_entry(0, 7), traced_entry(560 * MS, 8), traced_entry(0, 9)]
    failed = [members[-1]]
    end_whole(records, Batch(members, 4, "full"), EXECUTION, failed)
    finished_ns = EXECUTION.finished_ns
    assert latencies.first_response.exemplars == {
        0: Exemplar(bytes([8]) * 16, 40, finished_ns),
        2: Exemplar(bytes([7]) * 16, 600, finished_ns),
    }
    # The cache's and decoupled models' first responses.
    latencies.record_cache_hit(traced_entry(0, 1), 50 * MS)
    latencies.record_cache_hit(entry(0), 60 * MS)
    assert latencies.first_response.exemplars[0] == Exemplar(bytes([1]) * 16, 50, 50 * MS)


def test_without_histograms_there_are_no_exemplars() -> None:
    latencies = MetricsConfig(summary_latencies=True).latencies_of(model_of())
    assert latencies is not None
    members = [traced_entry(0, 7)]
    end_whole(records_of(latencies), Batch(members, 1, "full"), EXECUTION)
    latencies.record_first_response(members[0], 50 * MS)
    assert latencies.first_response is None
