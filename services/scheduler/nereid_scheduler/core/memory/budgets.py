"""Memory budgets, as flags set them. All settings import this module, so it imports little."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

CPU: Final = "cpu"
GPU: Final = "gpu"
_SIZE: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?) ?(?P<unit>[KMGT]?)(?P<binary>i?)B?")


class Budget(NamedTuple):
    """Memory budget of a device: "cpu", "gpu" (each GPU), "gpu 1" or "" (every device)."""

    device: str
    size_bytes: int

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse a value such as 4GiB, cpu=4GiB or gpu:1=8GiB; raise ValueError for another form."""
        device, equals, size = text.rpartition("=")
        kind, colon, number = device.partition(":")
        numbered = bool(colon) and number.isdecimal() and kind == GPU
        if (equals and kind not in (CPU, GPU)) or (colon and not numbered):
            raise ValueError("expected 4GiB, cpu=4GiB, gpu=20GiB or gpu:1=20GiB")
        return cls(device.replace(":", " "), parse_size(size))

    def __str__(self) -> str:
        device = self.device.replace(" ", ":")
        return f"{device}={self.size_bytes}" if device else str(self.size_bytes)


def parse_size(text: str) -> int:
    """Return the bytes that 4GiB, 4GB, 512MiB or 1000 stands for; raise ValueError otherwise."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected a number of bytes, such as 4GiB or 512MB")
    power = "KMGT".find(match["unit"][:1]) + 1 if match["unit"] else 0
    size = int(float(match["number"]) * (1024 if match["binary"] else 1000) ** power)
    if size <= 0:
        raise ValueError("expected more than 0 bytes")
    return size


def budgets_of(given: Iterable[Budget]) -> dict[str, int]:
    """Return budgets by device; one for all devices applies to CPUs and GPUs without their own."""
    budgets = dict(given)
    for_all = budgets.pop("", None)
    if for_all is not None:
        budgets.setdefault(CPU, for_all)
        budgets.setdefault(GPU, for_all)
    return budgets
