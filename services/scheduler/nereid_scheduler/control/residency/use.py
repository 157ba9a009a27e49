"""Reads the use of the models in service, and the memory that they take, when that is needed."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from nereid_scheduler.control.residency.policies.policy import Usage
from nereid_scheduler.core.models.dependencies import step_models
from nereid_scheduler.core.models.lifecycle import VersionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from nereid.pb import model_config_pb2
    from nereid_scheduler.control.residency.policies.popularity import Popularity
    from nereid_scheduler.core.models.desired_models import OnDemandModel
    from nereid_scheduler.placement.loads.loader import Loader
    from nereid_scheduler.placement.models.catalogue import Catalogue, ServedVersion
    from nereid_scheduler.versions.queued_requests import QueuedRequests


class ModelUse:
    """Reads the use of one scheduler's models. The cost grows with the models in service only."""

    def __init__(
        self,
        catalogue: Catalogue,
        loader: Loader,
        on_demand: Mapping[str, OnDemandModel],
        held_models: Callable[[], Iterable[str]],
        popularity: Popularity,
    ) -> None:
        self._catalogue = catalogue
        self._loader = loader
        self._on_demand = on_demand
        self._held_models = held_models
        self._popularity = popularity

    def is_ready(self, name: str) -> bool:
        """Return whether some version of a model is ready."""
        return any(True for _ in self._ready_versions(name))

    def in_use(self, name: str) -> bool:
        """Return whether a model has live sequences, or requests without their last response."""
        return any(runtime.in_use for _, runtime in self._ready_versions(name))

    def others(self) -> set[str]:
        """Return the models that are ready and are not loaded on demand."""
        names = {served.name for served in self._loader.versions}
        return {name for name in names - self._on_demand.keys() if self.is_ready(name)}

    def held(self) -> set[str]:
        """Return the qualified names of the models on demand for which requests wait."""
        found = map(self._catalogue.find_on_demand, set(self._held_models()))
        return {model.name for model in found if model is not None}

    def held_requests(self, name: str) -> int:
        """Return how many requests wait for a model on demand."""
        found = map(self._catalogue.find_on_demand, self._held_models())
        return sum(model is not None and model.name == name for model in found)

    def usages(self, needed: Iterable[str]) -> dict[str, Usage]:
        """Return the use of the models in service. Models in `needed` must not make way now."""
        used_ms: dict[str, float] = {}
        requests: Counter[str] = Counter()
        busy = set(needed)
        now_ms, now_ns = time.time() * 1000, time.monotonic_ns()
        for served in self._loader.versions:
            name, runtime = served.name, served.runtime
            if runtime is None:
                continue
            statistics = runtime.statistics
            last_ms = max(used_ms.get(name, 0.0), statistics.last_inference_ms)
            if statistics.last_cache_hit_ns:
                hit_ms = now_ms - (now_ns - statistics.last_cache_hit_ns) / 1e6
                last_ms = max(last_ms, hit_ms)
            used_ms[name] = last_ms
            if name in self._on_demand:
                requests[name] += statistics.success.count + statistics.fail.count
            if runtime.in_use:
                busy.add(name)
        kept = self._steps_of(busy)
        busy |= kept
        self._popularity.update(requests)
        return {
            name: Usage(
                max(used_ms.get(name, 0.0), self._since_ms(name)),
                name in busy,
                self._popularity.count(name),
                name in kept,
            )
            for name in used_ms.keys() | busy
        }

    def memory(self, name: str) -> dict[str, dict[str, list[int]]]:
        """Return the bytes that each instance of a model takes, by executor and device."""
        sizes_by_executor: dict[str, dict[str, list[int]]] = {}
        for served, _ in self._ready_versions(name):
            for session in self._loader.sessions:
                hosted = session.hosted.get(served)
                for sizes in () if hosted is None else hosted.memory.values():
                    sizes_by_device = sizes_by_executor.setdefault(session.name, {})
                    for device, size in sizes.items():
                        sizes_by_device.setdefault(device, []).append(size)
        return sizes_by_executor

    def _steps_of(self, names: Iterable[str]) -> set[str]:
        """Return the models that these ensembles need. Steps may be ensembles too."""
        steps: set[str] = set()
        pending = list(names)
        while pending:
            for draft in self._drafts(pending.pop()):
                new = set(step_models(draft)) - steps
                steps |= new
                pending += new
        return steps

    def _since_ms(self, name: str) -> float:
        known = self._on_demand.get(name)
        return 0.0 if known is None else known.since_ms

    def _drafts(self, name: str) -> list[model_config_pb2.ModelConfig]:
        known = self._on_demand.get(name)
        return self._catalogue.drafts(name, "") if known is None else [known.found.draft]

    def _ready_versions(self, name: str) -> Iterator[tuple[ServedVersion, QueuedRequests]]:
        model = self._catalogue.model(name)
        for version in () if model is None else model.versions.values():
            if version.life.state is VersionState.READY and version.runtime is not None:
                yield version, version.runtime
