"""Which models an ensemble consists of, and the order of loading that follows from it.

Pure: configurations in; names and orders out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.core.known_backends import ENSEMBLE_PLATFORM

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from nereid.pb import model_config_pb2 as config_pb
    from nereid_scheduler.core.models.found_model import FoundModel


# Any large odd number: multiplying by it spreads neighbours.
_ODD: Final = 0x9E3779B97F4A7C15
_LARGEST_ID: Final = (1 << 64) - 1


def is_ensemble(draft: config_pb.ModelConfig) -> bool:
    """Whether a configuration is an ensemble's."""
    return draft.platform == ENSEMBLE_PLATFORM


def qualified_name(namespace: str, name: str) -> str:
    """A model's name in the catalogue; with --model-namespacing its repository is its namespace."""
    return f"{namespace}::{name}" if namespace else name


def plain_name(name: str, namespace: str) -> str:
    """A model's name without its namespace."""
    return name.removeprefix(qualified_name(namespace, "")) if namespace else name


def step_model(step: config_pb.ModelEnsembling.Step) -> str:
    """The qualified name of a step's model."""
    return qualified_name(step.model_namespace, step.model_name)


def step_models(draft: config_pb.ModelConfig) -> list[str]:
    """The models of an ensemble's steps, each once; none for other models."""
    return list(dict.fromkeys(map(step_model, draft.ensemble_scheduling.step)))


def resolve_steps(
    draft: config_pb.ModelConfig, namespace: str, namespaces: Mapping[str, Collection[str]]
) -> None:
    """Write into an ensemble's steps which namespace their models are in: its own if that has a
    model of this name, else the only one that has.

    namespaces: those that have a model of a name.
    """
    for step in draft.ensemble_scheduling.step:
        having = namespaces.get(step.model_name, ())
        only = next(iter(having)) if len(having) == 1 else ""
        step.model_namespace = namespace if namespace in having else only


def step_request_id(request_id: int, step: int) -> int:
    """The id of a step's request, which is the same when the ensemble's request is sent again."""
    return ((request_id + step + 1) * _ODD + step) & _LARGEST_ID if request_id else 0


def in_load_order(models: Iterable[FoundModel]) -> list[FoundModel]:
    """These models, ensembles after the models of their steps; circular ones come last."""
    waiting = {model.name: model for model in models}
    ordered: list[FoundModel] = []
    while waiting:
        ready = [
            model
            for model in waiting.values()
            if not any(name in waiting for name in step_models(model.draft))
        ]
        if not ready:
            return ordered + list(waiting.values())
        for model in ready:
            del waiting[model.name]
        ordered += ready
    return ordered


def refuse_cycles(models: Iterable[FoundModel]) -> list[FoundModel]:
    """The same models; ensembles that contain themselves get an error."""
    found = {model.name: model for model in models}

    def models_in(name: str) -> list[str]:
        return step_models(found[name].draft) if name in found else []

    checked = []
    for name, model in found.items():
        text = cycle_error(name, models_in) if is_ensemble(model.draft) else ""
        checked.append(replace(model, error=InvalidArgument(text)) if text else model)
    return checked


def cycle_error(name: str, models_in: Callable[[str], Iterable[str]]) -> str:
    """Triton's text for an ensemble that contains itself; empty: it does not.

    models_in: the models of an ensemble's steps, by its name.
    """
    seen: set[str] = set()
    pending = [name]
    while pending:
        user = pending.pop()
        for each in models_in(user):
            if each == name:
                return f"circular dependency between ensembles: {name} -> ... -> {user} -> {name}"
            if each not in seen:
                seen.add(each)
                pending.append(each)
    return ""
