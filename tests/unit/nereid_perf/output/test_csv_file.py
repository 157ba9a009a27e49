import csv
import io
from dataclasses import replace
from pathlib import Path

from nereid_perf.output.csv_file import csv_texts, write_csv
from tests.support.measurements import concurrency, measured, rate, split
from tests.support.perf_results import server

_PLAIN = "p50 latency,p90 latency,p95 latency,p99 latency"
_SERVER_COLUMNS = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,"
    "Server Compute Input,Server Compute Infer,Server Compute Output,Client Recv"
)


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_columns_and_order_are_perf_analyzer_s() -> None:
    found = server(
        measured(concurrency(2), [1000] * 200, server=(split(),)),
        measured(concurrency(1), [500] * 100, server=(split(queue_us=5.9),)),
    )
    text = csv_texts(found, "f.csv")["f.csv"]
    assert text.splitlines() == [
        f"{_SERVER_COLUMNS},{_PLAIN}",
        "1,100,0,391,5,1,100,2,0,500,500,500,500",
        "2,200,0,887,10,1,100,2,0,1000,1000,1000,1000",
    ]


def test_without_statistics_there_are_no_columns_of_the_server() -> None:
    text = csv_texts(server(measured(rate(12.5), [1000] * 3)), "f.csv")["f.csv"]
    assert text.splitlines() == [
        "Request Rate,Inferences/Second,Client Send,Client Recv," + _PLAIN,
        "12.5,3,0,0,1000,1000,1000,1000",
    ]


def test_a_level_without_statistics_among_others_has_zeros() -> None:
    found = server(
        measured(concurrency(1), [500], server=(split(cache_hits=1, cache_hit_us=3.0),)),
        measured(concurrency(2), [1000] * 2),
    )
    first, second = _rows(csv_texts(found, "f.csv")["f.csv"])
    assert (first["Server Cache Hit"], first["Server Cache Miss"]) == ("3", "0")
    assert (second["Server Queue"], second["Server Cache Hit"]) == ("0", "0")


def test_what_a_server_s_split_exceeds_is_not_negative() -> None:
    found = server(measured(concurrency(1), [50], server=(split(),)))
    (row,) = _rows(csv_texts(found, "f.csv")["f.csv"])
    assert row["Network+Server Send/Recv"] == "0"


def test_batches_and_decoupled_models() -> None:
    level = replace(measured(concurrency(1), [1000] * 10), responses=70)
    (row,) = _rows(csv_texts(server(level, batch_size=4, is_decoupled=True), "f")["f"])
    assert row["Inferences/Second"] == "40"
    assert row["Response Throughput"] == "70"


def test_verbose_columns_with_gpus() -> None:
    gauges = {
        'nv_gpu_utilization{gpu_uuid="GPU-b"}': (0.25, 0.5),
        'nv_gpu_utilization{gpu_uuid="GPU-a"}': (0.5, 0.75),
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"}': (100.0, 200.0),
        "nv_cpu_utilization": (0.3, 0.4),
    }
    found = server(measured(concurrency(1), [1000], gauges=gauges))
    (row,) = _rows(csv_texts(found, "f.csv", verbose=True)["f.csv"])
    assert list(row)[-7:] == [
        "Avg latency",
        "request/response",
        "response wait",
        "Avg GPU Utilization",
        "Avg GPU Power Usage",
        "Max GPU Memory Usage",
        "Total GPU Memory",
    ]
    assert row["Avg latency"] == row["response wait"] == "1000"
    assert row["Avg GPU Utilization"] == "GPU-a:0.5;GPU-b:0.25;"
    assert row["Max GPU Memory Usage"] == "GPU-a:200;"
    assert row["Avg GPU Power Usage"] == ""


def test_verbose_columns_without_gpus_end_with_the_wait() -> None:
    (row,) = _rows(csv_texts(server(measured(concurrency(1))), "f", verbose=True)["f"])
    assert list(row)[-1] == "response wait"


def test_composing_models_have_files_of_their_own() -> None:
    ensemble = split("e", 100)
    inner = split("ns/inner", 50, total_us=150.0)
    found = server(
        measured(concurrency(1), [1000] * 100, server=(ensemble, inner)),
        measured(concurrency(2), [1000] * 200, server=(ensemble,)),
    )
    texts = csv_texts(found, "f.csv")
    assert list(texts) == ["f.csv", "ns_inner_v1.f.csv"]
    assert texts["ns_inner_v1.f.csv"].splitlines() == [
        _SERVER_COLUMNS,
        "1,50,0,37,10,1,100,2,0",
        "2,0,0,0,0,0,0,0,0",
    ]


def test_each_model_of_a_mix_has_a_file(tmp_path: Path) -> None:
    own = {"a": measured(concurrency(1), [10] * 3), "b": measured(concurrency(1), [20] * 5)}
    mix = measured(concurrency(1), [10] * 8, server=(split("a"), split("b")), models=own)
    files = write_csv(server(mix), tmp_path / "f.csv")
    assert [each.name for each in files] == ["f.csv", "a.f.csv", "b.f.csv"]
    assert _rows((tmp_path / "b.f.csv").read_text())[0]["Inferences/Second"] == "5"


def test_nothing_measured_is_an_empty_file() -> None:
    assert csv_texts(server(), "f.csv") == {"f.csv": ""}
