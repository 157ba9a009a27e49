"""Sections of the console's document, of what was seen."""

from __future__ import annotations

from typing import Any

from nereid.facts.document import Executor, Summary
from nereid.facts.mesh_facts import ConfigFacts
from nereid.observability.samples import Samples
from nereid.pb import nereid_pb2 as pb
from nereid_gateway.core.access.grant import Grant, Permission
from nereid_gateway.extras.console import sections
from nereid_gateway.extras.console.loads import Key, Loads
from nereid_gateway.extras.console.look import IndexEntry, Look, Problem
from nereid_gateway.extras.console.queries import View
from tests.support.console.typed_documents import check

_GRANT = Grant((Permission(frozenset({"console"}), ("a",)),))


def look(time_s: float, page: str = "", **more: Any) -> Look:
    models = Samples(page.encode()).split("model", "version")
    mesh = models.pop((), Samples(b""))
    return Look(time_s, mesh=mesh, models=models, own=Samples(page.encode()), **more)


def requests(count: int, model: str = "m") -> str:
    return f'nv_inference_request_success{{model="{model}",version="1"}} {count}\n'


def loads_of(**counts: tuple[int, int, int]) -> dict[Key, pb.VersionLoad]:
    """Requests and failures since the load, and requests of the last 30 minutes."""
    return {
        Key(name, "1"): pb.VersionLoad(
            requests=requests,
            failures=failures,
            request_us=requests * 1000,
            last_30=pb.VersionLoad.Minutes(requests=recent),
        )
        for name, (requests, failures, recent) in counts.items()
    }


def test_rates_of_the_mesh_are_of_all_models_whatever_is_shown() -> None:
    first = loads_of(hidden=(100, 7, 50), reloaded=(500, 9, 500))
    second = loads_of(hidden=(140, 19, 90), reloaded=(3, 0, 3), woken=(1006, 2, 6))
    loads = Loads().later(first, 10)
    seen = look(1, loads=loads)
    assert sections.summary(seen, seen)["requests_per_s"] == 0
    seen = look(3, loads=loads.later(second, 12))
    found = sections.summary(seen, seen)
    # The reloaded model's growth is unknown; the woken one had no requests half an hour before.
    assert (found["requests_per_s"], found["errors_per_s"]) == (23, 6)
    assert found["latency_us"]["request"] == 1000
    assert not found["partial"]


def test_readings_that_are_far_apart_give_no_rate() -> None:
    loads = Loads().later(loads_of(m=(100, 0, 0)), 10).later(loads_of(m=(200, 0, 100)), 500)
    seen = look(1, loads=loads)
    assert sections.summary(seen, seen)["requests_per_s"] == 0


def test_the_summary_counts() -> None:
    index = (
        IndexEntry(Key("a", "1"), "READY", ""),
        IndexEntry(Key("b", "1"), "UNAVAILABLE", "no file"),
        IndexEntry(Key("c", "1"), "UNAVAILABLE", "unloaded"),
    )
    page = 'nereid_pending_requests{device="gpu"} 3\nnereid_pending_requests{device="any"} 2\n'
    seen = look(1, page, index=index)
    found = sections.summary(seen, seen)
    assert found["states"] == {"READY": 1, "UNAVAILABLE": 2}
    assert found["failed"] == 1
    assert (found["pending"], found["waiting"]) == (5, {"gpu": 3, "any": 2})


def test_the_cache_if_there_is_one() -> None:
    def page(hits: int) -> str:
        return f"nereid_cache_capacity_bytes 10\nnv_cache_num_hits {hits}\n"

    assert sections.cache(look(1), look(1)) is None
    cache = sections.cache(look(3, page(9)), look(1, page(5)))
    assert cache is not None
    assert (cache["hits"], cache["hits_per_s"], cache["capacity_bytes"]) == (9, 2, 10)


def test_devices_and_who_has_their_memory() -> None:
    hosted = [
        pb.HostedModel(model="on_gpu", version=1, instances=1, memory_bytes={"gpu1": 5}),
        pb.HostedModel(model="on_cpu", version=2, instances=2, busy=1),
    ]
    executor = pb.ExecutorFacts(
        name="e",
        hosted=hosted,
        devices=[
            pb.Device(kind=pb.Device.CPU),
            pb.Device(kind=pb.Device.GPU, id=1, uuid="GPU-1", memory_bytes=7),
        ],
        usage=pb.DeviceUsage(
            memory_total_bytes=100, gpus=[pb.GpuUsage(uuid="GPU-1", memory_used_bytes=6)]
        ),
    )
    seen = look(1, hosting=pb.FactsResponse(executors=[executor]))
    found = sections.executors(seen)["e"]
    assert (found["instances"], found["busy"]) == (3, 1)
    cpu, gpu = found["devices"]
    assert [each["model"] for each in cpu["tenants"]] == ["on_cpu"]
    assert cpu["memory_total_bytes"] == 100
    assert [(each["model"], each["memory_bytes"]) for each in gpu["tenants"]] == [("on_gpu", 5)]
    assert gpu["memory_used_bytes"] == 6
    limited = sections.executors(seen, lambda name: name == "on_gpu")["e"]
    assert (limited["instances"], limited["busy"]) == (1, 0)
    assert [len(each["tenants"]) for each in limited["devices"]] == [0, 1]


