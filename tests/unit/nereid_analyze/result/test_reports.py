"""A whole result, from a simulated server: what is printed, written and applied."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from nereid_analyze.goal import Constraint, Goal
from nereid_analyze.job import Job, search_of
from nereid_analyze.reports import changes_of, write_reports
from nereid_analyze.result.analysis import Analysis, p99_us
from nereid_analyze.result.config_change import ApplyError, apply_changes, read_texts
from nereid_analyze.result.document import (
    STDOUT,
    finished_document,
    partial_document,
    write_document,
)
from nereid_analyze.result.tables import gpu_table, inference_table, server_table
from nereid_analyze.search.trial import Sample, resolve
from tests.support.simulated_server import SimulatedModel, SimulatedServer, settings_of

_TEXT = 'name: "mlp"\nmax_batch_size: 8  # a guess\ndynamic_batching { }\n'
_CONFIG = {
    "name": "mlp",
    "max_batch_size": 8,
    "dynamic_batching": {"max_queue_delay_microseconds": 0, "preferred_batch_size": [8]},
    "instance_group": [{"kind": "KIND_CPU", "count": 1}],
}


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    models = {"mlp": SimulatedModel(300, 12)}
    settings = settings_of("mlp", instances=3, batches=(1, 8, 32), delays=(0,))[:2]
    server = SimulatedServer(models, settings, seed=2)
    job = Job(
        title="mlp",
        models={"mlp": 1},
        configs={"mlp": _CONFIG},
        space=server.space,
        defaults=server.defaults,
        goal=Goal(constraints=(Constraint("perf_latency_p99", most=20),)),
        texts={"mlp": _TEXT},
        price_per_hour=3.6,
        server="localhost:8000, http",
        command=("nereid", "analyze", "-m", "mlp"),
    )
    return Analysis(job, resolve(search_of(job), server.measure))


def test_the_winner_gains_and_says_why(analysis: Analysis) -> None:
    assert analysis.gain is not None
    assert analysis.gain > 0.3
    lines = list(analysis.lines())
    assert any(line.startswith("Best: ") for line in lines)
    assert any("t(b) = " in line for line in lines)
    assert {each.name for each in analysis.changes()} <= {
        "max_batch_size",
        "instance_group.count",
    }
    assert all(each.reason for each in analysis.changes())


def test_the_front_has_nothing_that_is_beaten(analysis: Analysis) -> None:
    front = analysis.front()
    for each in front:
        assert not any(
            other.measurement.requests_per_s > each.measurement.requests_per_s
            and p99_us(other) < p99_us(each)
            for other in analysis.result.samples
            if other.trial.batch_size == 1
        )


def test_a_million_inferences_cost_what_the_hour_does(analysis: Analysis) -> None:
    assert analysis.cost_per_million(1000) == pytest.approx(1.0)
    assert Analysis(replace(analysis.job, price_per_hour=None), analysis.result).cost_per_million(
        1000
    ) is None  # fmt: skip


def test_each_changed_line_has_a_reason(analysis: Analysis) -> None:
    (change,) = changes_of(analysis)
    lines = change.lines()
    written = [(line, why) for line, why in lines if re.match(r"\+ *\w", line)]
    assert written
    assert all(why for _, why in written)
    assert '-name: "mlp"' not in [line for line, _ in lines]


def test_it_is_written_with_a_backup(analysis: Analysis, tmp_path: Path) -> None:
    path = tmp_path / "mlp" / "config.pbtxt"
    path.parent.mkdir()
    path.write_text(_TEXT)
    path.chmod(0o640)
    assert read_texts(tmp_path, {"mlp": {}}) == {"mlp": _TEXT}
    changes = changes_of(analysis)
    (backup,) = apply_changes(tmp_path, changes)
    assert backup.read_text() == _TEXT
    assert path.read_text() == changes[0].after
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in path.parent.iterdir()) == [path.name, backup.name]


def test_a_file_that_has_changed_since_is_left_alone(analysis: Analysis, tmp_path: Path) -> None:
    path = tmp_path / "mlp" / "config.pbtxt"
    path.parent.mkdir()
    path.write_text(_TEXT + "# mine\n")
    with pytest.raises(ApplyError, match="has changed since"):
        apply_changes(tmp_path, changes_of(analysis))
    assert path.read_text() == _TEXT + "# mine\n"


def test_a_repository_without_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ApplyError, match="has no model 'mlp'"):
        read_texts(tmp_path, {"mlp": {}})


def test_tables_have_model_analyzers_columns(analysis: Analysis) -> None:
    text = inference_table(analysis.job, analysis.result.samples)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == [
        "Model", "Batch", "Concurrency", "Request Rate", "Model Config Path", "Instance Group",
        "Max Batch Size", "Satisfies Constraints", "Throughput (infer/sec)", "p99 Latency (ms)",
    ]  # fmt: skip
    assert len(rows) == len(analysis.result.samples)
    assert rows[0]["Satisfies Constraints"] == "Yes"
    assert rows[-1]["Satisfies Constraints"] == "No"
    assert {row["Model Config Path"] for row in rows} >= {"mlp_config_default", "mlp_config_0"}
    default = next(row for row in rows if row["Model Config Path"] == "mlp_config_default")
    assert (default["Instance Group"], default["Max Batch Size"]) == ("1:CPU", "8")


def test_gpus_have_rows_of_their_own(analysis: Analysis) -> None:
    gauges = {
        'nv_gpu_utilization{gpu_uuid="A"}': (0.5, 0.9),
        'nv_gpu_utilization{gpu_uuid="B"}': (0.25, 0.9),
        'nv_gpu_memory_used_bytes{gpu_uuid="A"}': (2e9, 2e9),
    }
    sample = analysis.result.samples[0]
    sample = Sample(sample.trial, replace(sample.measurement, gauges=gauges))
    rows = list(csv.DictReader(io.StringIO(gpu_table(analysis.job, [sample]))))
    assert [
        (row["GPU UUID"], row["GPU Memory Usage (MB)"], row["GPU Utilization (%)"]) for row in rows
    ] == [("A", "2000.0", "50.0"), ("B", "None", "25.0")]
    idle = server_table(replace(analysis.job, idle=gauges), [sample])
    assert [row["Model"] for row in csv.DictReader(io.StringIO(idle))] == ["triton-server"] * 2


def test_reports_are_complete_pages(analysis: Analysis, tmp_path: Path) -> None:
    written = write_reports(analysis, changes_of(analysis), tmp_path)
    assert [each.name for each in written] == [
        "metrics-model-inference.csv", "metrics-model-gpu.csv", "metrics-server-only.csv",
        "mlp.html",
    ]  # fmt: skip
    page = written[-1].read_text()
    without_plotly = page[: page.rindex("<script>(")] if "<script>(" in page else page
    assert "config.pbtxt" in without_plotly
    assert not re.search(r'(src|href)="', page[:20_000])
    for name in ("front", "finals", "times", "effect-0"):
        assert f'id="{name}"' in page


def test_the_document_has_what_was_found_and_is_json(
    analysis: Analysis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = finished_document(analysis, changes_of(analysis))
    part = partial_document(analysis.job, analysis.result.samples[:2])
    write_document(STDOUT, [found, part])
    printed = capsys.readouterr().out
    write_document(str(tmp_path / "file"), [found, part])
    assert (tmp_path / "file").read_text() == printed
    document = json.loads(printed)
    assert document["format"] == "nereid.analyze/1"
    whole, ended_early = document["jobs"]
    assert whole["gain"] == pytest.approx(analysis.gain)
    assert whole["winner"]["candidate"] == analysis.winner.candidate.plain()
    assert len(whole["measurements"]) == len(analysis.result.samples)
    assert [each["model"] for each in whole["changes"]] == ["mlp"] * len(analysis.changes())
    assert not ended_early["is_finished"]
    assert ended_early["measurements"] == whole["measurements"][:2]
