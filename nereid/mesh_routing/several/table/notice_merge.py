"""Merge of the notices of several schedulers: models that need digests, trace rules, log rules.

A new scheduler's first rules apply only if no other scheduler is connected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from nereid.core.wire.messages import (
    CachedModels,
    LastCounts,
    LogRules,
    ModelsChanged,
    ModelShadows,
    TraceRules,
    TrafficKeys,
)

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nereid.core.wire.messages import Notice

Key = TypeVar("Key", bound="Hashable")


class NoticeMerge(Generic[Key]):
    """The last notice of each kind from each scheduler. Keys identify schedulers."""

    def __init__(self) -> None:
        self._cached: dict[Key, CachedModels] = {}
        self._traced: dict[Key, TraceRules] = {}
        self._logged: dict[Key, LogRules] = {}
        self._trace_rules: TraceRules | None = None
        self._keyed: dict[Key, TrafficKeys] = {}
        self._shadowed: dict[Key, ModelShadows] = {}
        # Sources of lost schedulers' models: requests need keys until a successor says otherwise.
        self._kept_sources: dict[str, str] = {}
        self._keeps_clients = False

    def on_notice(self, key: Key, notice: Notice) -> Notice | None:
        """Handle a notice; return the merged notice, or None if it is unchanged or never merged."""
        if isinstance(notice, CachedModels):
            self._cached[key] = notice
            return self._merge_cached()
        if isinstance(notice, TraceRules):
            return self._on_trace_rules(key, notice)
        if isinstance(notice, LogRules):
            before, is_first = self._logged.get(key), not self._logged
            self._logged[key] = notice
            return notice if is_first or before not in (None, notice) else None
        if isinstance(notice, TrafficKeys):
            self._keyed[key] = notice
            return self._merge_keys()
        if isinstance(notice, ModelShadows):
            # Each scheduler knows all settings. Configured ones are known where a model is served.
            self._shadowed[key] = notice
            shadows = {name: each for all_ in self._shadowed.values() for name, each in all_.models}
            return ModelShadows(tuple(sorted(shadows.items())))
        return notice if isinstance(notice, LastCounts | ModelsChanged) else None

    def on_down(self, key: Key) -> Notice | None:
        """Forget a disconnected scheduler; return the merged CachedModels, or None."""
        self._cached.pop(key, None)
        self._traced.pop(key, None)
        self._logged.pop(key, None)
        self._shadowed.pop(key, None)
        lost = self._keyed.pop(key, None)
        if lost is not None:
            self._kept_sources |= dict(lost.models)
            self._keeps_clients |= lost.clients
        return self._merge_cached() if self._cached else None

    def _merge_cached(self) -> CachedModels:
        keys = [cached.digest_key for cached in self._cached.values() if cached.digest_key]
        digest_key = keys[0] if keys else b""
        names = {
            name
            for cached in self._cached.values()
            if cached.digest_key == digest_key
            for name in cached.names
        }
        return CachedModels(tuple(sorted(names)), digest_key=digest_key)

    def _merge_keys(self) -> TrafficKeys:
        sources, clients = dict(self._kept_sources), self._keeps_clients
        for notice in self._keyed.values():
            sources.update(notice.models)
            clients |= notice.clients
        return TrafficKeys(tuple(sorted(sources.items())), clients)

    def _on_trace_rules(self, key: Key, rules: TraceRules) -> TraceRules | None:
        before, merged = self._traced.get(key), self._trace_rules
        is_first = not self._traced
        self._traced[key] = rules
        if is_first or merged is None:
            self._trace_rules = rules
            return rules
        models = dict(merged.models)
        if before is None:
            default = merged.default
            models = dict(rules.models) | models
        else:
            default = merged.default if rules.default == before.default else rules.default
            removed = {name for name, _ in before.models} - {name for name, _ in rules.models}
            changed = set(rules.models) - set(before.models)
            models = {name: rule for name, rule in models.items() if name not in removed}
            models |= dict(changed)
        self._trace_rules = TraceRules(default, tuple(sorted(models.items())))
        return self._trace_rules if self._trace_rules != merged else None
