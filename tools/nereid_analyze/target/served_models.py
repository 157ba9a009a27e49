"""Loads candidates' configurations into a running server, and restores the original ones."""

from __future__ import annotations

import json
import logging
import signal
from typing import TYPE_CHECKING, Any, Final, Self

from nereid_analyze.search.trial import CandidateError
from nereid_analyze.space.candidate import EXECUTORS, INSTANCES, MAX_BATCH
from nereid_analyze.space.model_settings import is_ensemble
from nereid_analyze.space.override import overridden
from nereid_perf.server import ServerError
from nereid_perf.server_stats.statistics import composing_models

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nereid_analyze.space.candidate import Candidate, Value
    from nereid_perf.server import Server

_log = logging.getLogger(__name__)
_READY: Final = "READY"
_RETRIES: Final = 3
# Marks models that are loaded without a candidate's values and are not restored yet.
_ORIGINAL: Final[dict[str, Value]] = {"": ""}
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class TargetError(Exception):
    """Raised if a server cannot be used for the search; the text says why and what to do."""


class ServedModels:
    """A context for models and their composing models. Its end restores what was loaded before."""

    def __init__(
        self,
        server: Server,
        models: Iterable[str],
        *,
        cpu_only: frozenset[str] = frozenset(),
        reloads: bool = True,
    ) -> None:
        self._server = server
        self._models = tuple(models)
        self._cpu_only = cpu_only
        self._reloads = reloads
        self._loaded_by_us: list[str] = []
        # Values of each model that differ from its original configuration.
        self._values: dict[str, dict[str, Value]] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        # The largest batch of each model before the search: no client has sent a larger request.
        self.sent_rows: dict[str, int] = {}

    def __enter__(self) -> Self:
        """Load the models; raise TargetError if the server cannot be used."""
        try:
            self._begin()
        except BaseException:
            self.restore()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self.restore()

    def load(self, candidate: Candidate, default: Candidate) -> bool:
        """Load a candidate, or raise CandidateError; return whether anything had to be loaded."""
        changed = False
        for model in self.configs:
            present = default.values(model)
            values = {
                name: value
                for name, value in candidate.values(model).items()
                if value != present.get(name) and name != EXECUTORS
            }
            if values != self._values.get(model, {}):
                self._load(model, values)
                changed = True
        if changed:
            self._revive_ensembles()
        return changed

    def restore(self) -> None:
        """Restore all models, uninterrupted by signals; log those that cannot be restored."""
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            self._restore()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _restore(self) -> None:
        for model in [value for value, values in self._values.items() if values]:
            for attempt in range(_RETRIES):
                try:
                    self._server.load_model(model, json.dumps(self.configs[model]))
                    self._values[model] = {}
                    break
                except ServerError as error:
                    if attempt + 1 == _RETRIES:
                        _log.error(
                            "model configuration not restored model=%s error=%s; load it again",
                            model,
                            error,
                        )
        try:
            self._revive_ensembles()
        except CandidateError as error:
            _log.error("ensemble not restored error=%s; load it again", error)
        for model in self._loaded_by_us:
            try:
                self._server.unload_model(model)
            except ServerError as error:
                _log.warning("model not unloaded model=%s error=%s", model, error)
        self._loaded_by_us = []

    def _begin(self) -> None:
        try:
            states = {
                entry["name"]: entry.get("state") for entry in self._server.repository_index()
            }
            waiting = list(self._models)
            while waiting:
                model = waiting.pop(0)
                if model in self.configs:
                    continue
                if states.get(model) != _READY and self._reloads:
                    self._server.load_model(model)
                    self._loaded_by_us.append(model)
                config = self._server.config(model)
                if config is None:
                    raise TargetError(
                        f"{self._server.endpoint.address} has no model configurations: what is no"
                        " Triton or Nereid can be measured with nereid perf alone"
                    )
                self.configs[model] = config
                self.sent_rows[model] = _largest_batch(self._server.statistics(model) or (), config)
                waiting += composing_models(model, self._server.config)
            if self._reloads:
                self._check_loads()
        except ServerError as error:
            raise TargetError(_advice(str(error))) from error

    def _check_loads(self) -> None:
        """Check that models can be loaded at all, so that no long measurement is in vain."""
        for model in self._models[:1]:
            self._server.load_model(model, json.dumps(self.configs[model]))

    def _revive_ensembles(self) -> None:
        """Reload ensembles that a composing model's configuration made unavailable or outdated."""
        for model, config in self.configs.items():
            if not is_ensemble(config):
                continue
            try:
                self._server.metadata(model)
            except ServerError:
                try:
                    self._server.load_model(model)
                except ServerError as error:
                    raise CandidateError(str(error)) from error

    def _load(self, model: str, values: Mapping[str, Value]) -> None:
        config = overridden(
            self.configs[model], values, cpu_only=model in self._cpu_only and bool(values)
        )
        before = self._values.get(model, {})
        # Note the values first, because an interrupt may come while the server loads the model.
        self._values[model] = dict(values) or _ORIGINAL
        try:
            self._server.load_model(model, json.dumps(config))
            found = self._server.config(model) or {}
        except ServerError as error:
            # The load failed, so the server still has the configuration that it had before.
            self._values[model] = before
            raise CandidateError(str(error)) from error
        self._values[model] = dict(values)
        for name, value in values.items():
            has = _present(found, name)
            if has is not None and has != value:
                raise CandidateError(f"{model} was loaded with {name} {has} instead of {value}")


def _present(config: Mapping[str, Any], name: str) -> int | None:
    if name == MAX_BATCH:
        return int(config.get(MAX_BATCH) or 0)
    if name == INSTANCES and config.get("instance_group"):
        return int(config["instance_group"][0].get("count") or 1)
    return None


def _largest_batch(statistics: Iterable[Mapping[str, Any]], config: Mapping[str, Any]) -> int:
    sizes = [
        int(batches.get("batch_size") or 0)
        for version in statistics
        for batches in version.get("batch_stats") or ()
    ]
    # An earlier search may have tried larger batches than the configuration allows clients.
    return min(max(sizes, default=0), int(config.get(MAX_BATCH) or 0))


def _advice(text: str) -> str:
    if "polling is enabled" in text or "explicit" in text.lower():
        return f"{text}: start the server with --model-control-mode=explicit"
    return text
