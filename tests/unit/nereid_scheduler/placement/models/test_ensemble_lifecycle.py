"""When an ensemble is ready, and why it is not, by the models of its steps."""

from __future__ import annotations

from functools import partial

import pytest

from nereid.core.errors import NereidError
from nereid_scheduler.core.models.lifecycle import LoadStatus, VersionState
from nereid_scheduler.placement.models.catalogue import ServedVersion
from nereid_scheduler.placement.models.ensemble_lifecycle import Ensembles
from nereid_scheduler.versions.ensembles.graphs.graph import Step
from tests.support.scheduler.ensemble_configs import ensemble_config
from tests.support.scheduler.world import LoaderWorld

MODEL = """
backend: "onnxruntime"
input { name: "I" data_type: TYPE_FP32 dims: 2 }
output { name: "O" data_type: TYPE_FP32 dims: 2 }
instance_group { kind: KIND_CPU }
"""
DEPENDS = "ensemble 'e' depends on"
FAILED_STEP = "Model 'bad' loading failed with error: version 1 is at UNAVAILABLE state: no memory;"
FAILED_INNER = (
    "Model 'inner' failed with error: ensemble inner contains models that are not available or"
    " ambiguous: x"
)
UP, FAILED = LoadStatus.UP, LoadStatus.FAILED


class World(LoaderWorld):
    """Executors report of models what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.lives = self.loader._lives

    def load(
        self, name: str, config: str = MODEL, number: int = 1, path: str = "/m"
    ) -> ServedVersion:
        return super().load(name, config, number, path)

    def load_ensemble(self, name: str, *steps: str) -> ServedVersion:
        """Of steps one after another."""
        names = ["I", *(f"t{each}" for each in range(1, len(steps))), "O"]
        made = [
            (step, {"I": taken}, {"O": given})
            for step, taken, given in zip(steps, names, names[1:], strict=False)
        ]
        return self.load(name, ensemble_config(["I"], ["O"], made))

    def report(self, served: ServedVersion, standing: LoadStatus, reason: str = "") -> None:
        self.lives.apply_event(served, partial(served.life.report, "executor", standing, reason))

    def serve(self, name: str, number: int = 1) -> ServedVersion:
        served = self.load(name, number=number)
        self.report(served, UP)
        return served


async def test_an_ensemble_is_ready_while_the_models_of_its_steps_are() -> None:
    it = World()
    a, b = it.load("a"), it.load("b")
    ensemble = it.load_ensemble("e", "a", "b")
    outer = it.load_ensemble("o", "e")
    it.report(a, UP)
    assert ensemble.life.state is outer.life.state is VersionState.LOADING
    it.report(b, UP)
    assert ensemble.life.serving
    assert outer.life.serving
    it.lives.apply_event(b, partial(b.life.forget_executor, "executor"))
    assert (ensemble.life.state, ensemble.life.up) == (VersionState.READY, False)
    assert not outer.life.up


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (("a", "x"), "ensemble e contains models that are not available or ambiguous: x"),
        (("a", "bad"), f"{DEPENDS} 'bad' which has no loaded version. {FAILED_STEP}"),
        (("a:7",), f"{DEPENDS} 'a' whose required version 7 is not loaded."),
        (("inner",), f"{DEPENDS} 'inner' which is not valid. {FAILED_INNER}"),
    ],
    ids=["missing", "failed", "version", "inner"],
)
async def test_why_an_ensemble_is_not_ready(steps: tuple[str, ...], reason: str) -> None:
    it = World()
    it.serve("a")
    it.report(it.load("bad"), FAILED, "no memory")
    it.load_ensemble("inner", "x")
    ensemble = it.load_ensemble("e", *steps)
    assert ensemble.life.state is VersionState.UNAVAILABLE
    assert ensemble.life.reason == reason


async def test_an_ensemble_is_unloaded_with_a_model_of_a_step_and_comes_back_with_it() -> None:
    it = World()
    a = it.serve("a")
    ensemble = it.load_ensemble("e", "a")
    it.lives.apply_event(a, a.life.begin_unload)
    assert ensemble.life.unloaded
    assert not ensemble.life.unload_begun
    it.serve("a")
    assert ensemble.life.serving


async def test_an_ensemble_whose_tensors_do_not_fit_is_refused_until_they_do() -> None:
    it = World()
    it.serve("a")
    it.report(it.load("b", MODEL.replace("TYPE_FP32", "TYPE_INT8")), UP)
    ensemble = it.load_ensemble("e", "a", "b")
    assert ensemble.life.state is VersionState.UNAVAILABLE
    it.serve("b")
    assert ensemble.life.serving


async def test_clients_see_that_an_ensemble_is_decoupled_and_that_its_models_changed() -> None:
    it = World()
    it.serve("a")
    ensemble = it.load_ensemble("e", "a")
    outer = it.load_ensemble("o", "e")
    assert outer.runtime is not None
    revision = outer.runtime.revision
    decoupled = MODEL + "model_transaction_policy { decoupled: true }"
    it.report(it.load("a", decoupled), UP)
    for each in (ensemble, outer):
        assert each.shown is not None
        assert each.shown.model_transaction_policy.decoupled
    assert outer.runtime.revision != revision


async def test_a_step_runs_on_the_latest_ready_version_else_on_one_that_ends() -> None:
    it = World()
    ensembles: Ensembles = it.lives.ensembles
    first, second = it.serve("a", 1), it.serve("a", 2)
    step = Step(0, "a", -1, (), ())
    assert ensembles.find_model(step) is second.runtime
    assert ensembles.find_model(Step(0, "a", 1, (), ())) is first.runtime
    for each in (first, second):
        it.lives.apply_event(each, each.life.begin_unload)
    assert ensembles.find_model(step) is second.runtime
    with pytest.raises(NereidError):
        ensembles.find_model(Step(0, "a", 3, (), ()))
    with pytest.raises(NereidError):
        ensembles.find_model(Step(0, "x", -1, (), ()))


async def test_an_unload_waits_for_the_requests_of_ensembles_that_end_with_it() -> None:
    it = World()
    a = it.serve("a")
    ensemble = it.load_ensemble("e", "a")
    outer = it.load_ensemble("o", "e")
    await it.loader.unload(a)
    assert a.life.unloaded
    assert ensemble.life.unloaded
    assert outer.life.unloaded


async def test_what_nested_ensembles_multiply_is_bounded() -> None:
    it = World()
    it.serve("m")
    inner = it.load_ensemble("inner", *["m"] * 64)
    middle = it.load_ensemble("middle", *["inner"] * 63)
    assert inner.life.serving
    assert middle.life.serving
    outer = it.load_ensemble("outer", "middle", "m")
    assert outer.life.state is VersionState.UNAVAILABLE
    assert outer.life.reason == (
        "ensemble_scheduling of model 'outer' must be at most 4096 requests of steps for a request"
        " but is 4097"
    )