def test_the_models_with_the_most_memory_are_shown() -> None:
    hosted = [
        pb.HostedModel(model=f"m{number}", version=1, memory_bytes={"cpu": number})
        for number in range(300)
    ]
    executor = pb.ExecutorFacts(name="e", hosted=hosted, devices=[pb.Device(kind=pb.Device.CPU)])
    seen = look(1, hosting=pb.FactsResponse(executors=[executor]))
    (cpu,) = sections.executors(seen)["e"]["devices"]
    assert [each["model"] for each in cpu["tenants"]] == [f"m{n}" for n in range(299, 99, -1)]
    # What a load has taken may be too little to be measured.
    del executor.hosted[1:]
    seen = look(1, hosting=pb.FactsResponse(executors=[executor]))
    (cpu,) = sections.executors(seen)["e"]["devices"]
    assert [each["model"] for each in cpu["tenants"]] == ["m0"]


def test_executors_have_names_for_people() -> None:
    names = {"node-1-71-a1b2c3": "node-1", "node-2-8-aa": "node-2", "node-2-9-bb": "node-2"}
    names |= {"blue": "node-3", "old": ""}
    executors = [
        pb.ExecutorFacts(name=name, host_name=host_name) for name, host_name in names.items()
    ]
    found = sections.executors(look(1, hosting=pb.FactsResponse(executors=executors)))
    assert [each["title"] for each in found.values()] == [
        "node-1",
        "node-2, process 8",
        "node-2, process 9",
        "blue",
        "old",
    ]


def test_the_steps_of_an_ensemble_and_what_they_read() -> None:
    config = ConfigFacts.of_document(
        {
            "name": "e",
            "parameters": {"condition.b": {"string_value": "x > 1"}},
            "ensemble_scheduling": {
                "step": [
                    {"model_name": "b", "model_version": 2, "input_map": {"I": "x"}},
                    {
                        "model_name": "a",
                        "model_version": -1,
                        "input_map": {"I": "IN"},
                        "output_map": {"O": "x"},
                    },
                ]
            },
        }
    )
    key = Key("e", "1")
    recent = pb.VersionLoad.Minutes(requests=3, failures=1, p50_us=1.4, p99_us=9)
    load = pb.VersionLoad(steps=[pb.StepLoad(index=1, last_30=recent, mean_us=2.6)])
    seen = look(1, configs={key: config}, loads=Loads({key: load}))
    (steps,) = sections.steps(seen, View(model="e")).values()
    assert steps == [
        {"model": "b", "version": "2", "after": [1], "condition": "x > 1"},
        {
            "model": "a",
            "version": "",
            "after": [],
            "requests": 3,
            "errors": 1,
            "mean_us": 3,
            "p50_us": 1,
            "p99_us": 9,
        },
    ]
    assert sections.steps(seen, View(model="other")) == {}


def test_the_last_events_that_a_viewer_may_see() -> None:
    events = (
        pb.MeshEvent(scheduler="s", number=1, what="load", model="a", cause="c", principal="p"),
        pb.MeshEvent(scheduler="s", number=2, what="executor lost", subject="e", duration_us=5),
        pb.MeshEvent(scheduler="s", number=3, what="load failed", model="b", detail="why"),
    )
    seen = look(1, events=events)
    found = sections.events(seen, View(events=2))
    assert [*found] == ["s 2", "s 3"]
    assert [event["problem"] for event in found.values()] == [True, True]
    assert found["s 2"]["duration_us"] == 5
    assert "model" not in found["s 2"]
    # Events of no model are not for keys with some models alone.
    limited = sections.events(seen, View(events=9, grant=_GRANT))
    assert [(each["model"], each["principal"]) for each in limited.values()] == [("a", "p")]


def test_owners_where_there_are_several_schedulers() -> None:
    both = [pb.SchedulerFacts(name=name, owned=[f"of_{name}"]) for name in ("s-0", "s-1")]
    assert sections.owners(look(1, hosting=pb.FactsResponse(schedulers=both[:1]))) == {}
    owners = sections.owners(look(1, hosting=pb.FactsResponse(schedulers=both)))
    assert owners == {"of_s-0": "s-0", "of_s-1": "s-1"}


