"""Models that an ensemble's steps use, and the names of models with --model-namespacing.

The module is pure: configurations are arguments, and names are the result. It knows no state of a
model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.known_backends import ENSEMBLE_PLATFORM

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from nereid.pb import model_config_pb2 as config_pb


# An arbitrary large odd number. Ids are multiplied by this number to spread neighbouring ids.
_ODD: Final = 0x9E3779B97F4A7C15
_MAX_ID: Final = (1 << 64) - 1


def is_ensemble(draft: config_pb.ModelConfig) -> bool:
    """Return whether a configuration is an ensemble's."""
    return draft.platform == ENSEMBLE_PLATFORM


def qualified_name(namespace: str, name: str) -> str:
    """Return a model's name in the catalogue, which begins with its namespace if it has one.

    With --model-namespacing the namespace of a model is its repository.
    """
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

    If the ensemble's own namespace has a model with the step's name, the step gets that
    namespace. Otherwise it gets the only namespace that has such a model; if there are several
    or none, it gets an empty one. namespaces: maps a model's name to the namespaces that have it.
    """
    for step in draft.ensemble_scheduling.step:
        candidates = namespaces.get(step.model_name, ())
        sole = next(iter(candidates)) if len(candidates) == 1 else ""
        step.model_namespace = namespace if namespace in candidates else sole


def step_request_id(request_id: int, step: int) -> int:
    """Return the id of a step's request, made from the id of the ensemble's request and the step.

    So the id is the same if the ensemble's request is sent again.
    """
    return ((request_id + step + 1) * _ODD + step) & _MAX_ID if request_id else 0


def cycle_error(name: str, models_in: Callable[[str], Iterable[str]]) -> str:
    """Return Triton's error text if an ensemble contains itself, otherwise an empty text.

    models_in: takes an ensemble's name and returns the models of its steps.
    """
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
