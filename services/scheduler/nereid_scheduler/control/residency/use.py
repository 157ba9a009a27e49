"""Reads the use of the models in service, and the memory that they take, when that is needed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from nereid_scheduler.control.residency.policies.policy import Usage
from nereid_scheduler.core.models.dependencies import step_models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.pb import model_config_pb2
    from nereid_scheduler.control.residency.policies.popularity import Popularity
    from nereid_scheduler.core.models.on_demand_models import OnDemandModels
    from nereid_scheduler.placement.loads.loader import Loader
    from nereid_scheduler.placement.models.catalogue import Catalogue, ServedVersion


class ModelUse:
    """Reads the use of one scheduler's models. The cost grows with the models in service only."""

    def __init__(
        self,
        catalogue: Catalogue,
        loader: Loader,
        on_demand: OnDemandModels,
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
        return bool(self._ready_versions(name))

    def in_use(self, name: str) -> bool:
        """Return whether a model has live sequences, or requests without their last response."""
        return any(served.ready_runtime.in_use for served in self._ready_versions(name))

    def others(self) -> set[str]:
        """Return the models that are ready and are not loaded on demand."""
        names = {served.name for served in self._loader.versions}
        return {name for name in names - self._on_demand.keys() if self.is_ready(name)}

    def held(self) -> Counter[str]:
        """Return how many requests wait for each model on demand, by qualified name."""
        counts: Counter[str] = Counter()
        for name, count in Counter(self._held_models()).items():
            model = self._on_demand.find(name)
            if model is not None:
                counts[model.name] += count
        return counts

    def usages(self, needed: Iterable[str]) -> dict[str, Usage]:
        """Return the use of the models in service. Models in `needed` must not make way now."""
        used_ns: dict[str, int] = {}
        requests: Counter[str] = Counter()
        busy = set(needed)
        for served in self._loader.versions:
            name, runtime = served.name, served.runtime
            if runtime is None:
                continue
            statistics = runtime.statistics
            used_ns[name] = max(used_ns.get(name, 0), statistics.last_used_ns)
            if name in self._on_demand:
                requests[name] += statistics.success.count + statistics.fail.count
            if runtime.in_use:
                busy.add(name)
        needed_by_ensembles = self._steps_of(busy)
        busy |= needed_by_ensembles
        self._popularity.update(requests)
        return {
            name: Usage(
                max(used_ns.get(name, 0), self._since_ns(name)),
                name in busy,
                self._popularity.count(name),
                name in needed_by_ensembles,
            )
            for name in used_ns.keys() | busy
        }

    def memory(self, name: str) -> dict[str, dict[str, list[int]]]:
        """Return the bytes that each instance of a model takes, by executor and device."""
        sizes_by_executor: dict[str, dict[str, list[int]]] = {}
        for served in self._ready_versions(name):
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

    def _since_ns(self, name: str) -> int:
        known = self._on_demand.get(name)
        return 0 if known is None else known.since_ns

    def _drafts(self, name: str) -> list[model_config_pb2.ModelConfig]:
        known = self._on_demand.get(name)
        return self._catalogue.drafts(name, "") if known is None else [known.found.draft]

    def _ready_versions(self, name: str) -> list[ServedVersion]:
        model = self._catalogue.model(name)
        return [] if model is None else model.ready_versions()
