"""Diagnoses of the model that a console shows, over a window of looks."""

from __future__ import annotations

from nereid.facts.document import Diagnosis
from nereid.facts.mesh_facts import ConfigFacts
from nereid.observability.samples import Samples
from nereid_gateway.core.access.grant import NOTHING
from nereid_gateway.extras.console.diagnoses import DiagnosisWindow, diagnosed
from nereid_gateway.extras.console.loads import Key
from nereid_gateway.extras.console.look import IndexEntry, Look
from nereid_gateway.extras.console.queries import View
from tests.support.console.typed_documents import check

_ENTRY = IndexEntry(Key("m", "1"), "READY", "")
_CONFIG = ConfigFacts.of_document({"name": "m", "max_batch_size": 8})
_VIEW = View(model="m")


def look(time_s: float, requests: int) -> Look:
    """Each request takes 80 ms, of which it waits for 70, and an instance executes for 10."""
    series = {
        "nv_model_load_duration_secs": 1,
        "nereid_instances": 1,
        "nv_inference_request_success": requests,
        "nv_inference_request_duration_us": 80_000 * requests,
        "nv_inference_queue_duration_us": 70_000 * requests,
        "nereid_execution_seconds_total": 0.01 * requests,
        "nereid_batch_size_sum": requests,
        "nereid_batch_size_count": requests,
    }
    page = "".join(f'{name}{{model="m",version="1"}} {value}\n' for name, value in series.items())
    models = Samples(page.encode()).split("model", "version")
    mesh = Samples(b"nereid_executors 1\nnv_cpu_memory_total_bytes 9\nnv_cpu_memory_used_bytes 9\n")
    return Look(time_s, (_ENTRY,), mesh, models, configs={_ENTRY.key: _CONFIG})


def test_the_model_of_the_view() -> None:
    by_version = diagnosed(look(20, 1000), look(10, 0), _VIEW)
    first, *others = by_version["1"]
    check(first, Diagnosis)
    assert (first["code"], first["remedy"]) == ("no-batcher", "dynamic_batching { }")
    assert [each["code"] for each in others] == ["memory"]
    assert diagnosed(look(20, 1000), look(10, 0), View(model="other")) == {}


def test_figures_of_the_mesh_are_for_those_who_may_see_all_models() -> None:
    limited = _VIEW._replace(grant=NOTHING)
    (only,) = diagnosed(look(20, 1000), look(10, 0), limited)["1"]
    assert only["code"] == "no-batcher"


def test_too_short_a_window_has_none() -> None:
    assert diagnosed(look(11, 1000), look(10, 0), _VIEW) == {}


def test_the_model_has_to_be_known_at_the_beginning_of_the_window() -> None:
    begin = look(10, 0)
    begin.models.clear()
    assert diagnosed(look(20, 1000), begin, _VIEW) == {"1": []}


def test_a_window_begins_ten_to_twenty_seconds_ago() -> None:
    window = DiagnosisWindow()
    ages = []
    for time_s in range(60):
        window.add(look(time_s, 0))
        ages.append(time_s - window.begin.time_s)
    assert ages[:10] == [*range(10)]
    assert (min(ages[10:]), max(ages)) == (10, 19)
