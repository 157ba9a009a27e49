"""Models that an ensemble's steps use, and the names of models with --model-namespacing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.known_backends import ENSEMBLE_PLATFORM

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from nereid.pb import model_config_pb2 as config_pb


# Arbitrary, large and odd: multiplying spreads neighbouring ids.
_ODD: Final = 0x9E3779B97F4A7C15
_MAX_ID: Final = (1 << 64) - 1


def is_ensemble(draft: config_pb.ModelConfig) -> bool:
    """Return whether a configuration is an ensemble's."""
    return draft.platform == ENSEMBLE_PLATFORM


def qualified_name(namespace: str, name: str) -> str:
    """Return a model's name in the catalogue, with its namespace if it has one."""
    return f"{namespace}::{name}" if namespace else name


def plain_name(name: str, namespace: str) -> str:
    """Return a model's name without its namespace."""
    return name.removeprefix(qualified_name(namespace, "")) if namespace else name


def step_model(step: config_pb.ModelEnsembling.Step) -> str:
    """Return the qualified name of a step's model."""
    return qualified_name(step.model_namespace, step.model_name)


def step_models(draft: config_pb.ModelConfig) -> list[str]:
    """Return the models of an ensemble's steps, each once. Any other model has no steps."""
    return list(dict.fromkeys(map(step_model, draft.ensemble_scheduling.step)))


def resolve_steps(
    draft: config_pb.ModelConfig, namespace: str, namespaces: Mapping[str, Collection[str]]
) -> None:
    """Write the namespace of each step's model into an ensemble's configuration.

    That is the ensemble's own namespace if it has the model, or else the only one that has it.
    namespaces: maps a model's name to its namespaces.
    """
    for step in draft.ensemble_scheduling.step:
        candidates = namespaces.get(step.model_name, ())
        sole = next(iter(candidates)) if len(candidates) == 1 else ""
        step.model_namespace = namespace if namespace in candidates else sole


def step_request_id(request_id: int, step: int) -> int:
    """Return a step's request id, which is the same if the ensemble's request is sent again."""
    return ((request_id + step + 1) * _ODD + step) & _MAX_ID if request_id else 0


def cycle_error(name: str, models_in: Callable[[str], Iterable[str]]) -> str:
    """Return Triton's error text if an ensemble contains itself; models_in: its steps' models."""
    seen: set[str] = set()
    pending = [name]
    while pending:
        user = pending.pop()
        for step in models_in(user):
            if step == name:
                return f"circular dependency between ensembles: {name} -> ... -> {user} -> {name}"
            if step not in seen:
                seen.add(step)
                pending.append(step)
    return ""
