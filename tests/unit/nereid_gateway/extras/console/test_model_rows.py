"""Rows of what was seen of versions."""

from __future__ import annotations

import time

import pytest

from nereid.facts.document import Model, Recent
from nereid.facts.mesh_facts import ConfigFacts
from nereid.observability.samples import Samples
from nereid.pb import nereid_pb2 as pb
from nereid_gateway.extras.console.loads import Key, Loads
from nereid_gateway.extras.console.look import IndexEntry, Look
from nereid_gateway.extras.console.model_rows import ModelRows, explained, waits_for
from nereid_gateway.extras.console.queries import View
from tests.support.console.typed_documents import check

_M = 'model="m",version="1"'
_ENTRY = IndexEntry(Key("m", "1"), "READY", "")
_CONFIG = ConfigFacts.of_document({"name": "m", "max_batch_size": 8, "dynamic_batching": {}})


def seen(
    time_s: float, *samples: str, entry: IndexEntry = _ENTRY, loads: Loads | None = None
) -> Look:
    page = "\n".join(each.replace("M", _M) for each in samples).encode()
    models = Samples(page).split("model", "version")
    mesh = models.pop((), Samples(b""))
    return Look(
        time_s, (entry,), mesh, models, configs={entry.key: _CONFIG}, loads=loads or Loads()
    )


def counters(requests: int, executions: int, busy: int = 0) -> tuple[str, ...]:
    return (
        "nereid_executors 1",
        f"nv_inference_request_success{{M}} {requests}",
        f"nv_inference_count{{M}} {requests}",
        f"nv_inference_exec_count{{M}} {executions}",
        f"nv_inference_queue_duration_us{{M}} {requests * 100}",
        f'nereid_batches_closed_total{{M,reason="full"}} {executions}',
        f'nereid_batch_size_bucket{{M,le="1"}} {executions}',
        f'nereid_batch_size_bucket{{M,le="2"}} {executions + 3}',
        f"nereid_batch_size_sum{{M}} {requests}",
        f"nereid_batch_size_count{{M}} {executions}",
        f'nereid_instances{{M,state="free"}} {2 - busy}',
        f'nereid_instances{{M,state="busy"}} {busy}',
        f"nv_inference_pending_request_count{{M}} {3 if busy == 2 else 0}",
        "nv_model_load_duration_secs{M} 1.5",
    )


def test_rates_and_means_are_of_the_interval() -> None:
    earlier, look = seen(10, *counters(100, 50)), seen(12, *counters(140, 60, busy=2))
    row = ModelRows().row(_ENTRY, look, earlier, "")
    assert row["rates"]["requests"] == 20
    assert row["rates"]["executions"] == 5
    assert row["latency_us"]["queue"] == 100
    assert row["batches"]["mean_rows"] == 4
    assert row["batches"]["sizes"] == {"1": 60, "2": 3}
    assert row["batches"]["closed_recently"] == {"full": 10}
    assert row["batches"]["max_batch_size"] == 8
    assert row["queue"] == {"pending": 3, "waits_for": "an instance: all 2 are busy"}
    assert row["health"] == "busy"
    assert row["totals"]["requests"] == 140


@pytest.mark.parametrize("code", ["failures", "refused"])
def test_old_failures_are_no_problem(code: str) -> None:
    lost = (
        'nv_inference_request_failure{M,reason="BACKEND"} 3'
        if code == "failures"
        else "nereid_requests_refused_total{M} 3"
    )

    def row(**recent: int) -> Model:
        minutes = pb.VersionLoad.Minutes(requests=7, **recent)
        loads = Loads({_ENTRY.key: pb.VersionLoad(last_5=minutes)})
        look = seen(10, *counters(100, 50), lost, loads=loads)
        return ModelRows().row(_ENTRY, look, look, "")

    old, now = row(), row(**{code: 3})
    assert (old["health"], now["health"]) == ("idle", "problem")
    texts = [each["text"] for each in now["statements"] if each["problem"]]
    assert [text.partition("; ")[2] for text in texts] == ["3 of 10 in the last 5 minutes"]


