"""NVML's package, as much of it as is asked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Nvml(ModuleType):
    """GPU 0 is cut in slices, of which place 1 is empty. GPU 2, "gone" and a slice's use fail."""

    NVML_DEVICE_MIG_DISABLE, NVML_DEVICE_MIG_ENABLE = 0, 1

    class NVMLError(Exception):
        pass

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__("pynvml")
        self.broken, self.running = broken, False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", self)

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        self.running = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.running = False

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDevice"):
            raise AttributeError(name)
        return lambda *arguments: self._call(name.removeprefix("nvmlDevice"), *arguments)

    def _call(self, function: str, *arguments: Any) -> Any:
        handle = arguments[0] if arguments else ""
        handle = handle.decode() if isinstance(handle, bytes) else handle
        is_slice = str(handle).startswith("MIG")
        if (
            (function == "GetCount" and self.broken)
            or (function == "GetMigMode" and handle == "2")
            or (function == "GetMigDeviceHandleByIndex" and arguments[1] == 1)
            or (function == "GetHandleByUUID" and handle in {"U-2", "gone"})
            or (is_slice and function not in {"GetHandleByUUID", "GetMemoryInfo"})
        ):
            raise self.NVMLError(function)
        values: dict[str, Callable[..., Any]] = {
            "GetCount": lambda: 3,
            "GetHandleByIndex": str,
            "GetHandleByUUID": lambda _: handle,
            "GetMigMode": lambda _: (int(handle == "0"), 0),
            "GetMaxMigDeviceCount": lambda _: 3,
            "GetMigDeviceHandleByIndex": lambda _, place: f"{handle}.{place}",
            "GetUUID": lambda _: f"U-{handle}",
            "GetName": lambda _: "H",
            "GetMemoryInfo": lambda _: SimpleNamespace(total=80, used=30),
            "GetUtilizationRates": lambda _: SimpleNamespace(gpu=25),
            "GetPowerUsage": lambda _: 300_000,
            "GetPowerManagementLimit": lambda _: 700_000,
            "GetTotalEnergyConsumption": lambda _: 12_500,
        }
        return values[function](*arguments)
