"""Each event changes the metrics it should, by the amount it should, and no other."""

import asyncio
from pathlib import Path

import pytest

from nereid.observability.metrics_page import Page
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import RpcError
from tests.support.scheduler.scheduler_world import (
    CONFIG,
    LIMIT_S,
    World,
    add_model,
    request,
    world,
)
from tests.support.waiting import until

M = 'model="doubler",version="1"'


def failures(reason: str) -> str:
    return f'nv_inference_request_failure{{model="doubler",reason="{reason}",version="1"}}'


def series(it: World) -> dict[str, float]:
    page = Page()
    it.service.metrics.write(page)
    lines = page.encode().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (ln.rpartition(" ") for ln in lines if ln[0] != "#")
    }


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    add_model(tmp_path / "models", config=CONFIG + 'metric_tags { key: "team" value: "blue" }')
    return tmp_path / "models"


def plain(tmp_path: Path, more: str = "") -> Path:
    add_model(tmp_path / "models", config=CONFIG + more)
    return tmp_path / "models"


async def test_all_series_of_a_model_are_there_from_the_start(tmp_path: Path) -> None:
    async with world(plain(tmp_path)) as it:
        await it.executor()
        await it.until_state("READY")
        page = series(it)
        for name in ("request_success", "count", "exec_count", "pending_request_count"):
            assert page[f"nv_inference_{name}{{{M}}}"] == 0
        for phase in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
            assert page[f"nv_inference_{phase}_duration_us{{{M}}}"] == 0
        for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
            assert page[failures(reason)] == 0
        assert 0 < page[f"nv_model_load_duration_secs{{{M}}}"] < LIMIT_S
        assert not [name for name in page if "cache" in name or "summary" in name]


async def test_histograms_of_latencies_once_there_were_requests(tmp_path: Path) -> None:
    """Without any --metrics-config; the bounds suit 100 us to 60 s."""
    async with world(plain(tmp_path)) as it:
        await it.executor()
        await it.until_state("READY")
        assert not [name for name in series(it) if "_histogram_us" in name]
        gateway = await it.gateway()
        await gateway.send(request())
        page = series(it)
        for phase in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
            name = f"nv_inference_{phase}_duration_histogram_us"
            assert page[f'{name}_bucket{{{M},le="60000000"}}'] == 1
            assert page[f'{name}_bucket{{{M},le="+Inf"}}'] == 1
            assert page[f"{name}_count{{{M}}}"] == 1
            assert page[f"{name}_sum{{{M}}}"] == page[f"nv_inference_{phase}_duration_us{{{M}}}"]
        assert not [name for name in page if name.startswith("nv_inference_first")]


async def test_series_by_gpu(tmp_path: Path) -> None:
    config = CONFIG.replace("instance_group [ { count: 1 kind: KIND_CPU } ]", "")
    add_model(tmp_path / "models", config=config)
    first, second = (f'gpu_uuid="GPU-{name}",{M}' for name in "ab")
    success, size = "nv_inference_request_success", "nv_inference_count"
    runs, output = "nv_inference_exec_count", "nv_inference_compute_output_duration_us"
    async with world(tmp_path / "models") as it:
        executor, gateway = await it.pair(gpus=("GPU-a", "GPU-b"))
        await it.until_state("READY")
        page = series(it)
        assert page[f"{success}{{{first}}}"] == page[f"{output}{{{second}}}"] == 0
        assert f"{success}{{{M}}}" not in page
        # In turn, the longest idle GPU first.
        for count in (1, 2, 1):
            await gateway.ask(*range(2 * count))
        page = series(it)
        assert [page[f"{name}{{{first}}}"] for name in (success, size, runs, output)] == [
            2,
            2,
            2,
            6,
        ]
        assert [page[f"{name}{{{second}}}"] for name in (success, size, runs, output)] == [
            1,
            2,
            1,
            3,
        ]
        assert page[f"nv_inference_request_duration_us{{{first}}}"] > 0
        # Failures and pending requests belong to no GPU.
        assert page[f"nv_inference_pending_request_count{{{M}}}"] == 0
        assert f"{success}{{{M}}}" not in page
        await executor.die()
        await it.executor("without")
        await gateway.ask(1, 2)
        page = series(it)
        assert [page[f"{name}{{{M}}}"] for name in (success, size, runs, output)] == [1, 1, 1, 3]
        assert page[f"{success}{{{first}}}"] == 2


async def test_waiting_and_running(tmp_path: Path) -> None:
    async with world(plain(tmp_path)) as it:
        executor, gateway = await it.pair(hold=True)
        responses = [gateway.send(request(n, n)) for n in range(3)]
        instance, batch = await executor.batch()
        await gateway.arrived()
        page = series(it)
        assert page[f"nv_inference_pending_request_count{{{M}}}"] == 2
        assert page[f'nereid_instances{{{M},state="busy"}}'] == 1
        assert page[f'nereid_instances{{{M},state="free"}}'] == 0
        pending = [value for name, value in page.items() if "nereid_link_pending" in name]
        assert pending == [3]
        executor.hold = False
        instance.response(batch)
        await asyncio.gather(*responses)
        assert series(it)[f"nv_inference_pending_request_count{{{M}}}"] == 0


