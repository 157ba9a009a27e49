"""How much memory loads take."""

from __future__ import annotations

import os
import subprocess
import sys

from nereid_executor.core.load_memory import (
    LoadMeter,
    process_bytes,
    write_sizes,
)
from nereid_executor.core.model_files import ModelFiles

FILES = ModelFiles(frozenset({("a", 70, b"x"), ("b", 7, b"y")}), frozenset())


class Memory:
    """What is in use."""

    def __init__(self) -> None:
        self.cpu = 100
        self.gpus: dict[int, int | None] = {0: 1000}

    def meter(self) -> LoadMeter:
        return LoadMeter(lambda: self.cpu, self.gpus.get)


def test_a_load_takes_by_how_much_the_process_grows() -> None:
    memory = Memory()
    with memory.meter().measuring(None) as measurement:
        memory.cpu += 90
        assert measurement.sizes(None, FILES) == {"cpu": 90}
        # Into memory that another model has left, or something else was freed meanwhile.
        memory.cpu -= 150
        assert measurement.sizes(None, FILES) == {"cpu": 77}
        assert measurement.sizes(None, None) == {"cpu": 0}
        assert measurement.sizes(12, FILES) == {"cpu": 12}


def test_a_gpus_memory() -> None:
    memory = Memory()
    meter = memory.meter()
    with meter.measuring(0) as measurement:
        memory.cpu += 1
        memory.gpus[0] = 1400
        assert measurement.sizes(None, FILES) == {"cpu": 1, "gpu 0": 400}
    memory.gpus[0] = None
    with meter.measuring(0) as measurement:
        assert measurement.sizes(None, FILES) == {"cpu": 0, "gpu 0": 77}


def test_of_loads_at_a_time_files_say_the_size() -> None:
    memory = Memory()
    meter = memory.meter()
    with meter.measuring(None) as one:
        with meter.measuring(0) as other:
            memory.cpu += 30
            assert other.sizes(None, FILES) == {"gpu 0": 77}
            assert other.sizes(12, FILES) == {"gpu 0": 77, "cpu": 12}
            assert other.sizes(None, None) == {"gpu 0": 0}
        assert one.sizes(None, FILES) == {"cpu": 77}
    with meter.measuring(None) as alone:
        memory.cpu += 80
        assert alone.sizes(None, FILES) == {"cpu": 80}


def test_what_is_loaded_again_is_measured_twice_and_the_least_counts() -> None:
    memory = Memory()
    meter = memory.meter()

    def load(growth_bytes: int, load: str | None = "m") -> dict[str, int]:
        with meter.measuring(0, load) as measurement:
            memory.cpu += growth_bytes
            memory.gpus[0] = 900 + memory.cpu
            return measurement.sizes(None, FILES)

    # The first load of a process takes what its runtime needs once.
    assert load(500) == {"cpu": 500, "gpu 0": 500}
    assert load(90) == {"cpu": 90, "gpu 0": 90}
    for _ in range(2):
        assert load(3000) == {"cpu": 90, "gpu 0": 90}
    assert load(40, "other") == {"cpu": 40, "gpu 0": 77}
    assert load(50, None) == load(50, None) == {"cpu": 50, "gpu 0": 77}


def test_a_load_that_was_not_measured_is_measured_again() -> None:
    memory = Memory()
    meter = memory.meter()
    with meter.measuring(None), meter.measuring(None, "m") as measurement:
        assert measurement.sizes(None, FILES) == {"cpu": 77}
    with meter.measuring(None, "m"):
        # It fails before anybody asks.
        memory.cpu += 1000
    for _ in range(2):
        with meter.measuring(None, "m") as measurement:
            memory.cpu += 100
            assert measurement.sizes(None, FILES) == {"cpu": 100}
    with meter.measuring(None, "m") as measurement:
        assert measurement.sizes(None, FILES) == {"cpu": 100}
        # What is in other processes is asked for each time.
        assert measurement.sizes(12, FILES) == {"cpu": 12}


def test_processes() -> None:
    assert process_bytes() == process_bytes(os.getpid()) or process_bytes() > 1 << 20
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert 0 < process_bytes(child.pid) < 1 << 30
        child.communicate(b"\n")
    assert process_bytes(child.pid) == 0


def test_what_is_reported() -> None:
    assert write_sizes({"gpu 0": 2, "cpu": 1}) == "cpu=1,gpu 0=2"
    assert write_sizes({}) == ""
