"""Gauges of a metrics page and of GPUs while it is measured: read now and then, by a thread."""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
import urllib.request
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_GAUGE: Final = re.compile(rb"^# TYPE (\S+) gauge\s*$", re.MULTILINE)
_SAMPLE: Final = re.compile(rb"^([A-Za-z_:][\w:]*)(\{[^\n]*\})? (\S+)", re.MULTILINE)
_TIMEOUT_S: Final = 5.0
_MOST_BYTES: Final = 64 << 20
_MIB: Final = 1 << 20


def page_gauges(page: bytes) -> dict[str, float]:
    """The gauges of a page in Prometheus' format, by name with labels."""
    names = set(_GAUGE.findall(page))
    gauges = {}
    for name, labels, value in _SAMPLE.findall(page):
        if name in names:
            with contextlib.suppress(ValueError):
                gauges[(name + labels).decode("utf-8", "replace")] = float(value)
    return gauges


def gpu_gauges() -> dict[str, float]:
    """Of this machine's GPUs, by NVML; empty without."""
    try:
        import pynvml  # noqa: PLC0415 (there where there are GPUs)

        pynvml.nvmlInit()
    except Exception:
        # Not installed, or no driver: NVML's errors are its own.
        return {}
    gauges = {}
    for number in range(pynvml.nvmlDeviceGetCount()):
        device = pynvml.nvmlDeviceGetHandleByIndex(number)
        with contextlib.suppress(pynvml.NVMLError):
            used = pynvml.nvmlDeviceGetUtilizationRates(device)
            gauges[f'gpu_utilization_percent{{gpu="{number}"}}'] = float(used.gpu)
            memory = pynvml.nvmlDeviceGetMemoryInfo(device)
            gauges[f'gpu_memory_used_mib{{gpu="{number}"}}'] = memory.used / _MIB
            power_mw = pynvml.nvmlDeviceGetPowerUsage(device)
            gauges[f'gpu_power_watts{{gpu="{number}"}}'] = power_mw / 1000
    return gauges


class GaugeSampler:
    """Reads while it is entered; what it cannot read is missing from `summary`."""

    def __init__(
        self,
        metrics_url: str,
        interval_s: float = 1.0,
        gpus: Callable[[], Mapping[str, float]] = gpu_gauges,
    ) -> None:
        """gpus: of this machine; another machine's are on its server's page."""
        self._metrics_url = metrics_url
        self._interval_s = interval_s
        self._gpus = gpus
        self._sums: dict[str, tuple[float, float, int]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nereid-perf-gauges", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def summary(self) -> dict[str, tuple[float, float]]:
        """Mean and largest of each; after the end."""
        return {
            name: (total / number, largest)
            for name, (total, largest, number) in sorted(self._sums.items())
        }

    def _run(self) -> None:
        while True:
            found: dict[str, Any] = {**self._read_page(), **self._gpus()}
            for name, value in found.items():
                total, largest, number = self._sums.get(name, (0.0, value, 0))
                self._sums[name] = (total + value, max(largest, value), number + 1)
            if self._stop.wait(self._interval_s):
                return

    def _read_page(self) -> dict[str, float]:
        try:
            # http and https alone: the command checks it.
            with urllib.request.urlopen(self._metrics_url, timeout=_TIMEOUT_S) as response:  # noqa: S310
                return page_gauges(response.read(_MOST_BYTES))
        except (OSError, http.client.HTTPException):
            return {}
