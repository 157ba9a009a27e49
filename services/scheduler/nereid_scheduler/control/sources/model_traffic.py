"""Traffic of models as operators set it: applies, records and announces it to gateways."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from nereid.comparison.shadow import VERSION, check_other_model
from nereid.core.errors import InvalidArgument, NotFound
from nereid.core.traffic.mismatches import find_mismatches
from nereid.core.wire.messages import ModelShadows, TrafficKeys
from nereid_scheduler.core.models.dependencies import plain_name
from nereid_scheduler.core.models.shadow_counts import Compared, ShadowCounts
from nereid_scheduler.core.models.traffic_table import FileSetting, TrafficSetting, read_setting
from nereid_scheduler.placement.models.catalogue import LATEST

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from nereid.comparison.shadow import Shadow
    from nereid.core.traffic.rollout_plan import Rollout
    from nereid.core.traffic.weights import Traffic
    from nereid.timeline.recorder import RecordEvent
    from nereid_scheduler.control.state.setting_records import SettingRecords
    from nereid_scheduler.core.models.traffic_table import FoundShadow, FoundTraffic
    from nereid_scheduler.placement.models.catalogue import Catalogue
    from nereid_scheduler.placement.models.ensemble_lifecycle import Ensembles

_log = logging.getLogger(__name__)

# Start of the key of a record in the state; the model's name follows.
_PREFIX: Final = "traffic/"
# Names of a FileSetting's fields in the log.
_FILE_KINDS: Final = ("traffic", "shadow")


class ModelTraffic:
    """Settings of models' traffic at one scheduler."""

    def __init__(
        self,
        catalogue: Catalogue,
        ensembles: Ensembles,
        records: SettingRecords,
        on_change: Callable[[str], None],
        record_event: RecordEvent,
    ) -> None:
        """on_change: called with a model's plain name after its traffic has changed."""
        self._catalogue = catalogue
        self._table = catalogue.traffic
        self._ensembles = ensembles
        self._records = records
        self._on_change = on_change
        self._record_event = record_event
        # Traffic by plain name, as it was when keys were last announced.
        self._announced: dict[str, Traffic] = {}
        # Mismatches by plain name, as last logged.
        self._mismatches: dict[str, tuple[str, ...]] = {}
        # Plain names of models with a latency target.
        self._targets: set[str] = set()
        self._shadow_texts: dict[str, str] = {}
        self._sources: tuple[tuple[str, str], ...] = ()
        self._keys = TrafficKeys(())
        self._shadows = ModelShadows(())
        self._shadow_counts = ShadowCounts()

    @property
    def keys(self) -> TrafficKeys:
        """Notice of what only gateways know of callers and is needed, as last announced."""
        return self._keys

    @property
    def shadows(self) -> ModelShadows:
        """Notice of the models' shadows, as last announced."""
        return self._shadows

    def find_shadow(self, name: str) -> FoundShadow | None:
        """Return what gets copies of a model's requests."""
        return self._catalogue.find_shadow(name)

    def report_counts(self, name: str, shadow: str, gateway: int, counts: Compared) -> None:
        """Keep what a gateway has compared, unless the model has another shadow now."""
        present = self.find_shadow(name)
        if present is not None and present.shadow.text() == shadow:
            self._shadow_counts.report(name, shadow, gateway, counts)

    def compared(self, name: str) -> Compared:
        """Return what all gateways have compared since the model's shadow was set."""
        present = self.find_shadow(name)
        if present is None:
            return Compared()
        return self._shadow_counts.total(name, present.shadow.text())

    def compared_with(self, name: str, version: int) -> Compared | None:
        """Return what was compared with a version; `None` if it is not the model's shadow."""
        found = self.find_shadow(name)
        if found is None or (found.shadow.kind, found.shadow.target) != (VERSION, str(version)):
            return None
        return self.compared(name)

    def find(self, name: str) -> FoundTraffic | None:
        """Return a model's traffic, or `None`; raise NotFound for an unknown model."""
        found = self._catalogue.find_traffic(name)
        if found is None and self._catalogue.only_model(name) is None:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return found

    def mismatches(self, name: str) -> tuple[str, ...]:
        """Return what the traffic names and the model has not; none while it is being loaded."""
        found = self._catalogue.find_traffic(name)
        return () if found is None else self._find_mismatches(name, found.traffic)

    def _find_mismatches(self, name: str, traffic: Traffic) -> tuple[str, ...]:
        model = self._catalogue.only_model(name)
        if model is None or model.is_loading(LATEST):
            return ()
        configs = {served.number: served.ready_config for served in model.ready_versions()}
        if not configs:
            return ()
        inputs = {
            number: [tensor.name for tensor in config.input] for number, config in configs.items()
        }
        return find_mismatches(traffic, inputs, next(iter(configs.values())))

    def rollout(self, name: str) -> Rollout | None:
        """Return the last rollout of a model, unless a call has set its traffic since."""
        setting = self._table.settings.get(name)
        return None if setting is None else setting.rollout

    def rollouts(self) -> list[tuple[str, Rollout]]:
        """Return all rollouts, by the models' names."""
        return [
            (name, setting.rollout)
            for name, setting in self._table.settings.items()
            if setting.rollout is not None
        ]

    def check_file(self, name: str) -> None:
        """Raise InvalidArgument if the file of --traffic-file has the model's traffic."""
        if self._table.in_file(name).traffic is not None:
            raise _in_file("traffic", name)

    def check_no_rollout(self, name: str) -> None:
        """Raise InvalidArgument if a rollout of the model is not over."""
        known = self.rollout(name)
        if known is not None and not known.is_over:
            raise InvalidArgument(
                f"the rollout of model '{name}' to version {known.to} is {known.state}: abort it"
                " first"
            )

    async def set(
        self,
        name: str,
        traffic: Traffic | None,
        principal: str = "",
        rollout: Rollout | None = None,
    ) -> None:
        """Set a model's traffic, or clear what was set; return once that is recorded.

        rollout: the one that sets it, and has reported it. Raises InvalidArgument if the file of
        --traffic-file has it or a rollout of the model is not over, NotFound for an unknown model.
        """
        self.find(name)
        self.check_file(name)
        if rollout is None:
            self.check_no_rollout(name)
            shown = "cleared" if traffic is None else str(traffic)
            _log.info("traffic of model '%s' is set: %s", name, shown)
            self._record_event("traffic", f"'{name}'", shown, model=name, principal=principal)
        setting = self._table.next_setting(name, traffic, time.time_ns(), rollout)
        await self._apply_call(name, setting)

    async def set_shadow(self, name: str, shadow: Shadow | None, principal: str = "") -> None:
        """Set what gets copies of a model's requests; return once that is recorded.

        Raises ValueError if it is the model itself, InvalidArgument if the file of --traffic-file
        has the model's shadow, NotFound for an unknown model.
        """
        self.find(name)
        if self._table.in_file(name).shadow is not None:
            raise _in_file("shadow", name)
        if shadow is not None:
            check_other_model(name, shadow)
        known = self._table.settings.get(name, TrafficSetting(None, 0))
        setting = self._table.next_setting(name, known.traffic, time.time_ns(), known.rollout)
        shown = "cleared" if shadow is None else str(shadow)
        _log.info("shadow of model '%s' is set: %s", name, shown)
        self._record_event("shadow", f"'{name}'", shown, model=name, principal=principal)
        # Gateways begin to count anew as well.
        self._shadow_counts.forget(name)
        await self._apply_call(name, setting._replace(shadow=shadow))

    async def _apply_call(self, name: str, setting: TrafficSetting) -> None:
        self._table.apply(name, setting)
        self._apply(name)
        await self._records.record(_PREFIX + name, setting.document())

    def restore(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        """Apply what calls had set before the scheduler's start, from the records."""
        for key in documents:
            if key.startswith(_PREFIX):
                self._records.apply(documents, key, self._restore(key.removeprefix(_PREFIX)))

    def _restore(self, name: str) -> Callable[[Mapping[str, Any]], object]:
        return lambda document: self.merge({name: read_setting(document)})

    def shared(self) -> tuple[tuple[str, TrafficSetting], ...]:
        """Return what calls have set, for the other schedulers of the mesh."""
        return tuple(sorted(self._table.settings.items()))

    def merge(self, settings: Mapping[str, TrafficSetting]) -> None:
        """Apply settings that come from elsewhere, unless later ones are known."""
        for name, setting in settings.items():
            if self._table.apply(name, setting):
                self._apply(name)

    def set_file(self, file: Mapping[str, FileSetting]) -> None:
        """Set what the file of --traffic-file has."""
        before, self._table.file = self._table.file, file
        for name in before.keys() | file.keys():
            old, new = before.get(name, FileSetting()), file.get(name, FileSetting())
            for kind, was, value in zip(_FILE_KINDS, old, new, strict=True):
                if was != value:
                    shown = "not in the file any more" if value is None else str(value)
                    _log.info("%s of model '%s' is read from the file: %s", kind, name, shown)
                    self._record_event(kind, f"'{name}'", shown, model=name, cause="file")
            if old != new:
                self._apply(name)

    def refresh(self, name: str = "") -> TrafficKeys | None:
        """Return the notice of keys if it has changed since the last call.

        name: the only model that may have changed; without it, all are read. A start has as many
        changes as models, and must not read all for each.
        """
        is_stale = False
        for each in (name,) if name else self._names():
            is_stale |= self._refresh_model(each)
        if is_stale:
            self._sources = tuple(sorted(self._find_sources().items()))
        keys = TrafficKeys(self._sources, bool(self._targets))
        if keys == self._keys:
            return None
        self._keys = keys
        return keys

    def _refresh_model(self, name: str) -> bool:
        """Read a model's traffic again; return whether sources of keys may have changed."""
        found, known = self._catalogue.find_traffic(name), self._announced.get(name)
        traffic = None if found is None else found.traffic
        is_keyed = traffic is not None and traffic.is_keyed_by_gateway
        if traffic is None:
            self._announced.pop(name, None)
        else:
            self._announced[name] = traffic
            if is_keyed and (known is None or known.by != traffic.by):
                self._table.remember_before(name, known)
        if self._catalogue.has_target(name):
            self._targets.add(name)
        else:
            self._targets.discard(name)
        self._log_mismatches(name, () if traffic is None else self._find_mismatches(name, traffic))
        was_keyed = known is not None and known.is_keyed_by_gateway
        # Ensembles of keyed models need keys as well.
        return (traffic != known and (is_keyed or was_keyed)) or self._catalogue.is_ensemble(name)

    def _log_mismatches(self, name: str, mismatches: tuple[str, ...]) -> None:
        """Log once what does not fit, until it changes."""
        if mismatches and mismatches != self._mismatches.get(name):
            _log.warning("traffic of model '%s': %s", name, "; ".join(mismatches))
        if mismatches:
            self._mismatches[name] = mismatches
        else:
            self._mismatches.pop(name, None)

    def refresh_shadows(self, name: str = "") -> ModelShadows | None:
        """Return the notice of shadows if it has changed since the last call; see refresh()."""
        has_changed = False
        for each in (name,) if name else self._names():
            found, known = self.find_shadow(each), self._shadow_texts.pop(each, None)
            text = None if found is None else found.shadow.text()
            if text is not None:
                self._shadow_texts[each] = text
            has_changed |= text != known
        if not has_changed:
            return None
        self._shadows = ModelShadows(tuple(sorted(self._shadow_texts.items())))
        return self._shadows

    def _apply(self, name: str) -> None:
        for qualified in self._catalogue.qualified_names(name):
            self._ensembles.on_model_changed(qualified)
        self._on_change(name)

    def _names(self) -> Collection[str]:
        """Return the models that have, or were announced with, what gateways have to know."""
        names = {*self._table.names(), *self._announced, *self._shadow_texts, *self._targets}
        for qualified in self._catalogue.configured_traffic:
            model = self._catalogue.model(qualified)
            if model is not None:
                names.add(plain_name(qualified, model.namespace))
        return names

    def _find_sources(self) -> dict[str, str]:
        """Return the sources of keys, also for ensembles: their steps get the request's key."""
        sources = {
            name: traffic.by
            for name, traffic in self._announced.items()
            if traffic.is_keyed_by_gateway
        }
        pending = list(sources)
        while pending:
            name = pending.pop()
            for qualified in self._catalogue.qualified_names(name):
                for served in self._ensembles.users_of(qualified):
                    if served.plain_name not in sources:
                        sources[served.plain_name] = sources[name]
                        pending.append(served.plain_name)
        return sources


def _in_file(kind: str, name: str) -> InvalidArgument:
    return InvalidArgument(
        f"the {kind} of model '{name}' is in the file of --traffic-file: change it there"
    )