async def test_requests_that_wait_for_a_load_are_held(tmp_path: Path) -> None:
    async with world(plain(tmp_path)) as it:
        gateway = await it.gateway()
        response = gateway.send(request(1, 1))
        await gateway.arrived()
        assert series(it)["nereid_held_requests"] == 1
        assert waiting(it) == {"cpu": 1, "gpu": 0, "any": 0}
        executor = await it.executor()
        await response
        assert series(it)["nereid_held_requests"] == 0
        assert waiting(it) == {"cpu": 0, "gpu": 0, "any": 0}
        # What queues after the last executor has left counts alike.
        await executor.die()
        response = gateway.send(request(1, 1))
        await until(lambda: waiting(it)["cpu"] == 1)
        assert series(it)["nereid_held_requests"] == 0
        await it.executor("next")
        await response


def waiting(it: World) -> dict[str, float]:
    found = series(it)
    names = "cpu", "gpu", "any"
    return {name: found[f'nereid_pending_requests{{device="{name}"}}'] for name in names}


@pytest.mark.parametrize("missing", ["cpu", "gpu"])
async def test_machines_may_be_left_out(tmp_path: Path, missing: str) -> None:
    async with world(plain(tmp_path)) as it:
        executor = await it.executor()
        executor.send(usage=pb.DeviceUsage(memory_total_bytes=1, gpus=[pb.GpuUsage(uuid="GPU-1")]))
        await until(lambda: "nv_cpu_utilization" in series(it))
        page = await it.metrics(without_cpu=missing == "cpu", without_gpu=missing == "gpu")
        assert ("nv_cpu_" in page, "nv_gpu_" in page) == (missing != "cpu", missing != "gpu")


async def test_latencies_where_they_are_configured(tmp_path: Path) -> None:
    wanted = ("histogram_latencies=true", "summary_latencies=true", "summary_quantiles=0.5")
    async with world(plain(tmp_path), metrics_config=wanted) as it:
        _, gateway = await it.pair()
        for _ in range(2):
            await gateway.ask(1, 1)
        page = series(it)
        assert page[f"nv_inference_first_response_histogram_ms_count{{{M}}}"] == 2
        assert page[f'nv_inference_first_response_histogram_ms_bucket{{{M},le="+Inf"}}'] == 2
        assert page[f"nv_inference_compute_infer_summary_us_sum{{{M}}}"] == 4
        assert page[f'nv_inference_compute_infer_summary_us{{{M},quantile="0.5"}}'] == 2
        assert page[f"nv_inference_request_summary_us_count{{{M}}}"] == 2


async def test_durations_where_they_are_disabled(tmp_path: Path) -> None:
    async with world(plain(tmp_path), metrics_config=("counter_latencies=false",)) as it:
        _, gateway = await it.pair()
        await gateway.ask(1, 1)
        page = series(it)
        assert not [name for name in page if "duration_us" in name]
        assert page[f"nv_inference_request_success{{{M}}}"] == 1


async def test_a_models_tags_are_labels(mesh: World) -> None:
    await mesh.executor()
    await mesh.until_state("READY")
    assert f'nv_inference_count{{_team="blue",{M}}}' in series(mesh)


async def test_the_caches_last_report(tmp_path: Path) -> None:
    config = "response_cache { enable: true }"
    summaries = ("summary_latencies=true",)
    async with world(plain(tmp_path, config), metrics_config=summaries) as it:
        await it.executor()
        await it.until_state("READY")
        page = series(it)
        assert "nv_cache_num_entries" not in page
        for name in ("num_hits", "num_misses", "hit_duration", "miss_duration"):
            assert page[f"nv_cache_{name}_per_model{{{M}}}"] == 0
        assert f"nv_cache_hit_summary_per_model_count{{{M}}}" in page
        assert f"nv_inference_request_summary_us_count{{{M}}}" not in page
        usage = pb.CacheUsage(entries=3, lookups=5, hits=4)
        it.service.metrics.cache_usage = lambda: usage
        page = series(it)
        assert page["nv_cache_num_entries"] == 3
        assert page["nv_cache_num_misses"] == 1


async def test_models_that_cannot_be_loaded_and_repositories_that_cannot_be_listed(
    repository: Path,
) -> None:
    add_model(repository, "misnamed", config='name: "other"')
    async with world(repository, model_control_mode="explicit", load_model=("misnamed",)) as it:
        values = series(it)
        assert values['nereid_model_unavailable{model="misnamed",version="1"}'] == 1
        stale = f'nereid_repository_stale{{repository="{repository}"}}'
        assert values[stale] == 0
        repository.rename(repository.parent / "away")
        with pytest.raises(RpcError, match="a model repository cannot be read"):
            await it.index()
        assert series(it)[stale] == 1


async def test_series_of_some_models_alone(tmp_path: Path) -> None:
    add_model(tmp_path / "models", name="tripler", config=CONFIG)
    async with world(plain(tmp_path)) as it:
        await it.executor()
        await it.until_state("READY")
        await it.until_state("READY", "tripler")
        whole = await it.metrics()
        assert 'model="doubler"' in whole
        assert 'model="tripler"' in whole
        some: pb.MetricsResponse = await it.control("Metrics", models=["tripler", "none"])
        page = some.exposition.decode()
        assert 'model="doubler"' not in page
        assert 'nv_inference_count{model="tripler"' in page
        assert "nereid_executors 1" in page
