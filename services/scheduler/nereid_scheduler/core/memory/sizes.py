"""Stores how much memory loaded models take. Before a model's first load, the size is guessed.

The module is pure. Each size is for one instance on one kind of device (CPU or GPU).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.model_config import normalise_instance_groups
from nereid_scheduler.core.memory.budgets import CPU, GPU

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid.pb import model_config_pb2

# Guessed size of a loaded model, as a multiple of the size of its files. Loaded models are larger:
# they have buffers, and copies of weights in another layout.
_GUESS_FACTOR: Final = 1.5
_MIN_GUESS: Final = 16 << 20


def device_name(gpu: int | None) -> str:
    """Return the name that budgets use for a device; `None` stands for the CPU."""
    return CPU if gpu is None else f"{GPU} {gpu}"


def read_sizes(text: object) -> dict[str, int]:
    """Return bytes by device from "cpu=10,gpu 0=5" (core.methods.MEMORY_KEY).

    Malformed parts are left out.
    """
    sizes = {}
    for part in text.split(",") if isinstance(text, str) else ():
        device, _, size = part.partition("=")
        if device and size.isascii() and size.isdigit():
            sizes[device] = int(size)
    return sizes


class ModelSizes:
    """Measured sizes in bytes of one instance of each model, by the kind of device."""

    def __init__(self, saved: Mapping[str, Any] | None = None) -> None:
        """Start with sizes that saved() returned earlier. Malformed parts are left out."""
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
        """Store the measured sizes of a model's instances; return whether a size has changed.

        taken: maps a device to the bytes that each instance takes there.
        """
        by_kind: dict[str, list[int]] = {}
        for device, sizes in taken.items():
            by_kind.setdefault(device.partition(" ")[0], []).extend(sizes)
        known = self._sizes.get(model)
        # Take the mean of all instances: they may share memory, which is measured for the first
        # instance only.
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
        """Return the bytes by device that a model needs on an executor with these GPUs.

        Args:
            model: Name of the model.
            config: Configuration of the model, as written.
            gpus: Ids of the executor's GPUs.
            file_bytes: Size of the version's files, from which an unknown size is guessed.

        Raises:
            InvalidArgument: the model cannot be on such an executor.
        """
        known = self._sizes.get(model, {})
        guess = max(_MIN_GUESS, int(file_bytes * _GUESS_FACTOR))
        needs: dict[str, int] = {}
        for group in normalise_instance_groups(config, gpu_ids=gpus):
            devices = [device_name(gpu) for gpu in group.gpus] or [CPU]
            for device in devices:
                # An instance on a GPU also takes host memory, which is included if it was measured.
                for used in {device, CPU}:
                    kind = used.partition(" ")[0]
                    size = known.get(kind, guess if used == device else 0)
                    needs[used] = needs.get(used, 0) + size * group.count
        return needs
