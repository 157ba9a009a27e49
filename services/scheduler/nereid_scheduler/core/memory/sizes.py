"""Stores how much memory one instance of each model takes. Before its first load, it is guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.model_config import normalise_instance_groups
from nereid_scheduler.core.memory.budgets import CPU, GPU

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid.pb import model_config_pb2

# Loaded models are larger than their files, by buffers and copies of weights.
_GUESS_FACTOR: Final = 1.5
_MIN_GUESS: Final = 16 << 20


def device_name(gpu: int | None) -> str:
    """Return the name that budgets use for a device; `None` stands for the CPU."""
    return CPU if gpu is None else f"{GPU} {gpu}"


def read_sizes(text: object) -> dict[str, int]:
    """Return bytes by device from "cpu=10,gpu 0=5"; malformed parts are left out."""
    sizes = {}
    for part in text.split(",") if isinstance(text, str) else ():
        device, _, size = part.partition("=")
        if device and size.isascii() and size.isdigit():
            sizes[device] = int(size)
    return sizes


class ModelSizes:
    """Measured sizes in bytes of one instance of each model, by the kind of device."""

    def __init__(self, saved: Mapping[str, Any] | None = None) -> None:
        """Start with sizes from saved(); malformed parts are left out."""
        self._sizes: dict[str, dict[str, int]] = {}
        for model, sizes in (saved or {}).items():
            if isinstance(sizes, dict):
                self._sizes[model] = {
                    kind: size for kind, size in sizes.items() if type(size) is int and size >= 0
                }

    def saved(self) -> dict[str, dict[str, int]]:
        """Return the sizes in the form in which the scheduler's state keeps them."""
        return {model: dict(sizes) for model, sizes in self._sizes.items()}

    def measured(self, model: str, taken: Mapping[str, Sequence[int]]) -> bool:
        """Store the bytes of each instance by device; return whether a size has changed."""
        by_kind: dict[str, list[int]] = {}
        for device, sizes in taken.items():
            by_kind.setdefault(device.partition(" ")[0], []).extend(sizes)
        known = self._sizes.get(model)
        # Instances may share memory, which is measured for the first one only. So take the mean.
        now = {kind: -(-sum(sizes) // len(sizes)) for kind, sizes in by_kind.items() if sizes}
        if not now or now == known:
            return False
        self._sizes[model] = now
        return True

    def knows(self, model: str) -> bool:
        """Return whether a model has been measured."""
        return model in self._sizes

    def needs(
        self, model: str, config: model_config_pb2.ModelConfig, gpus: Sequence[int], file_bytes: int
    ) -> dict[str, int]:
        """Return the bytes that a model needs by device; unknown sizes come from file_bytes."""
        known = self._sizes.get(model, {})
        guess = max(_MIN_GUESS, int(file_bytes * _GUESS_FACTOR))
        needs: dict[str, int] = {}
        for group in normalise_instance_groups(config, gpu_ids=gpus):
            devices = [device_name(gpu) for gpu in group.gpus] or [CPU]
            for device in devices:
                # An instance on a GPU also takes host memory.
                for used in {device, CPU}:
                    kind = used.partition(" ")[0]
                    size = known.get(kind, guess if used == device else 0)
                    needs[used] = needs.get(used, 0) + size * group.count
        return needs
