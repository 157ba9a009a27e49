"""Ensembles of doublers, for a scheduler whose executors are scripted."""

from pathlib import Path

from tests.support.scheduler.ensemble_configs import Step, ensemble_config, save_ensemble
from tests.support.scheduler.scheduler_world import CONFIG, add_model

BATCHED = "max_batch_size: 4\n"
BATCHING = CONFIG + "dynamic_batching { }\n"


def step(model: str, taken: str, given: str) -> Step:
    return model, {"INPUT0": taken}, {"OUTPUT0": given}


def ensemble(*steps: Step, outputs: str = "OUTPUT0", more: str = BATCHED) -> str:
    return ensemble_config(["INPUT0"], outputs.split(), steps, more)


FOURFOLD = ensemble(step("doubler", "INPUT0", "m"), step("second", "m", "OUTPUT0"))
# Both outputs are twice the input, the second by another way.
TWO_WAYS = ensemble(
    step("doubler", "INPUT0", "OUTPUT0"),
    step("second", "INPUT0", "m"),
    step("doubler", "m", "OUTPUT1"),
    outputs="OUTPUT0 OUTPUT1",
)


def add_ensembles(path: Path) -> None:
    """Two doublers, and ensembles of them: fourfold, two_ways, and outer around fourfold."""
    add_model(path, config=BATCHING)
    add_model(path, "second", CONFIG)
    save_ensemble(path, "fourfold", FOURFOLD)
    save_ensemble(path, "two_ways", TWO_WAYS)
    outer = ensemble_config(
        ["INPUT0 FP32 -1,2"], ["OUTPUT0 FP32 -1,2"], [step("fourfold", "INPUT0", "OUTPUT0")]
    )
    save_ensemble(path, "outer", outer)
