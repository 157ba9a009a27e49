"""Proof that an ensemble with conditions has one source of each output on every path.

A path is what the conditions' tensors say: a BOOL tensor is true or false, a number is one of the
numbers that conditions compare it with, or lies below, between or above them.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import InvalidArgument
from nereid.model_config.conditions import CONDITION, compare, read_conditions, step_names
from nereid.model_config.defaults import DEFAULT, read_defaults

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nereid.model_config.conditions import Condition
    from nereid.pb.model_config_pb2 import ModelConfig, ModelEnsembling

MAX_PATHS: Final = 1024
_CLIENT: Final = -1


@dataclass(slots=True)
class _Path:
    """One path up to a step. positions: of each condition's tensor, as _Positions counts them.

    sources: the step that makes a tensor, or _CLIENT.
    """

    positions: dict[str, int]
    sources: dict[str, int]

    def fork(self, tensor: str, position: int) -> _Path:
        """Return the path on which a condition's tensor has this position."""
        return _Path({**self.positions, tensor: position}, dict(self.sources))


class _Positions:
    """Possible values of a condition's tensor.

    Position 2i + 1 is the number i of those that conditions compare it with; even positions lie
    between them.
    """

    def __init__(self, conditions: Sequence[Condition]) -> None:
        self._of_bool = conditions[0].of_bool
        self._numbers = [0, 1] if self._of_bool else sorted({each.number for each in conditions})

    def all(self) -> range:
        """Return the positions of all values."""
        return range(1, 4, 2) if self._of_bool else range(2 * len(self._numbers) + 1)

    def of(self, value: float) -> int:
        """Return the position of a value."""
        index = bisect_left(self._numbers, value)
        return 2 * index + (index < len(self._numbers) and self._numbers[index] == value)

    def describe(self, tensor: str, position: int) -> str:
        """Return the values at a position, as a part of an error."""
        index = position // 2
        if self._of_bool:
            return f"'{tensor}' is {'true' if index else 'false'}"
        if position % 2:
            return f"'{tensor}' == {self._numbers[index]}"
        below = f"{self._numbers[index - 1]} < " if index else ""
        above = f" < {self._numbers[index]}" if index < len(self._numbers) else ""
        return f"{below}'{tensor}'{above}"


def check_paths(config: ModelConfig) -> None:
    """Check every path of an ensemble whose graph is connected; raise InvalidArgument.

    Any other model has no paths.
    """
    if not config.HasField("ensemble_scheduling"):
        return
    conditions, defaults = read_conditions(config), read_defaults(config)
    if conditions or defaults:
        _Paths(config, conditions, defaults).check()


