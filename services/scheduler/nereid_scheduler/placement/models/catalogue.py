"""Catalogue of the models: their versions, states, and the version that a request names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.c_integers import parse_c_integer
from nereid.core.errors import InvalidArgument, NereidError, NotFound, Unavailable
from nereid.model_config.batching_fields import runs_at_most_once
from nereid.object_store.plans.urls import is_store_url
from nereid.pb import kserve_pb2
from nereid_scheduler.core.models.dependencies import (
    plain_name,
    step_model,
    step_models,
    step_request_id,
)
from nereid_scheduler.core.models.desired_models import DesiredModels
from nereid_scheduler.core.models.lifecycle import VersionLife, VersionState
from nereid_scheduler.versions.model_version import ModelVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from nereid.pb import model_config_pb2 as config_pb
    from nereid_scheduler.core.models.desired_models import OnDemandModel
    from nereid_scheduler.core.models.overrides import OverrideDirectory
    from nereid_scheduler.versions.queued_requests import QueuedRequests

_LATEST: Final = -1
_MAX_VERSION: Final = (1 << 63) - 1
_SERVED: Final = frozenset({VersionState.READY, VersionState.LOADING})


@dataclass(slots=True, eq=False)
class ServedVersion:
    """One version of a model. `shown`: configuration for clients, with all instance groups.

    With --model-namespacing, `name` is qualified. `draft` is as written; `runtime` is completed.
    """

    name: str
    number: int
    path: str
    draft: config_pb.ModelConfig
    namespace: str = ""
    file_digest: bytes = b""
    # Labels of an ensemble; if `None`, the files at `path` have them.
    labels: Mapping[str, tuple[str, ...]] | None = None
    # While this object exists, the directory that was made for one load is kept.
    override_directory: OverrideDirectory | None = None
    life: VersionLife = field(default_factory=VersionLife)
    runtime: QueuedRequests | None = None
    shown: config_pb.ModelConfig | None = None
    # `None` means all executors.
    hosts: frozenset[str] | None = None
    # Monotonic time.
    load_started_s: float | None = None
    load_duration_s: float | None = None
    # True if the version is added to a model in service, which stays ready meanwhile.
    is_addition: bool = False
    # True if another scheduler may have served the version before. Its counters then continue.
    continues: bool = False

    def __str__(self) -> str:
        return f"'{self.name}' version {self.number}"

    @property
    def plain_name(self) -> str:
        """Name that clients use for the version's model."""
        return plain_name(self.name, self.namespace)

    @property
    def model_version(self) -> ModelVersion | None:
        """Runtime of a model with instances. An ensemble has none."""
        return self.runtime if isinstance(self.runtime, ModelVersion) else None

    @property
    def stored_digest(self) -> bytes:
        """Digest of the files in an object store, which executors check; empty for other files."""
        return self.file_digest if is_store_url(self.path) else b""

    def record_load_times(self, now_s: float) -> None:
        """Record the times of the load. Call this after each event of the version's life."""
        if self.load_started_s is None and self.life.loading:
            self.load_started_s = now_s
        if self.load_duration_s is None and self.life.state is VersionState.READY:
            started_s = self.load_started_s
            self.load_duration_s = 0.0 if started_s is None else now_s - started_s


@dataclass(slots=True)
class ServedModel:
    """A model of the repository. `reason`: why it has no versions."""

    name: str
    versions: dict[int, ServedVersion] = field(default_factory=dict)
    reason: str = ""
    namespace: str = ""

    @property
    def plain_name(self) -> str:
        """Name that clients use for the model."""
        return plain_name(self.name, self.namespace)

    @property
    def unloaded(self) -> bool:
        """True if no version of the model is loaded or being loaded."""
        return all(
            served.life.unload_begun or served.life.unloaded for served in self.versions.values()
        )

    @property
    def in_service(self) -> bool:
        """True if any version of the model is loaded or being loaded."""
        return any(not served.life.refused for served in self.versions.values())


class FoundName(NamedTuple):
    """Name of a model. `reason`: why it prevents a load. `problem`: why the last read failed."""

    plain_name: str
    reason: str = ""
    problem: str = ""


