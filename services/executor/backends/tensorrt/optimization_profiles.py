"""Which optimization profile of a TensorRT engine serves a batch.

A profile says for each input what its shape may be, batch dimension included, and which shape the
engine was tuned for. Pure; knows no TensorRT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nereid.core.errors import InvalidArgument
from nereid.core.shapes import format_shape
from nereid.model_config import CompletionSettings, complete_config
from nereid.model_config.validation.instance_groups import group_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.backends import ModelDescription
    from nereid.pb import model_config_pb2

Shape = tuple[int, ...]
Shapes = dict[str, Shape]


class Range(NamedTuple):
    """The shapes of one input that a profile takes."""

    least: Shape
    best: Shape
    most: Shape


Profile = dict[str, Range]


def profiles_wanted(
    config: model_config_pb2.ModelConfig, instance_name: str, available: int
) -> tuple[int, ...]:
    """The numbers of the profiles that an instance is to serve, by its group; else the first.

    Raises:
        InvalidArgument: the engine has no such profile.
    """
    group = instance_name.rpartition("_")[0]
    wanted: tuple[int, ...] = ()
    for index, written in enumerate(config.instance_group):
        if group_name(config, index, written) == group:
            wanted = tuple(dict.fromkeys(map(int, written.profile)))
    for number in wanted:
        if number >= available:
            raise InvalidArgument(
                f"unable to load model '{config.name}', instance group {group} asks for profile "
                f"{number}, the engine has {available}"
            )
    return wanted or (0,)


def choose(profiles: Mapping[int, Profile], shapes: Shapes) -> int | None:
    """The profile that is tuned for what comes closest to these shapes; None: none takes them."""
    distances = {number: _distance(profile, shapes) for number, profile in profiles.items()}
    fitting = [(far, number) for number, far in distances.items() if far is not None]
    return min(fitting)[1] if fitting else None


def _distance(profile: Profile, shapes: Shapes) -> int | None:
    distance = 0
    for name, shape in shapes.items():
        taken = profile[name]
        if len(shape) != len(taken.most):
            return None
        for size, least, best, most in zip(shape, *taken, strict=True):
            if not least <= size <= most:
                return None
            distance += abs(size - best)
    return distance


def largest_batch(profiles: Mapping[int, Profile]) -> int:
    """The most rows that some profile takes."""
    return max(
        min((taken.most[0] for taken in profile.values() if taken.most), default=0)
        for profile in profiles.values()
    )


def misfit(name: str, profiles: Mapping[int, Profile], shapes: Shapes) -> InvalidArgument:
    """The error for shapes that no profile takes."""
    given = ", ".join(f"'{each}' {format_shape(shape)}" for each, shape in sorted(shapes.items()))
    taken = "; ".join(
        f"profile {number}: "
        + ", ".join(
            f"'{each}' {format_shape(one.least)} to {format_shape(one.most)}"
            for each, one in sorted(profile.items())
        )
        for number, profile in sorted(profiles.items())
    )
    return InvalidArgument(
        f"no optimization profile of model '{name}' takes the shapes {given} (it has {taken})"
    )


def completed(
    config: model_config_pb2.ModelConfig, description: ModelDescription, rows: int
) -> model_config_pb2.ModelConfig:
    """The configuration with what the engine adds; rows: the largest batch of its profiles.

    Raises:
        InvalidArgument: what is written does not fit the engine.
    """
    # Other backends take a default, but here a larger batch than the engine's would fail.
    settings = CompletionSettings(default_max_batch_size=rows)
    return complete_config(
        config, model_name=config.name, description=description, settings=settings
    )
