"""A simulated mesh: the scheduler's real core, from gateway sessions to executors' streams."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from google.protobuf import text_format

from nereid.pb import model_config_pb2
from nereid.services.scheduler.executors.executor_streams import ExecutorStreams
from nereid.services.scheduler.models.catalogue import Catalogue, ServedModel, ServedVersion
from nereid.services.scheduler.models.config_completion import CompletionRules
from nereid.services.scheduler.models.load_rules import LoadRules
from nereid.services.scheduler.models.loader import Loader
from nereid.services.scheduler.models.queue_limits import QueueLimits
from nereid.services.scheduler.requests.admission import Admission
from nereid.services.scheduler.requests.gateway_session import GatewaySession
from nereid.services.scheduler.requests.load_queue import LoadQueue
from tests.simulation.bugs import Bugs
from tests.simulation.clients import Clients
from tests.simulation.disruptions import Disruptions
from tests.simulation.executor import SimulatedExecutor
from tests.simulation.history import ErrorLines, History
from tests.simulation.models import MODELS
from tests.simulation.network import Network
from tests.simulation.runs import Runs
from tests.simulation.surroundings import Surroundings

if TYPE_CHECKING:
    from collections import Counter

    from benchmarks.simulation.virtual_time import Clock

# From the last fault on, all that is open must end within this time.
_QUIET_S = 60.0
_STEP_S = 0.1


@dataclass(frozen=True)
class Outcome:
    """Of a simulation."""

    seed: int
    simulated_s: float
    requests: int
    ends: Counter[str]
    disruptions: Counter[str]
    events: Counter[str]
    violations: list[str]
    digest: str
    story: list[str]


async def simulate(
    clock: Clock, seed: int, duration_s: float, *, bug: str = "", story: int | None = None
) -> Outcome:
    """Run a mesh for so long, with faults for most of it. Call in a VirtualLoop."""
    loop, choices, history = asyncio.get_running_loop(), random.Random(seed), History(clock, story)
    began_s = loop.time()
    lines = ErrorLines(history)
    logging.getLogger().addHandler(lines)
    try:
        rules = LoadRules(CompletionRules(True, lambda _: {}), lambda _: {}, QueueLimits())
        catalogue = Catalogue()
        admission = Admission(catalogue, LoadQueue(_QUIET_S, 10_000), first_runs=None)
        loader = Loader(rules, admission.models_changed, catalogue)
        for model in MODELS:
            draft = text_format.Parse(model.text, model_config_pb2.ModelConfig(name=model.name))
            served = ServedVersion(model.name, 1, "/nowhere", draft)
            catalogue.set_model(ServedModel(model.name, {1: served}))
            loader.load(served)
        where = Surroundings(
            loop,
            choices,
            Network(loop, choices),
            history,
            Runs(history),
            ExecutorStreams(loader),
            Bugs(bug, choices),
        )
        by_name = {model.name: model for model in MODELS}
        executors = [
            SimulatedExecutor(where, f"e{number}", by_name)
            for number in range(choices.randint(2, 4))
        ]
        for executor in executors:
            executor.join()
        clients, disruptions = (
            Clients(where, GatewaySession(admission)),
            Disruptions(where, executors),
        )
        clients.start()
        disruptions.start()
        await _pass(history, until_s=began_s + duration_s)
        disruptions.end()
        clients.end()
        quiet_s = loop.time() + _QUIET_S
        # Executors that were killed last are back by then.
        await _pass(history, until_s=loop.time() + 5.0)
        clients.send_last()
        while clients.open and loop.time() < quiet_s and not history.violations:
            await asyncio.sleep(_STEP_S)
        if clients.open and not history.violations:
            stuck = list(clients.open)
            history.violate(f"{len(stuck)} requests have no end", stuck[:5])
        # What is open now has been found already.
        violations = list(history.violations)
        for served in list(loader.versions):
            loader.unload_now(served)
    finally:
        logging.getLogger().removeHandler(lines)
    return Outcome(
        seed,
        loop.time() - began_s,
        clients.sent,
        clients.ends,
        disruptions.counts,
        history.events,
        violations,
        history.digest,
        history.story,
    )


async def _pass(history: History, until_s: float) -> None:
    """Let time pass, unless something is found."""
    loop = asyncio.get_running_loop()
    while loop.time() < until_s and not history.violations:
        await asyncio.sleep(_STEP_S)
