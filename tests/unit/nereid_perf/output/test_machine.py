import os
import platform
from pathlib import Path

from nereid_perf.output.machine import this_machine


def test_this_machine(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: A fine processor\nmodel name\t: another\n")
    machine = this_machine(cpuinfo)
    assert machine.processor == "A fine processor"
    assert 1 <= machine.cpus <= (os.cpu_count() or 1)
    assert machine.memory_bytes > 2**20
    assert machine.python == platform.python_version()


def test_a_processor_without_a_name(tmp_path: Path) -> None:
    assert this_machine(tmp_path / "none").processor == platform.machine()