class Catalogue:
    """All models by name. A plain name that exists in several namespaces is ambiguous."""

    def __init__(
        self, models: Iterable[ServedModel] = (), desired: DesiredModels | None = None
    ) -> None:
        self._models: dict[str, ServedModel] = {}
        # Key: a plain name. Value: the qualified names, as keys.
        self._namespaced: dict[str, dict[str, None]] = {}
        for model in models:
            self.set_model(model)
        self._desired = desired or DesiredModels()

    def find_on_demand(self, name: str) -> OnDemandModel | None:
        """Return the model that a client names, if requests load it and its name is unique."""
        on_demand = self._desired.on_demand
        on_demand_model = on_demand.get(name)
        if on_demand_model is None and on_demand:
            named = [model for model in on_demand.values() if model.found.plain_name == name]
            on_demand_model = named[0] if len(named) == 1 else None
        return on_demand_model

    def model(self, name: str) -> ServedModel | None:
        """Return the model of this name, or `None` if no model of this name was ever found."""
        return self._models.get(name)

    def models(self) -> list[ServedModel]:
        """Return all models."""
        return list(self._models.values())

    def set_model(self, model: ServedModel) -> None:
        """Add a model; it replaces any model of the same name."""
        self._models[model.name] = model
        if model.namespace:
            self._namespaced.setdefault(model.plain_name, {})[model.name] = None

    def remove_model(self, model: ServedModel) -> None:
        """Forget a model that another scheduler serves now."""
        self._models.pop(model.name, None)
        names = self._namespaced.get(model.plain_name, {})
        names.pop(model.name, None)
        if not names:
            self._namespaced.pop(model.plain_name, None)

    def qualified_names(self, name: str) -> list[str]:
        """Return the qualified names of all models that a client's plain name may mean."""
        names = self._namespaced.get(name, ())
        return (
            [qualified for qualified in names if not self._models[qualified].unloaded]
            if names
            else [name]
        )

    def cached_models(self) -> tuple[str, ...]:
        """Return the names of the models whose responses may be cached."""
        names = {
            served.plain_name
            for served in self.versions()
            if served.draft.response_cache.enable and not served.life.unload_begun
        }
        return tuple(sorted(names))

    def versions(self) -> Iterator[ServedVersion]:
        """Yield every version of every model."""
        for model in self._models.values():
            yield from model.versions.values()

    def find(self, name: str, version: str) -> ServedVersion:
        """Return the ready version that a request names, or the latest; raise NereidError."""
        return self._find(self._resolve(name), parse_version(version))

    def is_loading(self, name: str, version: str) -> bool:
        """Return whether a version that find() refuses may become ready by a load in progress."""
        number = parse_version(version)
        if name in self._desired.awaited.values():
            return True
        on_demand = self.find_on_demand(name)
        if on_demand is not None and on_demand.wanted and on_demand.has(number):
            return not self._has_ready(on_demand.name, number)
        names = self.qualified_names(name)
        model = self._models.get(names[0]) if len(names) == 1 else None
        if model is None:
            return self._desired.restoring
        chosen = model.versions.values() if number == _LATEST else [model.versions.get(number)]
        states = {served.life.state for served in chosen if served is not None}
        return VersionState.LOADING in states and VersionState.READY not in states

    def runs_at_most_once(self, name: str, version: str) -> bool:
        """Return whether the model, or a step's model, forbids that a request runs twice."""
        drafts = self.drafts(name, version)
        return any(map(runs_at_most_once, drafts)) or any(
            self.runs_at_most_once(step, "") for draft in drafts for step in step_models(draft)
        )

    def run_ids(self, name: str, version: str, request_id: int) -> set[int]:
        """Return the ids under which instances run a request: its own, and those of its steps."""
        ids = {request_id}
        for draft in self.drafts(name, version):
            for index, step in enumerate(draft.ensemble_scheduling.step):
                ids |= self.run_ids(step_model(step), "", step_request_id(request_id, index))
        return ids

    def drafts(self, name: str, version: str) -> list[config_pb.ModelConfig]:
        """Return the drafts of the versions that a request may mean: all if it names none."""
        number = parse_version(version)
        drafts = []
        for qualified in self.qualified_names(name):
            model = self._models.get(qualified, ServedModel(qualified))
            chosen = model.versions.values() if number == _LATEST else [model.versions.get(number)]
            drafts += [served.draft for served in chosen if served is not None]
        return drafts

    def running(self, name: str) -> list[ServedVersion]:
        """Return the versions of a model whose unload has not begun."""
        model = self._models.get(name, ServedModel(name))
        return [served for served in model.versions.values() if not served.life.unload_begun]

    def is_known(self, name: str) -> bool:
        """Return whether a model is in service, is being loaded, or has failed to load."""
        model = self._models.get(name)
        return model is not None and not model.unloaded

    def is_served(self, name: str) -> bool:
        """Return whether a model is ready, or being loaded."""
        model = self._models.get(name, ServedModel(name))
        return any(served.life.state in _SERVED for served in model.versions.values())

    def is_step(self, name: str) -> bool:
        """Return whether this model runs a step of an ensemble that is or may come into service."""
        return any(
            name in step_models(served.draft)
            for served in self.versions()
            if not served.life.unload_begun and not served.life.refused
        )

    def is_ready(self, name: str, version: str) -> bool:
        """Return whether a request for this model would be executed now."""
        number = parse_version(version)
        try:
            return self._find(self._resolve(name), number).life.serving
        except NereidError:
            return self.is_out(name, version)

    def is_out(self, name: str, version: str) -> bool:
        """Return whether a request for this model would first load it, and then be executed."""
        number = parse_version(version)
        on_demand = self.find_on_demand(name)
        if on_demand is None or on_demand.error is not None or not on_demand.has(number):
            return False
        return not self._has_ready(on_demand.name, number)

    def _has_ready(self, name: str, number: int) -> bool:
        model = self._models.get(name)
        return model is not None and any(
            served.life.state is VersionState.READY
            for served in model.versions.values()
            if number in (_LATEST, served.number)
        )

    def ready_versions(self, name: str) -> list[QueuedRequests]:
        """Return the versions of a model that are ready, by number."""
        return [runtime for _, runtime in self._ready(name)]

    def _ready(self, name: str) -> list[tuple[ServedVersion, QueuedRequests]]:
        names = self.qualified_names(name)
        model = self._models.get(names[0]) if len(names) == 1 else None
        if model is None:
            return []
        return [
            (served, served.runtime)
            for _, served in sorted(model.versions.items())
            if served.life.state is VersionState.READY and served.runtime is not None
        ]

    def statistics(
        self,
        name: str,
        version: str,
        memory_of: Callable[[ServedVersion], Mapping[str, int]] | None = None,
    ) -> kserve_pb2.ModelStatisticsResponse:
        """Return the statistics of the ready versions: of all models, one model or one version.

        memory_of: returns bytes by device. If `None`, memory is left out, as in Triton.
        """
        number = parse_version(version)
        if name:
            chosen = self._ready(name)
            if not chosen and self.is_out(name, version):
                return self._statistics_on_demand(name, number)
            if not chosen:
                raise InvalidArgument(f"requested model '{name}' is not available")
            if number != _LATEST:
                chosen = [pair for pair in chosen if pair[0].number == number]
            if not chosen:
                raise InvalidArgument(
                    f"requested model version is not available for model '{name}'"
                )
        else:
            chosen = [pair for model in self._models for pair in self._ready(model)]
        response = kserve_pb2.ModelStatisticsResponse()
        for served, runtime in chosen:
            message = runtime.statistics.to_proto(runtime.name, str(runtime.number))
            sizes = {} if memory_of is None else memory_of(served)
            for device, size in sorted(sizes.items()):
                kind, _, device_id = device.partition(" ")
                usage = message.memory_usage.add(type=kind.upper(), byte_size=size)
                usage.id = int(device_id) if device_id.isdigit() else 0
            response.model_stats.append(message)
        return response

    def _statistics_on_demand(self, name: str, number: int) -> kserve_pb2.ModelStatisticsResponse:
        """Return the statistics of a model that its next request will load: all counts are zero."""
        known = self.find_on_demand(name)
        assert known is not None, "out, but not loaded on demand"
        response = kserve_pb2.ModelStatisticsResponse()
        for version in known.found.versions:
            if number in (_LATEST, version):
                response.model_stats.add(name=known.found.plain_name, version=str(version))
        return response

    def index(
        self, found: Mapping[str, FoundName], *, ready_only: bool
    ) -> kserve_pb2.RepositoryIndexResponse:
        """Return every version with its state; for a model without versions, name and reason.

        found: the models in the repositories. A deleted model is listed only while a version is in
        service.
        """
        names = set(found)
        names.update(name for name, model in self._models.items() if model.in_service)
        desired = self._desired
        names |= desired.unrestored | desired.awaited.keys()
        response = kserve_pb2.RepositoryIndexResponse()
        for name in sorted(names):
            model = self._models.get(name, ServedModel(name))
            plain = desired.awaited.get(name, model.plain_name)
            shown, reason, problem = found.get(name, FoundName(plain))
            if name in desired.awaited and model.unloaded:
                if not ready_only:
                    response.models.add(name=shown, state=VersionState.LOADING.value)
                continue
            if reason:
                # As on Triton, show the reason even if the model was loaded while its name was
                # unique.
                model = ServedModel(name, reason=reason)
            on_demand = desired.on_demand.get(name)
            if on_demand is not None and model.unloaded:
                _show_on_demand(response, shown, on_demand, ready_only=ready_only)
                continue
            if not model.versions and not ready_only:
                reason = model.reason or desired.refusals.get(name, "") or problem
                entry = response.models.add(name=shown, reason=reason)
                entry.state = VersionState.UNAVAILABLE.value if reason else ""
            for number, served in sorted(model.versions.items()):
                if ready_only and served.life.state is not VersionState.READY:
                    continue
                entry = response.models.add(name=shown, version=str(number))
                entry.state, entry.reason = served.life.state.value, served.life.reason
        return response

    def all_serving(self) -> bool:
        """Return whether all loaded versions could execute a request: Triton's strict readiness."""
        desired = self._desired
        if desired.unrestored or self._is_awaiting():
            return False
        return all(
            model.versions
            and all(
                served.life.serving
                or served.life.unloaded
                or _is_being_added(served)
                or self._is_moving(served)
                for served in model.versions.values()
            )
            for model in self._models.values()
            if model.name not in desired.on_demand
        )

    def all_settled(self) -> bool:
        """Return whether each version's first load has ended: Triton's lenient readiness."""
        if self._is_awaiting():
            return False
        return all(
            served.life.state is not VersionState.LOADING
            or _is_being_added(served)
            or self._is_moving(served)
            for served in self.versions()
            if served.name not in self._desired.on_demand
        )

    def _is_awaiting(self) -> bool:
        """Return whether models are still to be found, apart from those that move here."""
        desired = self._desired
        return desired.restoring or not desired.awaited.keys() <= desired.moving

    def _is_moving(self, served: ServedVersion) -> bool:
        states = (VersionState.LOADING, VersionState.UNLOADING)
        return served.name in self._desired.moving and served.life.state in states

    def _resolve(self, name: str) -> str:
        if name not in self._namespaced:
            # Every request passes here: without namespaces, build no list.
            return name
        names = self.qualified_names(name)
        if len(names) > 1:
            raise InvalidArgument(
                f"There are {len(names)} identifiers of model '{name}' in global map, model"
                " namespace must be provided to resolve ambiguity.",
                accepted=True,
            )
        if not names:
            raise NotFound(
                f"Identifier of model '{name}' is not found in global map", accepted=True
            )
        return names[0]

    def _find(self, name: str, number: int) -> ServedVersion:
        prefix = f"Request for unknown model: '{name}'"
        model = self._models.get(name)
        on_demand = self._desired.on_demand.get(name)
        if on_demand is not None and on_demand.error and not self._has_ready(name, number):
            raise on_demand.error.with_traceback(None)
        if model is None:
            raise NotFound(f"{prefix} is not found", accepted=True)
        if number == _LATEST:
            ready = [v for v in model.versions.values() if v.life.state is VersionState.READY]
            if not ready:
                raise NotFound(f"{prefix} has no available versions", accepted=True)
            return max(ready, key=lambda served: served.number)
        served = model.versions.get(number)
        if served is None:
            raise NotFound(f"{prefix} version {number} is not found", accepted=True)
        if served.life.state is not VersionState.READY:
            raise Unavailable(f"{prefix} version {number} is not at ready state", accepted=True)
        return served


def _is_being_added(served: ServedVersion) -> bool:
    return served.is_addition and served.life.state is VersionState.LOADING


def _show_on_demand(
    response: kserve_pb2.RepositoryIndexResponse,
    shown: str,
    model: OnDemandModel,
    *,
    ready_only: bool,
) -> None:
    """Show a model on demand as READY, since its requests succeed; while it loads, as LOADING."""
    state = VersionState.UNAVAILABLE if model.error is not None else VersionState.READY
    reason = model.reason
    if model.wanted:
        state, reason = VersionState.LOADING, ""
    if ready_only and state is not VersionState.READY:
        return
    for number in model.found.versions:
        response.models.add(name=shown, version=str(number), state=state.value, reason=reason)


def parse_version(text: str) -> int:
    """Return the version that a request names, parsed as in Triton; -1 means the latest version."""
    if not text:
        return _LATEST
    number = parse_c_integer(text)
    if number is None or not -_MAX_VERSION - 1 <= number <= _MAX_VERSION:
        raise InvalidArgument(
            f"failed to get model version from specified version string '{text}' (details: stol),"
            " version should be an integral value > 0",
            accepted=True,
        )
    if number < 0:
        raise InvalidArgument(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return number
