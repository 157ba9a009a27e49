"""What each service shows of its own process."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys

from prometheus_client.parser import text_string_to_metric_families

from nereid.observability.metrics_page import Page
from nereid.observability.process_metrics import load_collectors, process_families, write_process


async def test_every_process_has_its_own_series() -> None:
    await load_collectors()
    page = Page({"gateway": "3"})
    write_process(page)
    samples = {
        (sample.name, sample.labels.get("generation")): sample
        for family in text_string_to_metric_families(page.encode().decode())
        for sample in family.samples
    }
    assert all(sample.labels["gateway"] == "3" for sample in samples.values())
    assert samples["process_resident_memory_bytes", None].value > 1 << 20
    files = samples["process_open_fds", None].value
    assert 3 <= files <= samples["process_max_fds", None].value
    assert samples["process_start_time_seconds", None].value > 1e9
    assert 0 < samples["process_cpu_seconds_total", None].value < 1e6
    collections = samples["python_gc_collections_total", "2"].value
    assert collections <= gc.get_stats()[2]["collections"]
    assert samples["python_info", None].labels["version"] == platform.python_version()


def test_counters_end_in_total_as_everywhere() -> None:
    families = process_families()
    assert {"process_cpu_seconds_total", "python_gc_collections_total"} <= {
        family.name for family in families
    }
    for family in families:
        assert family.name.endswith("_total") is (family.kind == "counter")


def test_no_start_waits_for_the_library() -> None:
    """Importing it takes longer than all of ours that the metrics port needs."""
    names = "nereid.observability.metrics_endpoint", "nereid_gateway.extras.metrics"
    code = f"import sys, {', '.join(names)}; print('prometheus_client' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert ran.stdout.strip() == "False"