def test_declared_against_effective() -> None:
    declared = ConfigFacts.of_document({"name": "m", "dynamic_batching": {}}).proto
    effective = ConfigFacts.of_document(
        {
            "name": "m",
            "max_batch_size": 4,
            "dynamic_batching": {"preferred_batch_size": [4]},
            "instance_group": [{"count": 1}],
        }
    ).proto
    differences = sections.configuration(declared, effective)["differences"]
    by_field = {each["field"]: each for each in differences}
    assert set(by_field) == {
        "max_batch_size",
        "dynamic_batching.preferred_batch_size",
        "instance_group",
    }
    assert by_field["max_batch_size"] == {
        "field": "max_batch_size",
        "declared": 0,
        "effective": 4,
    }
    assert sections.configuration(None, effective)["declared"] == {}


def test_batches_of_one_version() -> None:
    batches = [
        pb.ExecutingBatch(
            model=model,
            version=version,
            rows=2,
            age_us=500_000,
            members=[pb.ExecutingBatch.Member(request_id="<b>", rows=2, queue_us=7)],
        )
        for model, version in (("m", 1), ("m", 2), ("other", 1))
    ]
    seen = look(10, hosting=pb.FactsResponse(batches=batches))
    assert set(sections.batches(seen, View(model="m"))) == {"1", "2"}
    found = sections.batches(seen, View(model="m", version="2"))
    assert [each["time_s"] for each in found["2"]] == [9.5]
    assert found["2"][0]["members"] == [{"request_id": "<b>", "rows": 2, "queue_us": 7}]


class TestLimited:
    """What who may see some models alone is sent of the mesh."""

    INDEX = tuple(
        IndexEntry(Key(name, "1"), state, "") for name, state in (("a", "READY"), ("b", "LOADING"))
    )
    PAGE = (
        requests(7, "a")
        + requests(9, "b")
        + 'nv_inference_pending_request_count{model="a",version="1"} 2\n'
        'nv_inference_pending_request_count{model="b",version="1"} 31\n'
        'nereid_pending_requests{device="cpu"} 33\n'
        "nereid_held_requests 5\nnereid_cache_capacity_bytes 10\n"
        'nereid_http_responses_total{status="200"} 16\n'
    )
    EXECUTOR = pb.ExecutorFacts(
        name="e",
        devices=[pb.Device(kind=pb.Device.CPU)],
        hosted=[
            pb.HostedModel(model="a", version=1, instances=2, busy=1),
            pb.HostedModel(model="b", version=1, instances=40, busy=39),
        ],
        usage=pb.DeviceUsage(cpu_utilization=0.7, memory_total_bytes=100, memory_used_bytes=77),
    )

    def found(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """All of it, and what is sent in place of it for "a"."""
        scheduler = pb.SchedulerFacts(name="s", owned=["a", "b"], models=2)
        seen = look(
            1,
            self.PAGE,
            index=self.INDEX,
            loads=Loads(
                {
                    Key("a", "1"): pb.VersionLoad(pending=2),
                    Key("b", "1"): pb.VersionLoad(pending=31),
                }
            ),
            hosting=pb.FactsResponse(executors=[self.EXECUTOR], schedulers=[scheduler]),
            problems=(Problem("Facts: lost"), Problem("a: lost", "a"), Problem("b: lost", "b")),
        )
        shared = {
            "server": {"name": "triton", "problems": sections.problems(seen)},
            "summary": sections.summary(seen, seen),
            "executors": sections.executors(seen),
            "schedulers": sections.schedulers(seen),
            "slow_requests": [{"model": "a"}, {"model": "b"}],
            "cache": sections.cache(seen, seen),
        }
        return shared, sections.limited(shared, seen, lambda name: name == "a")

    def test_numbers_are_of_these_models(self) -> None:
        shared, limited = self.found()
        assert (shared["summary"]["models"], limited["summary"]["models"]) == (2, 1)
        assert limited["summary"]["states"] == {"READY": 1}
        assert (shared["summary"]["pending"], limited["summary"]["pending"]) == (33, 2)
        assert (limited["executors"]["e"]["instances"], limited["executors"]["e"]["busy"]) == (2, 1)
        assert limited["schedulers"]["s"]["owned"] == ["a"]
        assert limited["schedulers"]["s"]["models"] == 1
        assert limited["slow_requests"] == [{"model": "a"}]
        assert limited["server"] == {"name": "triton", "problems": ["Facts: lost", "a: lost"]}

    def test_what_is_of_all_models_is_left_out(self) -> None:
        shared, limited = self.found()
        assert limited.keys() == shared.keys()
        assert limited["cache"] is None
        assert shared["summary"].keys() - limited["summary"].keys() == {
            *("held", "waiting", "http", "grpc", "http_connections", "grpc_connections")
        }
        assert limited["executors"]["e"]["devices"] == [
            {
                "name": "cpu",
                "memory_total_bytes": 100,
                "tenants": [{"model": "a", "version": "1", "instances": 2, "memory_bytes": 0}],
            }
        ]
        check(limited["summary"], Summary)
        check(limited["executors"]["e"], Executor)
