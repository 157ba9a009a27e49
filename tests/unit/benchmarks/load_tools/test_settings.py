"""What both tools are asked to do."""

import pytest

from benchmarks.load_tools.settings import SETTINGS, Setting, Target, flags
from nereid_perf.run_settings import read_run_settings

_TARGET = Target("any", "127.0.0.1:8000", "127.0.0.1:8001", "mlp", "mlp_sequences")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda each: each.name)
def test_nereid_perf_understands_perf_analyzer_s_flags(setting: Setting) -> None:
    read = read_run_settings(flags(setting, _TARGET, 0.5), "nereid perf")
    assert read.questions.concurrency_range == str(setting.in_flight)
    assert read.target.endpoint.protocol == setting.protocol
    assert read.target.streaming is setting.streaming
    assert read.measurement.windows.interval_s == 0.5
    port = 8000 if setting.protocol == "http" else 8001
    assert read.target.endpoint.address == f"127.0.0.1:{port}"


def test_a_server_without_binary_tensors_gets_json_over_http() -> None:
    target = Target("any", "a:1", "a:2", "mlp", "", is_json=True)
    assert "json" in flags(SETTINGS[0], target, 1)
    assert "json" not in flags(SETTINGS[2], target, 1)
