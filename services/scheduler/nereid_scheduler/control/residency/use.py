"""What the models in service are used for, and what they take: read from them as it is needed.

Nothing is recorded per request: a model's queue and its statistics say it all.
"""

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
    """The models of one scheduler. All of it costs what the models in service are, not what the
    repository has.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        loader: Loader,
        on_demand: Mapping[str, OnDemandModel],
        held_models: Callable[[], Iterable[str]],
        popularity: Popularity,
    ) -> None:
        """held_models: of requests that wait for a load. popularity: of the models on demand;
        usages() updates it.
        """
        self._catalogue = catalogue
        self._loader = loader
        self._on_demand = on_demand
        self._held_models = held_models
        self._popularity = popularity

    def is_ready(self, name: str) -> bool:
        return any(True for _ in self._ready_versions(name))

    def in_use(self, name: str) -> bool:
        """Whether it has requests without their last response, or sequences that live."""
        return any(runtime.in_use for _, runtime in self._ready_versions(name))

    def others(self) -> set[str]:
        """The models that are ready and not loaded on demand."""
        names = {served.name for served in self._loader.versions}
        return {name for name in names - self._on_demand.keys() if self.is_ready(name)}

    def held(self) -> set[str]:
        """The models on demand that requests wait for, by their qualified names."""
        found = map(self._catalogue.find_on_demand, set(self._held_models()))
        return {each.name for each in found if each is not None}

    def held_requests(self, name: str) -> int:
        """How many requests wait for this model on demand."""
        found = map(self._catalogue.find_on_demand, self._held_models())
        return sum(each is not None and each.name == name for each in found)

    def usages(self, needed: Iterable[str]) -> dict[str, Usage]:
        """Of the models that are in service. needed: that must not make way now."""
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
        """The bytes of each of a model's instances, by executor and device."""
        taken: dict[str, dict[str, list[int]]] = {}
        for served, _ in self._ready_versions(name):
            for session in self._loader.sessions:
                hosted = session.hosted.get(served)
                for sizes in () if hosted is None else hosted.memory.values():
                    of_executor = taken.setdefault(session.name, {})
                    for device, size in sizes.items():
                        of_executor.setdefault(device, []).append(size)
        return taken

    def _steps_of(self, names: Iterable[str]) -> set[str]:
        """The models that ensembles need: ensembles may have ensembles."""
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
        for each in () if model is None else model.versions.values():
            if each.life.state is VersionState.READY and each.runtime is not None:
                yield each, each.runtime