class _Paths:
    def __init__(
        self, config: ModelConfig, conditions: Mapping[int, Condition], defaults: Mapping[str, Any]
    ) -> None:
        self._config = config
        self._conditions = conditions
        self._defaults = defaults
        self._names = step_names(config)
        self._optional = {tensor.name for tensor in config.input if tensor.optional}
        by_tensor: dict[str, list[Condition]] = {}
        for condition in conditions.values():
            by_tensor.setdefault(condition.tensor, []).append(condition)
        self._positions = {tensor: _Positions(each) for tensor, each in by_tensor.items()}
        self._used_defaults: set[str] = set()

    def check(self) -> None:
        self._check_inputs()
        paths = [_Path({}, dict.fromkeys((tensor.name for tensor in self._config.input), _CLIENT))]
        for index in _in_order(self._config, self._conditions):
            paths = [each for path in paths for each in self._run(index, path)]
            if len(paths) > MAX_PATHS:
                raise InvalidArgument(
                    f"the conditions of ensemble '{self._config.name}' make more than {MAX_PATHS}"
                    " paths"
                )
        for tensor in self._config.output:
            for path in paths:
                if not self._has(path, tensor.name):
                    raise InvalidArgument(
                        f"output '{tensor.name}' of ensemble '{self._config.name}' has no source"
                        f"{self._describe(path)}"
                    )
        unused = self._defaults.keys() - self._used_defaults - self._optional
        if unused:
            raise InvalidArgument(
                f"parameter '{DEFAULT}{min(unused)}' of ensemble '{self._config.name}' is not used:"
                " it names no optional input, and no tensor that a skipped step leaves out"
            )

    def _check_inputs(self) -> None:
        inputs = {tensor.name for tensor in self._config.input}
        for name, step in zip(self._names, self._config.ensemble_scheduling.step, strict=True):
            if made := inputs & {*step.output_map.values()}:
                raise InvalidArgument(
                    f"step '{name}' of ensemble '{self._config.name}' makes the input"
                    f" '{min(made)}', which an ensemble with conditions or defaults cannot have"
                )
        for index, condition in sorted(self._conditions.items()):
            if condition.tensor in self._optional - self._defaults.keys():
                raise InvalidArgument(
                    f"parameter '{CONDITION}{self._names[index]}' of ensemble"
                    f" '{self._config.name}' needs the optional input '{condition.tensor}', which"
                    f" has no parameter '{DEFAULT}{condition.tensor}'"
                )

    def _run(self, index: int, path: _Path) -> list[_Path]:
        """Return the paths after a step: it runs, or is skipped."""
        step = self._config.ensemble_scheduling.step[index]
        condition = self._conditions.get(index)
        # Looks up every input, as that counts a default as used.
        found = [self._has(path, tensor) for tensor in step.input_map.values()]
        if condition is None:
            if all(found):
                self._make(index, path)
            return [path]
        if not self._has(path, condition.tensor):
            return [path]
        paths = self._decided(path, condition.tensor)
        number = self._positions[condition.tensor].of(condition.number)
        for each in paths:
            position = each.positions[condition.tensor]
            if all(found) and compare(position, condition.operator, number):
                self._make(index, each)
        return paths

    def _decided(self, path: _Path, tensor: str) -> list[_Path]:
        """Return the paths on which a condition's tensor has each of its possible values."""
        if tensor in path.positions:
            return [path]
        positions = self._positions[tensor]
        if tensor in path.sources:
            return [path.fork(tensor, position) for position in positions.all()]
        value = self._defaults[tensor]
        if not isinstance(value, bool | int | float):
            raise InvalidArgument(
                f"parameter '{DEFAULT}{tensor}' of ensemble '{self._config.name}' must be a single"
                " number or boolean, since a condition reads it"
            )
        return [path.fork(tensor, positions.of(value))]

    def _make(self, index: int, path: _Path) -> None:
        for tensor in self._config.ensemble_scheduling.step[index].output_map.values():
            source = path.sources.setdefault(tensor, index)
            if source != index:
                one, other = sorted((self._names[source], self._names[index]))
                raise InvalidArgument(
                    f"steps '{one}' and '{other}' of ensemble '{self._config.name}' both make"
                    f" tensor '{tensor}'{self._describe(path)}"
                )

    def _has(self, path: _Path, tensor: str) -> bool:
        if tensor in path.sources:
            return True
        if tensor in self._defaults:
            self._used_defaults.add(tensor)
            return True
        return False

    def _describe(self, path: _Path) -> str:
        values = " and ".join(
            self._positions[tensor].describe(tensor, position)
            for tensor, position in path.positions.items()
        )
        return f" if {values}" if values else ""


def _in_order(config: ModelConfig, conditions: Mapping[int, Condition]) -> Iterator[int]:
    """Yield the steps of a connected graph, each after all steps that make what it needs."""
    steps: dict[int, ModelEnsembling.Step] = dict(enumerate(config.ensemble_scheduling.step))
    while steps:
        unmade = {tensor for step in steps.values() for tensor in step.output_map.values()}
        for index, step in list(steps.items()):
            needed = {*step.input_map.values()}
            if index in conditions:
                needed.add(conditions[index].tensor)
            if not needed & unmade:
                del steps[index]
                yield index