def test_failed_batches_have_rows_as_well() -> None:
    earlier = seen(10, *counters(0, 0))
    failed = [each for each in counters(40, 10) if "inference_count" not in each]
    row = ModelRows().row(_ENTRY, seen(12, *failed), earlier, "")
    assert row["batches"]["mean_rows"] == 4


def test_the_last_half_hour_has_quantiles() -> None:
    minutes = pb.VersionLoad.Minutes(seconds=600, requests=1200, failures=2, p99_us=81.6)
    loads = Loads({_ENTRY.key: pb.VersionLoad(last_30=minutes)})
    look = seen(10, *counters(100, 50), loads=loads)
    recent = ModelRows().row(_ENTRY, look, look, "")["recent"]
    check(recent, Recent)
    assert (recent["requests_per_s"], recent["errors"], recent["p99_us"]) == (2, 2, 82)


def test_nothing_is_known_of_an_interval_in_which_counters_began_anew() -> None:
    earlier, look = seen(10, *counters(100, 50)), seen(11, *counters(4, 2))
    row = ModelRows().row(_ENTRY, look, earlier, "")
    assert row["rates"]["requests"] == 0
    assert row["latency_us"] == {}


def test_a_row_that_cannot_have_changed_is_the_same() -> None:
    rows = ModelRows()
    looks = [seen(each, *counters(100, 50)) for each in range(4)]
    made = [
        rows.row(_ENTRY, look, before, "") for look, before in zip(looks[1:], looks, strict=False)
    ]
    assert made[1] is made[2]
    owned = rows.row(_ENTRY, looks[3], looks[2], "s-1")
    assert owned["scheduler"] == "s-1"
    loading = IndexEntry(_ENTRY.key, "LOADING", "")
    assert rows.row(loading, looks[3], looks[2], "")["state"] == "LOADING"


def test_rates_fall_back_to_nothing() -> None:
    rows = ModelRows()
    looks = [seen(0, *counters(1, 1)), *(seen(each, *counters(9, 9)) for each in (1, 2, 3))]
    rates = [
        rows.row(_ENTRY, look, before, "")["rates"]["requests"]
        for look, before in zip(looks[1:], looks, strict=False)
    ]
    assert rates == [8, 0, 0]


@pytest.mark.parametrize(
    ("entry", "health"),
    [
        (IndexEntry(Key("m", "1"), "UNAVAILABLE", "<script>"), "failed"),
        (IndexEntry(Key("m", "1"), "UNAVAILABLE", "unloaded"), "out"),
        (IndexEntry(Key("m", "1"), "", ""), "out"),
        (IndexEntry(Key("m", "1"), "LOADING", ""), "problem"),
        (IndexEntry(Key("m", "1"), "READY", "not in memory: x"), "out"),
    ],
)
def test_health_of_what_does_not_serve(entry: IndexEntry, health: str) -> None:
    look = seen(time.time(), entry=entry)
    row = ModelRows().row(entry, look, look, "")
    assert (row["health"], row["reason"]) == (health, entry.reason)
    assert "rates" not in row


def test_the_explanation_is_that_of_the_command() -> None:
    document = explained(seen(1, *counters(100, 50)), View(model="m"))
    assert document["format"] == "nereid.explain/1"
    codes = [each["code"] for each in document["statements"]]
    assert codes[:2] == ["ready", "instances"]
    assert explained(seen(1), View(model="n"))["statements"][0]["code"] == "unknown-model"


@pytest.mark.parametrize(
    ("instances", "sequences", "text"),
    [
        ({}, {}, "an instance: none is ready"),
        ({"busy": 1}, {}, "an instance: the one is busy"),
        ({"free": 1}, {"backlog": 4, "live": 6}, "a slot: 4 sequences wait"),
        ({"free": 1}, {}, "more requests, the queue delay"),
    ],
)
def test_what_requests_wait_for(
    instances: dict[str, int], sequences: dict[str, int], text: str
) -> None:
    assert waits_for(instances, sequences).startswith(text)
