"""ORCA load reports: how busy the mesh is, in a header of replies to clients that ask for it.

Derived from the metrics page, which is read at most once a second.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

import orjson

from nereid.core.errors import NereidError
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nereid.services.gateway.control import Control

FORMAT_HEADER: Final = b"endpoint-load-metrics-format"
_MAX_AGE_S: Final = 1.0
_SAMPLE: Final = re.compile(rb"^(nv_[a-z_]+)(?:\{(.*)\})? ([0-9.e+-]+)$", re.MULTILINE)
_BLOCKS: Final = "nv_trt_llm_kv_cache_block_metrics"
_BLOCK_TYPE: Final = re.compile(r'kv_cache_block_type="([a-z_]+)"')


class LoadReports:
    """Writes the header's line."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._lines: dict[bytes, bytes] = {}
        self._expires_s = 0.0
        self._lock = asyncio.Lock()

    async def line(self, form: bytes) -> bytes:
        """The header with its CRLF in this form, text or json; empty for other forms, or if there
        is nothing to report.
        """
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
            # The reply is sent without a report.
            return {}
        return lines(response.exposition)


def lines(page: bytes) -> dict[bytes, bytes]:
    """The header's line in each form, from a metrics page."""
    samples = [
        (name.decode(), labels.decode(), float(value))
        for name, labels, value in _SAMPLE.findall(page)
    ]
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


def _utilization(samples: Iterable[tuple[str, str, float]]) -> Mapping[str, float]:
    values = {name: value for name, _, value in samples}
    report = {}
    if "nv_cpu_utilization" in values:
        report["cpu_utilization"] = values["nv_cpu_utilization"]
    if values.get("nv_cpu_memory_total_bytes"):
        used = values.get("nv_cpu_memory_used_bytes", 0.0)
        report["mem_utilization"] = used / values["nv_cpu_memory_total_bytes"]
    return report


def _named(samples: Iterable[tuple[str, str, float]]) -> Mapping[str, float]:
    blocks: dict[str, float] = {}
    pending: list[float] = []
    for name, labels, value in samples:
        if name == "nv_inference_pending_request_count":
            pending.append(value)
        elif name == _BLOCKS and (match := _BLOCK_TYPE.search(labels)):
            blocks[match[1]] = value
    named = {}
    if blocks.get("max") and "used" in blocks and "tokens_per" in blocks:
        named["kv_cache_utilization"] = blocks["used"] / blocks["max"]
        named["max_token_capacity"] = blocks["max"] * blocks["tokens_per"]
    if pending:
        named["pending_requests"] = sum(pending)
    return named
