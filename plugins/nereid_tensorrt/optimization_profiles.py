"""Chooses a TensorRT engine's optimization profile for a batch; the module uses no TensorRT."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.shapes import format_shape
from nereid.model_config import CompletionSettings, complete_config
from nereid.model_config.validation.instance_groups import group_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.backends import ModelDescription
    from nereid.pb import model_config_pb2

Shape = tuple[int, ...]
Shapes = dict[str, Shape]


class ShapeRange(NamedTuple):
    """The smallest, optimal and largest shape of one input in a profile, in TensorRT's terms."""

    min: Shape
    opt: Shape
    max: Shape


Profile = dict[str, ShapeRange]


def instance_profiles(
    config: model_config_pb2.ModelConfig, instance_name: str, available: int
) -> tuple[int, ...]:
    """Return the profiles of the instance's group, or profile 0. May raise InvalidArgument."""
    group = instance_name.rpartition("_")[0]
    numbers: tuple[int, ...] = ()
    for index, written in enumerate(config.instance_group):
        if group_name(config, index, written) == group:
            numbers = tuple(dict.fromkeys(map(int, written.profile)))
    for number in numbers:
        if number >= available:
            raise InvalidArgument(
                f"unable to load model '{config.name}', instance group {group} asks for profile "
                f"{number}, the engine has {available}"
            )
    return numbers or (0,)


def choose_profile(profiles: Mapping[int, Profile], shapes: Shapes) -> int | None:
    """Return the allowed profile whose optimal shapes are nearest, or `None` if none is allowed."""
    distances = {number: _distance(profile, shapes) for number, profile in profiles.items()}
    allowed = [(distance, number) for number, distance in distances.items() if distance is not None]
    return min(allowed)[1] if allowed else None


def _distance(profile: Profile, shapes: Shapes) -> int | None:
    distance = 0
    for name, shape in shapes.items():
        shape_range = profile[name]
        if len(shape) != len(shape_range.max):
            return None
        for size, low, optimal, high in zip(shape, *shape_range, strict=True):
            if not low <= size <= high:
                return None
            distance += abs(size - optimal)
    return distance


def largest_batch(profiles: Mapping[int, Profile]) -> int:
    """Return the largest batch, in rows, that any of the profiles allows."""
    return max(
        min((shapes.max[0] for shapes in profile.values() if shapes.max), default=0)
        for profile in profiles.values()
    )


def no_profile_error(name: str, profiles: Mapping[int, Profile], shapes: Shapes) -> InvalidArgument:
    """Return the error for shapes that no profile allows."""
    given = ", ".join(f"'{each}' {format_shape(shape)}" for each, shape in sorted(shapes.items()))
    taken = "; ".join(
        f"profile {number}: "
        + ", ".join(
            f"'{each}' {format_shape(allowed.min)} to {format_shape(allowed.max)}"
            for each, allowed in sorted(profile.items())
        )
        for number, profile in sorted(profiles.items())
    )
    return InvalidArgument(
        f"no optimization profile of model '{name}' takes the shapes {given} (it has {taken})"
    )


def complete_from_engine(
    config: model_config_pb2.ModelConfig, description: ModelDescription, rows: int
) -> model_config_pb2.ModelConfig:
    """Return the completed configuration; `rows` is the largest batch that the profiles allow."""
    settings = CompletionSettings(default_max_batch_size=rows)
    return complete_config(
        config, model_name=config.name, description=description, settings=settings
    )
