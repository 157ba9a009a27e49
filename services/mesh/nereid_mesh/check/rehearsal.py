"""Rehearsal: the scheduler's own code loads a repository on an executor that loads nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from nereid.core.errors import NereidError
from nereid.core.wire.messages import error_status_of
from nereid.facts.findings import Finding, Severity
from nereid.model_config import normalise_instance_groups
from nereid.model_config.batching_fields import SHADOW
from nereid.model_config.remedies import remedy_for
from nereid.pb import nereid_pb2 as pb
from nereid_mesh.check.findings import CheckedModel, CheckedVersion, PlacedCount
from nereid_mesh.check.places import place_of_error, place_of_parameter
from nereid_scheduler.control.reconciler.reconciler import Reconciler, Sources
from nereid_scheduler.control.residency.on_demand import OnDemandLoads
from nereid_scheduler.control.residency.policies.policy import Residency
from nereid_scheduler.control.residency.policies.popularity import Popularity
from nereid_scheduler.control.rules import EXPLICIT, ModelControlRules
from nereid_scheduler.control.sources.model_control import ModelControl
from nereid_scheduler.core.models.dependencies import step_models
from nereid_scheduler.core.models.desired_models import DesiredModels
from nereid_scheduler.core.models.lifecycle import VersionState
from nereid_scheduler.placement.executors.sessions import Session
from nereid_scheduler.placement.loads.load_rules import LoadRules
from nereid_scheduler.placement.loads.loader import Loader
from nereid_scheduler.placement.models.catalogue import Catalogue
from nereid_scheduler.placement.models.shadow_target import target_problem
from nereid_scheduler.versions.queue_limits import QueueLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from nereid.rpc import Status
    from nereid_mesh.check.model_reader import ModelReader
    from nereid_scheduler.control.repository.repositories import Repositories
    from nereid_scheduler.core.models.allowed_backends import AllowedBackends
    from nereid_scheduler.placement.models.catalogue import ServedModel, ServedVersion
    from nereid_scheduler.placement.models.config_completion import CompletionRules

_EXECUTOR: Final = "check"
# This machine cannot determine whether the version would be served.
_UNKNOWN: Final = "UNKNOWN"


@dataclass(frozen=True)
class RehearsalRules:
    """Properties of the rehearsed mesh. gpus are those of each executor."""

    completion: CompletionRules
    backends: AllowedBackends
    gpus: tuple[int, ...] = ()


class RehearsalExecutor:
    """Stands in for the command stream to an executor; it describes models but loads none."""

    def __init__(self, loader: Loader, reader: ModelReader, gpus: Iterable[int]) -> None:
        self._loader = loader
        self._reader = reader
        devices = [pb.Device(kind=pb.Device.CPU, id=0, name="CPU")]
        devices += [
            pb.Device(kind=pb.Device.GPU, id=number, uuid=f"GPU-{number}") for number in gpus
        ]
        hello = pb.Hello(name=_EXECUTOR, devices=devices, backends=reader.offered)
        self.session = Session(hello, self)

    def send(self, message: bytes, at_once: bool = False) -> None:  # noqa: ARG002 (as Call)
        """Handle a command in the next iteration of the event loop."""
        command = pb.ExecutorCommand.FromString(message)
        # The loader calls this in the middle of its own work.
        asyncio.get_running_loop().call_soon(self._on_command, command)

    def finish(self) -> None:
        """Do nothing: there is no stream to end."""

    def fail(self, status: Status, message: str) -> None:
        """Do nothing: there is no stream to end."""

    def _on_command(self, command: pb.ExecutorCommand) -> None:
        session, loader = self.session, self._loader
        match command.WhichOneof("command"):
            case "describe":
                loader.loads.model_described(session, self._reader.describe(command.describe))
            case "load":
                try:
                    self._reader.check_load(command.load)
                except NereidError as error:
                    status = error_status_of(error)
                    loader.streams.instance_failed(session, command.load.instance, status)
                else:
                    loader.streams.instance_opened(command.load.instance, self)
            case "unload":
                loader.streams.instance_unloaded(session, command.unload.instance)
            case _:
                pass


async def rehearse(
    repositories: Repositories,
    reader: ModelReader,
    rules: RehearsalRules,
    names: Sequence[str] = (),
) -> list[CheckedModel]:
    """Return the models as they would be served, sorted by name; may raise OSError.

    names: models to check with their steps' models; empty means all.
    """

    def on_due() -> None:
        asyncio.get_running_loop().call_soon(reconciler.reconcile)

    desired = DesiredModels(names, on_due)
    catalogue = Catalogue(desired=desired)
    settings_of = rules.completion.backend_settings
    load_rules = LoadRules(rules.completion, settings_of, QueueLimits(), backends=rules.backends)
    loader = Loader(load_rules, lambda _: None, catalogue)
    executor = RehearsalExecutor(loader, reader, rules.gpus)
    loader.executor_joined(executor.session)
    control_rules = ModelControlRules(EXPLICIT, tuple(names)) if names else ModelControlRules()
    on_demand = OnDemandLoads(desired, catalogue, loader, Residency({}), Popularity(0))
    sources = Sources(on_demand)
    reconciler = Reconciler(desired, catalogue, loader, repositories, control_rules, sources)
    control = ModelControl(repositories, catalogue, desired, reconciler, control_rules, sources)
    await control.start()
    await control.first_loads()
    await reconciler.tasks.close()
    served_models = catalogue.models()
    unread = _unread_models(served_models, reader.incomplete)
    checked = {
        model.name: _checked(model, rules.gpus, is_unread=model.name in unread)
        for model in served_models
    }
    for model in served_models:
        checked[model.name].findings += _shadow_findings(
            catalogue, model, lambda name: name in unread or bool(names and name not in checked)
        )
    loader.stop()
    for served in catalogue.versions():
        if served.runtime is not None:
            served.runtime.close()
    _add_unserved(checked, repositories, names)
    return [checked[name] for name in sorted(checked)]


def _checked(model: ServedModel, gpus: Sequence[int], *, is_unread: bool) -> CheckedModel:
    checked = CheckedModel(model.name, namespace=model.namespace, sources=model.config_sources)
    if model.reason and not model.versions:
        checked.findings.append(_load_error(model.reason))
    for _, served in sorted(model.versions.items()):
        version = _checked_version(served, gpus, is_unread=is_unread)
        checked.versions.append(version)
        if version.state == VersionState.UNAVAILABLE.value:
            reason = version.reason
            # If the configuration cannot be read, all versions have this error.
            if all(finding.message != reason for finding in checked.findings):
                checked.findings.append(_load_error(reason, place_of_error(model, reason)))
    return checked


def _load_error(reason: str, place: str = "") -> Finding:
    hints = [f"see {place}"] if place else []
    hints += [remedy] if (remedy := remedy_for(reason)) else []
    return Finding(Severity.ERROR, "load", reason, "; ".join(hints))


def _shadow_findings(
    catalogue: Catalogue, model: ServedModel, is_unknown: Callable[[str], bool]
) -> Iterator[Finding]:
    """Yield what is wrong with a configured shadow. is_unknown: of a model's name."""
    found = catalogue.find_shadow(model.plain_name)
    if found is None or is_unknown(model.name):
        return
    problem = target_problem(catalogue, model.plain_name, found.shadow, is_unknown)
    if problem:
        place = place_of_parameter(model, SHADOW)
        yield Finding(Severity.WARNING, "shadow", problem, f"see {place}" if place else "")


