"""Carries rollouts out: measures versions, and sets their traffic as the machine of steps decides.

A rollout is a part of its model's traffic setting, so that it is recorded and travels among
schedulers with it. The scheduler that has the model measures; after a restart or a takeover the
present step is measured anew.
"""

# layout: not pure, uses asyncio
# layout: not covered, acts, steps decides

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.core.errors import InvalidArgument, NereidError, NotFound
from nereid.core.traffic.rollout_plan import (
    ABORTED,
    BACK,
    PAUSED,
    RUNNING,
    Rollout,
    start_rollout,
)
from nereid.core.traffic.rollout_rules import DIFFERENCE, MAX_COMPARED, WHOLE
from nereid_scheduler.control.rollouts.steps import NO_REQUESTS, StepWatch, Window, next_state
from nereid_scheduler.core.models.lifecycle import VersionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from nereid.timeline.recorder import RecordEvent
    from nereid_scheduler.control.rollouts.steps import Checked, Difference
    from nereid_scheduler.control.sources.model_traffic import ModelTraffic
    from nereid_scheduler.placement.models.catalogue import Catalogue, ServedModel
    from nereid_scheduler.versions.model_version import ModelVersion

    # Returns what a shadow has found of a model's version; `None` if none compares it.
    FindDifference = Callable[[str, int], Difference | None]

_log = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
PAUSE, RESUME, ABORT = ACTIONS = ("pause", "resume", "abort")
# Types of a plan's members, and what they are.
_MEMBERS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "to": ((int,), "the number of a version"),
    "steps": ((list,), "a list of percents"),
    "every_seconds": ((int, float), "a number"),
    "if": ((str,), "rules"),
}
_NO_WEIGHTS: Final = (
    "model '{0}' has no weights: set them before version {1} is loaded, so that it gets requests"
    " only by steps, for example nereid traffic {0} 3=1"
)


class _Run(NamedTuple):
    """The watch of a running step."""

    rollout: Rollout
    new: ModelVersion
    old: tuple[ModelVersion, ...]
    watch: StepWatch

    def fits(self, rollout: Rollout, new: ModelVersion, old: tuple[ModelVersion, ...]) -> bool:
        """Return whether this still is the step, and these the versions."""
        return (self.rollout, self.new, self.old) == (rollout, new, old)


