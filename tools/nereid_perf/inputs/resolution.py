"""Completes a plan with what the server says about its models, or refuses it."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.plan import ModelPlan
from nereid_perf.inputs.signature import ModelSignature, signature_of
from nereid_perf.inputs.text_calls import make_calls
from nereid_perf.inputs.trace.reading import models_in_traces

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid_perf.inputs.plan import InputPlan


class MetadataServer(Protocol):
    """The calls to a server that resolving needs; implemented by nereid_perf.server.Server."""

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        """Return a model's metadata."""

    def config(self, model: str, version: str = "") -> dict[str, Any] | None:
        """Return a model's configuration, or `None` if the server has none."""


def resolve_plan(plan: InputPlan, server: MetadataServer) -> InputPlan:
    """Complete the plan with metadata and its traces' models. May raise InputError."""
    if plan.path:
        return _with_rows(plan)
    models = plan.models
    if plan.traces:
        if plan.region_prefix:
            raise InputError("--shared-memory cannot be used with --replay: leave one of them out")
        models = _replayed(plan)
    if not models:
        raise InputError("no model: name one with -m NAME, or several with --mix FILE")
    models = tuple(
        replace(
            model,
            signature=signature_of(
                server.metadata(model.name, model.version), server.config(model.name, model.version)
            ),
        )
        for model in models
    )
    _check(models)
    return replace(plan, models=models)


def _with_rows(plan: InputPlan) -> InputPlan:
    """Return a plan of calls, with their rows as batch sizes; no model: the bodies name it."""
    plan = replace(plan, models=plan.models or (ModelPlan(""),))
    models = []
    for index, model in enumerate(plan.models):
        rows = {call.rows for call in make_calls(plan, index)}
        models.append(replace(model, batch_size=rows.pop() if len(rows) == 1 else 1))
    return replace(plan, models=tuple(models))


def new_region_prefix() -> str:
    """Return a prefix that no other run on this host uses."""
    return f"nereid-perf-{os.getpid()}-{secrets.token_hex(4)}"


def _replayed(plan: InputPlan) -> tuple[ModelPlan, ...]:
    """Return the traces' models, or only the plan's models if it has any."""
    traced = models_in_traces(plan.traces)
    if not plan.models:
        return tuple(ModelPlan(name, version) for name, version in traced)
    known = {model.name: model for model in plan.models}
    chosen = tuple(
        replace(known[name], version=known[name].version or version)
        for name, version in traced
        if name in known
    )
    if not chosen:
        names = ", ".join(sorted({name for name, _ in traced}))
        raise InputError(
            f"--replay: the traces have no request to the models of -m, but to {names}"
        )
    return chosen


def _check(models: Iterable[ModelPlan]) -> None:
    known: set[str] = set()
    for model in models:
        signature = model.signature
        assert signature is not None, "resolved above"
        known.update(spec.name for spec in signature.inputs)
        _check_batch_size(model, signature)
        outputs = [spec.name for spec in signature.outputs]
        for name in model.outputs:
            if outputs and name not in outputs:
                raise InputError(
                    f"--requested-output: model '{model.name}' has no output '{name}', but "
                    f"{', '.join(outputs)}"
                )
    for model in models:
        for option in model.shapes:
            if option.name not in known and not option.datatype:
                raise InputError(
                    f"--shape: no model has an input '{option.name}', but "
                    f"{', '.join(sorted(known)) or 'none that its metadata names'}"
                )


def _check_batch_size(model: ModelPlan, signature: ModelSignature) -> None:
    most = signature.max_batch_size
    if most is None and model.batch_size > 1:
        raise InputError(f"-b: model '{model.name}' does not batch: leave the batch size at 1")
    if most and model.batch_size > most:
        raise InputError(
            f"-b: model '{model.name}' has a max_batch_size of {most}, less than {model.batch_size}"
        )
