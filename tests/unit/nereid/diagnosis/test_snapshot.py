"""The figures of a window, from two metrics pages."""

from __future__ import annotations

import pytest

from nereid.diagnosis.snapshot import Snapshot, snapshot_of
from nereid.facts.mesh_facts import ConfigFacts, MeshFacts, VersionFacts
from nereid.observability.samples import Samples

_M = 'model="m",version="1"'
_BEFORE = (
    "nv_model_load_duration_secs{M} 2.5",
    "nv_inference_request_success{M} 10",
    "nv_inference_request_success{gpu_uuid='GPU-1',M} 5",
    "nv_inference_request_duration_us{M} 1000",
    "nv_inference_compute_infer_duration_us{M} 100",
    "nereid_batch_size_count{M} 10",
    "nereid_batches_closed_total{M,reason='full'} 4",
    "nereid_instances{M,state='free'} 2",
    "nereid_executors 2",
    "nereid_scheduler_busy_seconds_total{process='a',state='running'} 100",
    "nereid_executor_cpu_periods_total{executor='e'} 100",
    "nereid_executor_throttled_cpu_periods_total{executor='e'} 10",
    "nereid_gateway_http_connections 2",
)
_NOW = (
    "nv_model_load_duration_secs{M} 2.5",
    "nv_inference_request_success{M} 20",
    "nv_inference_request_success{gpu_uuid='GPU-1',M} 10",
    "nv_inference_request_duration_us{M} 4000",
    "nv_inference_compute_infer_duration_us{M} 400",
    "nv_inference_compute_input_duration_us{M} 50",
    "nereid_batch_size_count{M} 15",
    "nereid_batches_closed_total{M,reason='full'} 6",
    "nereid_instances{M,state='free'} 1",
    "nereid_instances{M,state='busy'} 2",
    "nereid_executors 1",
    "nereid_scheduler_busy_seconds_total{process='a',state='running'} 104",
    "nereid_scheduler_busy_seconds_total{process='a',state='waiting'} 1",
    "nereid_scheduler_busy_seconds_total{process='new',state='running'} 50",
    "nereid_executor_cpu_periods_total{executor='e'} 200",
    "nereid_executor_throttled_cpu_periods_total{executor='e'} 60",
    "nereid_gateway_http_connections 4",
    "nereid_gateway_grpc_connections 2",
    "nereid_gateway_large_text_seconds_total{model='m'} 0.5",
    "nereid_gateway_large_text_seconds_total{model='other'} 9",
    "nv_cpu_memory_total_bytes 100",
    "nv_cpu_memory_used_bytes 40",
    "nv_gpu_memory_total_bytes{gpu_uuid='GPU-1'} 10",
    "nv_gpu_memory_used_bytes{gpu_uuid='GPU-1'} 9",
)


def samples(lines: tuple[str, ...]) -> Samples:
    return Samples("\n".join(lines).replace("M", _M).replace("'", '"').encode())


def snapshot(
    before: tuple[str, ...] | None, now: tuple[str, ...] | None, seconds: float = 10.0
) -> Snapshot:
    config = ConfigFacts.of_document({"name": "m"})
    version = VersionFacts("1", "READY", "", True, config)
    earlier = None
    if before is not None:
        earlier = MeshFacts("m", True, (version,), metrics=samples(before))
    metrics = None if now is None else samples(now)
    return snapshot_of(
        MeshFacts("m", True, (version,), metrics=metrics, earlier=earlier), version, seconds
    )


def test_counters_are_of_the_window() -> None:
    of = snapshot(_BEFORE, _NOW)
    assert (of.requests, of.request_us, of.compute_us) == (15, 3000, 350)
    assert (of.executions, of.executions_since_load) == (5, 15)
    assert of.closed == {"full": 2}
    assert (of.executors, of.instances) == ((2, 1), (2, 3))
    assert (of.scheduler_busy, of.scheduler_waiting) == (0.5, 0.1)
    assert of.throttled == 0.5
    assert of.connections == 4
    assert of.large_text_us == 500_000
    assert of.memory_used == {"cpu": 0.4, "GPU-1": 0.9}
    assert (of.loaded, of.unloaded) == (False, False)


def test_counters_begin_anew_with_a_load() -> None:
    loaded = tuple(line.replace("_secs{M} 2.5", "_secs{M} 2.6") for line in _NOW)
    of = snapshot(_BEFORE, loaded)
    assert of.loaded
    assert (of.requests, of.executions) == (30, 15)
    assert snapshot((), _NOW).loaded


def test_a_version_that_was_unloaded() -> None:
    of = snapshot(_BEFORE, ("nereid_executors 2",))
    assert (of.loaded, of.unloaded) == (False, True)
    assert of.requests == 0


@pytest.mark.parametrize(("before", "now"), [(None, _NOW), (None, None)])
def test_a_single_look_has_no_window(
    before: tuple[str, ...] | None, now: tuple[str, ...] | None
) -> None:
    of = snapshot(before, now, seconds=0.0)
    assert (of.scheduler_busy, of.throttled, of.busy) == (0, 0, 0)
    assert not of.memory_used or now
