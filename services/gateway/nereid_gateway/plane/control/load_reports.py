"""ORCA load reports: the load of the mesh, in a response header for clients that ask for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import orjson

from nereid.core.errors import NereidError
from nereid.observability.samples import Samples
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid_gateway.plane.control.control import Control

FORMAT_HEADER: Final = b"endpoint-load-metrics-format"
_MAX_AGE_S: Final = 1.0
_BLOCKS: Final = "nv_trt_llm_kv_cache_block_metrics"
_BLOCK_TYPE: Final = "kv_cache_block_type"


class LoadReports:
    """Makes header lines of load reports from a metrics page that is at most a second old."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._lines: dict[bytes, bytes] = {}
        self._expires_s = 0.0
        self._lock = asyncio.Lock()

    async def line(self, form: bytes) -> bytes:
        """Return the header line with its CRLF, or nothing for a form other than text and json."""
        loop = asyncio.get_running_loop()
        if form not in (b"text", b"json"):
            return b""
        async with self._lock:
            if loop.time() >= self._expires_s:
                self._lines = await self._read_metrics()
                self._expires_s = loop.time() + _MAX_AGE_S
        return self._lines.get(form, b"")

    async def _read_metrics(self) -> dict[bytes, bytes]:
        try:
            response = await self._control.call(
                "Metrics", pb.MetricsRequest(without_gpu=True), pb.MetricsResponse
            )
        except NereidError:
            # The response is sent without a report.
            return {}
        return lines(response.exposition)


def lines(page: bytes) -> dict[bytes, bytes]:
    """Return the header line in each form, made from a metrics page."""
    samples = Samples(page, "nv_")
    report, named = _utilization(samples), _named(samples)
    if not report and not named:
        return {}
    values = [*report.items(), *((f"named_metrics.{name}", value) for name, value in named.items())]
    text = ", ".join(f"{name}={value:g}" for name, value in values)
    document = orjson.dumps({**report, "named_metrics": named})
    return {
        b"text": b"endpoint-load-metrics: TEXT %b\r\n" % text.encode(),
        b"json": b"endpoint-load-metrics: JSON %b\r\n" % document,
    }


def _utilization(samples: Samples) -> Mapping[str, float]:
    report = {}
    used = samples.total("nv_cpu_utilization")
    if used is not None:
        report["cpu_utilization"] = used
    total_bytes = samples.total("nv_cpu_memory_total_bytes")
    if total_bytes:
        used_bytes = samples.total("nv_cpu_memory_used_bytes") or 0.0
        report["mem_utilization"] = used_bytes / total_bytes
    return report


def _named(samples: Samples) -> Mapping[str, float]:
    blocks = {labels.get(_BLOCK_TYPE): value for labels, value in samples.samples(_BLOCKS)}
    pending = samples.total("nv_inference_pending_request_count")
    named = {}
    if blocks.get("max") and "used" in blocks and "tokens_per" in blocks:
        named["kv_cache_utilization"] = blocks["used"] / blocks["max"]
        named["max_token_capacity"] = blocks["max"] * blocks["tokens_per"]
    if pending is not None:
        named["pending_requests"] = pending
    return named