def _checked_version(
    served: ServedVersion, gpus: Sequence[int], *, is_unread: bool
) -> CheckedVersion:
    life, state = served.life, served.life.state.value
    if is_unread and life.state is not VersionState.READY:
        state = _UNKNOWN
    if served.runtime is None:
        return CheckedVersion(served.number, state, life.reason)
    config = served.shown or served.runtime.config.proto
    if life.state is not VersionState.READY:
        return CheckedVersion(served.number, state, life.reason, config)
    instances = [
        PlacedCount(group.name, device, group.count, group.passive)
        for group in normalise_instance_groups(served.runtime.config.proto, gpu_ids=gpus)
        for device in ([f"gpu {gpu}" for gpu in group.gpus] or ["cpu"])
    ]
    return CheckedVersion(served.number, state, "", config, tuple(instances))


def _unread_models(models: Iterable[ServedModel], incomplete: Collection[str]) -> set[str]:
    models = list(models)
    unread = {
        model.name
        for model in models
        if any(version.path in incomplete for version in model.versions.values())
    }
    # Ensembles may be steps of others, so repeat the search.
    for _ in models:
        unread |= {
            model.name
            for model in models
            if any(not unread.isdisjoint(step_models(v.draft)) for v in model.versions.values())
        }
    return unread


def _add_unserved(
    checked: dict[str, CheckedModel], repositories: Repositories, names: Sequence[str]
) -> None:
    entries = repositories.names()
    for name, entry in entries.items():
        if entry.reason and (not names or entry.plain_name in names):
            model = checked.setdefault(name, CheckedModel(name))
            model.findings.append(
                Finding(
                    Severity.ERROR,
                    "not-unique",
                    entry.reason,
                    "rename one of them, or serve with --model-namespacing=true",
                )
            )
    plain_names = {entry.plain_name for entry in entries.values()}
    for name in names:
        if name not in plain_names:
            near = get_close_matches(name, sorted(plain_names), n=1)
            hint = f"did you mean '{near[0]}'?" if near else ""
            error = Finding(Severity.ERROR, "no-such-model", "there is no such model", hint)
            checked[name] = CheckedModel(name, findings=[error])
