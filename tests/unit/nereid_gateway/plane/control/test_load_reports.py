"""What of a metrics page becomes a load report."""

from __future__ import annotations

import json

from nereid_gateway.plane.control.load_reports import lines

MACHINES = b"""\
# HELP nv_cpu_utilization x
nv_cpu_utilization 0.25
nv_cpu_memory_total_bytes 2e+10
nv_cpu_memory_used_bytes 5000000000
nv_inference_pending_request_count{model="a",version="1"} 2
nv_inference_pending_request_count{model="b",version="1"} 3
process_cpu_seconds_total 5
"""
BLOCKS = b"""\
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m"} 10
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="m"} 3
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m"} 16
"""


def test_text() -> None:
    assert lines(MACHINES + BLOCKS)[b"text"] == (
        b"endpoint-load-metrics: TEXT cpu_utilization=0.25, mem_utilization=0.25,"
        b" named_metrics.kv_cache_utilization=0.3, named_metrics.max_token_capacity=160,"
        b" named_metrics.pending_requests=5\r\n"
    )


def test_json() -> None:
    name, _, text = lines(BLOCKS)[b"json"].partition(b": JSON ")
    assert name == b"endpoint-load-metrics"
    assert json.loads(text) == {
        "named_metrics": {"kv_cache_utilization": 0.3, "max_token_capacity": 160}
    }


def test_an_empty_page_makes_no_report() -> None:
    assert lines(b"") == lines(b"# a page without samples\nother 5\n") == {}
    assert b"kv_cache" not in lines(MACHINES)[b"text"]
