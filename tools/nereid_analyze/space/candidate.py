"""One choice of values for all settings of a search. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A number, a text, several numbers, or JSON text of a whole field.
Value: TypeAlias = int | str | tuple[int, ...]

INSTANCES: Final = "instance_group.count"
MAX_BATCH: Final = "max_batch_size"
DELAY: Final = "dynamic_batching.max_queue_delay_microseconds"
PREFERRED: Final = "dynamic_batching.preferred_batch_size"
# Of a mesh, not of a model.
EXECUTORS: Final = "executors"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is varied of one model. name: the field's path in its configuration; model "": of the
    mesh. values: in order, neighbours beside each other; the default is among them.
    """

    model: str
    name: str
    values: tuple[Value, ...]
    default: Value

    @property
    def label(self) -> str:
        return f"{self.model}: {self.name}" if self.model else self.name


@dataclass(frozen=True, slots=True)
class Candidate:
    """choices: model, setting and value, in the order of the space's settings."""

    choices: tuple[tuple[str, str, Value], ...] = ()

    def values(self, model: str) -> dict[str, Value]:
        return {name: value for owner, name, value in self.choices if owner == model}

    def value(self, model: str, name: str, default: Value) -> Value:
        return self.values(model).get(name, default)

    def replaced(self, model: str, name: str, value: Value) -> Candidate:
        """With another value of a setting that it has."""
        return Candidate(
            tuple(
                (owner, each, value if (owner, each) == (model, name) else old)
                for owner, each, old in self.choices
            )
        )

    def plain(self) -> list[list[Any]]:
        """For JSON."""
        return [[model, name, value] for model, name, value in self.choices]

    @property
    def text(self) -> str:
        """For people: fields by their last names, models where there are several."""
        models = {model for model, _, _ in self.choices if model}
        return ", ".join(
            f"{f'{model} ' if len(models) > 1 and model else ''}{short_name(name)}={shown(value)}"
            for model, name, value in self.choices
        )


def candidate_of(plain: Iterable[Iterable[Any]]) -> Candidate:
    """What plain() made, of lists as JSON has them. Raises ValueError, TypeError."""
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
    return _SHORT.get(name, name.rpartition(".")[2])


def shown(value: Value) -> str:
    """A value as people read it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
