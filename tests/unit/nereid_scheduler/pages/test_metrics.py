"""Hosts and GPUs on the metrics page, from the reports of executors."""

from nereid.observability.metrics_page import Page
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.pages.metrics import loop_times_ns, write_cpus, write_executors, write_gpus
from nereid_scheduler.placement.executors.sessions import Session
from tests.support.scheduler.world import CommandStream


def session(name: str, host: str, usage: pb.DeviceUsage | None) -> Session:
    return Session(pb.Hello(name=name, host=host), CommandStream(), usage=usage)


def values_of(page: Page) -> dict[str, float]:
    lines = page.encode().decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if line[0] != "#"}


def busy(utilization: float, used: int = 1, total: int = 10) -> pb.DeviceUsage:
    return pb.DeviceUsage(
        cpu_utilization=utilization, memory_total_bytes=total, memory_used_bytes=used
    )


def test_executors_of_one_host_count_as_one_machine() -> None:
    page = Page()
    # Two processes of one machine, a container on it, another machine, one without a report.
    sessions = [
        session("a", "boot1/24", busy(0.2)),
        session("b", "boot1/24", busy(0.4)),
        session("c", "boot1/77", busy(0.4)),
        session("d", "boot2/24", busy(0.8, 5, 30)),
        session("e", "boot3/24", None),
    ]
    write_cpus(page, sessions)
    values = values_of(page)
    assert round(values.pop("nv_cpu_utilization"), 6) == 0.6
    assert values == {"nv_cpu_memory_total_bytes": 40, "nv_cpu_memory_used_bytes": 6}


def test_executors_that_do_not_know_their_host_count_each() -> None:
    page = Page()
    write_cpus(page, [session("a", "", busy(0.5)), session("b", "", busy(0.5))])
    assert values_of(page)["nv_cpu_memory_total_bytes"] == 20


def test_without_a_report_nothing_is_written() -> None:
    page = Page()
    write_cpus(page, [session("a", "boot", None)])
    write_gpus(page, [session("a", "boot", None)])
    assert page.encode() == b""


def test_a_gpu_is_written_once_however_many_executors_use_it() -> None:
    gpu = pb.GpuUsage(
        uuid="GPU-1",
        utilization=0.5,
        memory_total_bytes=80,
        memory_used_bytes=20,
        power_usage_watts=300,
        power_limit_watts=700,
        energy_joules=12.5,
    )
    page = Page()
    usage = pb.DeviceUsage(gpus=[gpu])
    other = pb.DeviceUsage(gpus=[gpu, pb.GpuUsage(uuid="GPU-2")])
    write_gpus(page, [session("a", "h", usage), session("b", "h", other)])
    values = values_of(page)
    assert len(values) == 12
    assert {name: value for name, value in values.items() if "GPU-1" in name} == {
        'nv_gpu_utilization{gpu_uuid="GPU-1"}': 0.5,
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"}': 80,
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"}': 20,
        'nv_gpu_power_usage{gpu_uuid="GPU-1"}': 300,
        'nv_gpu_power_limit{gpu_uuid="GPU-1"}': 700,
        'nv_energy_consumption{gpu_uuid="GPU-1"}': 12.5,
    }


def test_executors_with_a_cpu_limit_say_how_often_it_stopped_them() -> None:
    page = Page()
    limited = pb.DeviceUsage(cpu_periods=10, throttled_cpu_periods=4)
    sessions = [session("a", "", limited), session("b", "", busy(0.5)), session("c", "", None)]
    write_executors(page, sessions)
    assert values_of(page) == {
        'nereid_executor_cpu_periods_total{executor="a"}': 10,
        'nereid_executor_throttled_cpu_periods_total{executor="a"}': 4,
    }


def test_the_time_for_which_the_event_loop_ran_only_grows() -> None:
    before = loop_times_ns()["running"]
    sum(range(1_000_000))
    assert loop_times_ns()["running"] > before
