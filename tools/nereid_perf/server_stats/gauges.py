"""Reads gauges of a metrics page and of GPUs during a measurement, periodically in a thread."""

from __future__ import annotations

import contextlib
import http.client
import importlib
import re
import threading
import urllib.request
from typing import TYPE_CHECKING, Any, Final, Self

from nereid.cli.time_limit import PIECES, call_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_GAUGE: Final = re.compile(rb"^# TYPE (\S+) gauge\s*$", re.MULTILINE)
_SAMPLE: Final = re.compile(rb"^([A-Za-z_:][\w:]*)(\{[^\n]*\})? (\S+)", re.MULTILINE)
_TIMEOUT_S: Final = 5.0
_MAX_BYTES: Final = 64 << 20
_MIB: Final = 1 << 20


def page_gauges(page: bytes) -> dict[str, float]:
    """Map each gauge of a page in Prometheus' format, with its labels, to its value."""
    names = set(_GAUGE.findall(page))
    gauges = {}
    for name, labels, value in _SAMPLE.findall(page):
        if name in names:
            with contextlib.suppress(ValueError):
                gauges[(name + labels).decode("utf-8", "replace")] = float(value)
    return gauges


class Gpus:
    """The GPUs of this machine, read by NVML (nvidia-ml-py, if it is installed)."""

    def __init__(self, nvml: Any = None) -> None:
        """Open NVML, by default pynvml's, if there is a driver."""
        self._nvml = nvml
        if nvml is None:
            with contextlib.suppress(ImportError):
                self._nvml = importlib.import_module("pynvml")
        if self._nvml is not None:
            try:
                self._nvml.nvmlInit()
            except self._nvml.NVMLError:
                self._nvml = None

    def gauges(self) -> dict[str, float]:
        """Return the gauges of each GPU; empty if there is no GPU."""
        nvml = self._nvml
        gauges: dict[str, float] = {}
        if nvml is None:
            return gauges
        with contextlib.suppress(nvml.NVMLError):
            for number in range(nvml.nvmlDeviceGetCount()):
                for name, value in self._figures(nvml.nvmlDeviceGetHandleByIndex(number)):
                    gauges[f'{name}{{gpu="{number}"}}'] = value
        return gauges

    def _figures(self, device: Any) -> Iterator[tuple[str, float]]:
        nvml = self._nvml
        with contextlib.suppress(nvml.NVMLError):
            used = nvml.nvmlDeviceGetUtilizationRates(device)
            yield "gpu_utilization_percent", float(used.gpu)
        with contextlib.suppress(nvml.NVMLError):
            yield "gpu_memory_used_mib", nvml.nvmlDeviceGetMemoryInfo(device).used / _MIB
        with contextlib.suppress(nvml.NVMLError):
            yield "gpu_power_watts", nvml.nvmlDeviceGetPowerUsage(device) / 1000


class GaugeSampler:
    """Samples gauges while it is entered; gauges that cannot be read are not in `summary`."""

    def __init__(
        self,
        metrics_url: str,
        interval_s: float = 1.0,
        gpus: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        """Take `gpus` from NVML by default; other machines' GPUs are on the metrics page."""
        self._metrics_url = metrics_url
        self._interval_s = interval_s
        self._gpus = Gpus().gauges if gpus is None else gpus
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
        """Return mean and maximum of each gauge; call this after the end."""
        return {
            name: (total / number, largest)
            for name, (total, largest, number) in sorted(self._sums.items())
        }

    def _run(self) -> None:
        while True:
            gauges: dict[str, Any] = {**self._read_page(), **self._gpus()}
            for name, value in gauges.items():
                total, largest, number = self._sums.get(name, (0.0, value, 0))
                self._sums[name] = (total + value, max(largest, value), number + 1)
            if self._stop.wait(self._interval_s):
                return

    def _read_page(self) -> dict[str, float]:
        def read() -> dict[str, float]:
            # The command has checked that the URL is http or https.
            with urllib.request.urlopen(self._metrics_url, timeout=_TIMEOUT_S) as response:  # noqa: S310
                return page_gauges(response.read(_MAX_BYTES))

        try:
            return call_within(PIECES * _TIMEOUT_S, read)
        except (OSError, http.client.HTTPException):
            return {}
