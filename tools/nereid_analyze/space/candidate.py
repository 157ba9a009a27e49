"""The candidate: one choice of values for all settings of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A number, a text, several numbers, or the JSON text of a whole field.
Value: TypeAlias = int | str | tuple[int, ...]

INSTANCES: Final = "instance_group.count"
MAX_BATCH: Final = "max_batch_size"
DELAY: Final = "dynamic_batching.max_queue_delay_microseconds"
PREFERRED: Final = "dynamic_batching.preferred_batch_size"
# The number of executors, a setting of the mesh and not of a model.
EXECUTORS: Final = "executors"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that is varied; `model` is "" for a setting of the mesh.

    name: path of the field. values: in order, so that neighbours are adjacent. Only without
    batching, which Model Analyzer switches on for all candidates, the default is not among them.
    """

    model: str
    name: str
    values: tuple[Value, ...]
    default: Value

    @property
    def label(self) -> str:
        """Readable name of the setting, with its model."""
        return f"{self.model}: {self.name}" if self.model else self.name


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate: (model, setting, value) for each setting, in the order of the space."""

    choices: tuple[tuple[str, str, Value], ...] = ()

    def values(self, model: str) -> dict[str, Value]:
        """Map the names of one model's settings to their values."""
        return {name: value for owner, name, value in self.choices if owner == model}

    def value(self, model: str, name: str, default: Value) -> Value:
        """Return the value of a setting, or the default if the candidate does not have it."""
        return self.values(model).get(name, default)

    def replaced(self, model: str, name: str, value: Value) -> Candidate:
        """Return a copy of the candidate with another value of one of its settings."""
        return Candidate(
            tuple(
                (owner, choice, value if (owner, choice) == (model, name) else old)
                for owner, choice, old in self.choices
            )
        )

    def plain(self) -> list[list[Any]]:
        """Return the choices as lists, which JSON can represent."""
        return [[model, name, value] for model, name, value in self.choices]

    @property
    def text(self) -> str:
        """Readable text with short field names, and with models if there are several."""
        models = {model for model, _, _ in self.choices if model}
        return ", ".join(
            f"{f'{model} ' if len(models) > 1 and model else ''}{short_name(name)}={shown(value)}"
            for model, name, value in self.choices
        )


def candidate_of(plain: Iterable[Iterable[Any]]) -> Candidate:
    """Return the candidate that plain() has converted. May raise ValueError or TypeError."""
    choices = []
    for model, name, value in plain:
        choices.append((str(model), str(name), tuple(value) if isinstance(value, list) else value))
    return Candidate(tuple(choices))


_SHORT: Final[Mapping[str, str]] = {
    INSTANCES: "instances",
    DELAY: "delay_us",
    PREFERRED: "preferred",
    "parameters.intra_op_thread_count": "intra_op_threads",
    "parameters.inter_op_thread_count": "inter_op_threads",
}


def short_name(name: str) -> str:
    """Return the last part of a field's path."""
    return _SHORT.get(name, name.rpartition(".")[2])


def shown(value: Value) -> str:
    """Return a value as people read it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