class Rollouts:
    """Rollouts of the models that this scheduler has."""

    def __init__(  # noqa: PLR0913 (one by keyword)
        self,
        traffic: ModelTraffic,
        catalogue: Catalogue,
        owns: Callable[[str], bool],
        record_event: RecordEvent,
        find_difference: FindDifference = lambda _model, _version: None,
        *,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        """owns: returns whether this scheduler owns a model, by its qualified name."""
        self._traffic = traffic
        self._catalogue = catalogue
        self._owns = owns
        self._record_event = record_event
        self._find_difference = find_difference
        self._interval_s = interval_s
        self._runs: dict[str, _Run] = {}
        self._task: asyncio.Task[None] | None = None
        # Rollouts that have ended here, by model and state.
        self.ended: Counter[tuple[str, str]] = Counter()

    def start(self) -> None:
        """Begin to carry rollouts out."""
        self._task = asyncio.get_running_loop().create_task(self._run_forever())

    async def close(self) -> None:
        """Leave all rollouts to the next scheduler."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def not_over(self) -> Iterator[tuple[str, Rollout]]:
        """Yield the rollouts of this scheduler's models that are not over, by the models' names."""
        for name, rollout in self._traffic.rollouts():
            model = self._catalogue.only_model(name)
            if not rollout.is_over and model is not None and self._owns(model.name):
                yield name, rollout

    def describe(self, name: str) -> dict[str, Any]:
        """Return the document of a model's rollout, with how its rules stand; NotFound if none."""
        rollout = self._require(name)
        run = self._runs.get(name)
        checked: Iterable[Checked] = () if run is None else run.watch.checked
        rules = [
            {"rule": each.rule.text, "is": each.standing.value, "figures": each.figures}
            for each in checked
        ]
        document = {**rollout.document(), "percent": rollout.percent, "rules": rules}
        waits_for = self._waits_for(name, rollout)
        return {**document, "waits_for": waits_for} if waits_for else document

    def _waits_for(self, name: str, rollout: Rollout) -> str:
        """Return what a running rollout waits for, but for its rules; empty if they decide."""
        model = self._catalogue.only_model(name)
        if rollout.state != RUNNING or model is None:
            return ""
        if not _in_service(model, rollout):
            former = ", ".join(
                str(version)
                for version, weight in rollout.former.weights
                if weight and version != rollout.to
            )
            return (
                f"none of the versions that had the requests before ({former}) is ready, so it"
                " could not go back: they have to be in the repository and in version_policy"
            )
        run = self._runs.get(name)
        return "" if run is None else run.watch.waits_for(_measured((run.new,)))

    async def begin(self, name: str, document: Mapping[str, Any], principal: str) -> None:
        """Begin a rollout. Raises InvalidArgument with the reason if it cannot."""
        found = self._traffic.find(name)
        try:
            to, steps, every_s, rules = _read_plan(document)
            if found is None:
                raise ValueError(_NO_WEIGHTS.format(name, to))
            rollout = start_rollout(to, steps, every_s, rules, found.traffic)
        except ValueError as error:
            raise InvalidArgument(f"rollout of model '{name}': {error}") from None
        self._traffic.check_no_rollout(name)
        model = self._catalogue.only_model(name)
        ready = [] if model is None else [served.number for served in model.ready_versions()]
        if to not in ready:
            numbers = ", ".join(map(str, sorted(ready)))
            raise InvalidArgument(
                f"rollout of model '{name}': version {to} is not ready (ready: {numbers})"
            )
        compares = self._find_difference(name, to) is not None
        if not compares and any(rule.metric == DIFFERENCE for rule in rollout.rules):
            raise InvalidArgument(
                f"rollout of model '{name}': difference needs a shadow that compares version {to}"
            )
        await self._change(name, rollout, principal)

    async def act(self, name: str, action: str, principal: str) -> None:
        """Pause, resume or abort a rollout; raise InvalidArgument if it is in another state."""
        rollout = self._require(name)
        expected = {PAUSE: (RUNNING,), RESUME: (PAUSED,), ABORT: (RUNNING, PAUSED)}
        if action not in expected:
            raise InvalidArgument(f"'{action}': expected {', '.join(ACTIONS)}")
        if rollout.state not in expected[action]:
            raise InvalidArgument(f"the rollout of model '{name}' is {rollout.state}")
        state = {PAUSE: PAUSED, RESUME: RUNNING, ABORT: ABORTED}[action]
        reason = f"aborted at {rollout.percent}%" if action == ABORT else ""
        await self._change(name, replace(rollout, state=state, reason=reason), principal)

    def _require(self, name: str) -> Rollout:
        rollout = self._traffic.rollout(name)
        if rollout is None:
            raise NotFound(f"model '{name}' has no rollout")
        return rollout

    async def _change(self, name: str, rollout: Rollout, principal: str = "") -> None:
        detail = f"to version {rollout.to}: {rollout.state}, {rollout.percent}%"
        if rollout.reason:
            detail += f": {rollout.reason}"
        log = _log.warning if rollout.state == BACK else _log.info
        self._traffic.check_file(name)
        log("rollout of model '%s' %s", name, detail)
        self._record_event("rollout", f"'{name}'", detail, model=name, principal=principal)
        if rollout.is_over:
            self.ended[name, rollout.state] += 1
        await self._traffic.set(name, rollout.traffic(), rollout=rollout)

    async def _run_forever(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            running = {name: each for name, each in self.not_over() if each.state == RUNNING}
            for name in self._runs.keys() - running.keys():
                self._end_run(name)
            for name, rollout in running.items():
                model = self._catalogue.only_model(name)
                # It may have changed while another one was recorded.
                if model is None or self._traffic.rollout(name) is not rollout:
                    continue
                try:
                    await self._look(name, model, rollout)
                except NereidError as error:
                    _log.warning("rollout of model '%s' cannot go on: %s", name, error.message)
                except Exception:
                    _log.exception("rollout of model '%s' cannot go on", name)

    async def _look(self, name: str, model: ServedModel, rollout: Rollout) -> None:
        served = model.versions.get(rollout.to)
        state = VersionState.UNAVAILABLE if served is None else served.life.state
        if state in {VersionState.UNAVAILABLE, VersionState.UNLOADING}:
            reason = f"at {rollout.percent}%: version {rollout.to} is {state.value}"
            await self._change(name, replace(rollout, state=BACK, reason=reason))
            return
        if served is None or state is not VersionState.READY:
            return
        old = _in_service(model, rollout)
        if not old:
            return
        run = self._find_run(name, rollout, served.ready_runtime, old)
        if run is None:
            await self._change(name, replace(rollout, step=rollout.step - 1))
            return
        difference = self._find_difference(name, rollout.to)
        now_s = time.monotonic()
        checked = run.watch.check(
            now_s, rollout.rules, _measured((run.new,)), _measured(run.old), difference
        )
        after = next_state(rollout, checked, now_s - run.watch.begun_s)
        if after is not rollout:
            await self._change(name, after)

    def _find_run(
        self, name: str, rollout: Rollout, new: ModelVersion, old: tuple[ModelVersion, ...]
    ) -> _Run | None:
        """Return the run of this step; `None` without the requests to compare the last step with.

        A restart, a pause or a reload has lost them.
        """
        run = self._runs.get(name)
        if run is not None and run.fits(rollout, new, old):
            return run
        reference = None
        if rollout.percent == WHOLE:
            if run is None or (run.new, run.old, run.rollout.step) != (new, old, rollout.step - 1):
                return None
            reference = run.watch.reference(_measured(old))
        watch = StepWatch(
            time.monotonic(),
            _measured((new,)),
            _measured(old),
            reference,
            self._find_difference(name, rollout.to),
            every_s=rollout.every_s,
            compares_durations=rollout.percent <= MAX_COMPARED,
        )
        run = self._runs[name] = _Run(rollout, new, old, watch)
        return run

    def _end_run(self, name: str) -> None:
        run = self._runs.pop(name)
        for version in (run.new, *run.old):
            version.statistics.end_measuring_clients()


def _in_service(model: ServedModel, rollout: Rollout) -> tuple[ModelVersion, ...]:
    """Return the ready versions that had the requests before the rollout."""
    weighted = {number for number, weight in rollout.former.weights if weight}
    return tuple(
        each.ready_runtime
        for each in model.ready_versions()
        if each.number in weighted and each.number != rollout.to
    )


def _measured(versions: Iterable[ModelVersion]) -> Window:
    """Return what the versions have counted together since the rollout's begin."""
    window = NO_REQUESTS
    for version in versions:
        clients = version.statistics.measure_clients()
        durations = [sum(pair) for pair in zip(window.durations, clients.durations, strict=True)]
        window = Window(
            window.requests + clients.requests, window.failures + clients.failures, durations
        )
    return window


def _read_plan(document: Mapping[str, Any]) -> tuple[int, list[int], float, str]:
    """Return version, steps, seconds and rules of a request; raise ValueError for wrong types."""
    unknown = document.keys() - _MEMBERS.keys()
    if unknown:
        raise ValueError(f"'{min(unknown)}' is unknown")
    for name, (kinds, what) in _MEMBERS.items():
        if type(document.get(name)) not in kinds:
            raise ValueError(f"expected {what} in '{name}'")
    steps = document["steps"]
    if not all(type(step) is int for step in steps):
        raise ValueError("expected percents in 'steps'")
    return document["to"], steps, float(document["every_seconds"]), document["if"]
