"""Large tensors on their way through ensembles: by reference from step to step, and given back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.mesh.large_tensors import (
    BRIEFLY,
    IMAGE,
    assert_shared,
    await_no_segments,
    client,
    give_up_requests,
    kill_executors_under_load,
    run_all,
    tensor,
)
from tests.support.mesh.mesh import Mesh, running
from tests.support.models.e2e_models import DATATYPES, save_identity
from tests.support.scheduler.ensemble_configs import Step, ensemble_config, save_ensemble

pytestmark = pytest.mark.slow

ANY = "FP32 -1"
BATCHED = "max_batch_size: 16\n"


def copy(model: str, taken: str, given: str) -> Step:
    return model, {"INPUT0": taken}, {"OUTPUT0": given}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("large")
    for name in ("one", "two"):
        save_identity(root, name, DATATYPES["FP32"][0], BATCHED + "dynamic_batching { }\n")
    chain = [copy("one", "INPUT0", "a"), copy("two", "a", "b"), copy("one", "b", "OUTPUT0")]
    inputs, outputs = [f"INPUT0 {ANY}"], [f"OUTPUT0 {ANY}"]
    save_ensemble(root, "chain", ensemble_config(inputs, outputs, chain, BATCHED))
    # Two outputs, and one tensor that two steps take.
    fork = [*chain[:2], copy("two", "a", "OUTPUT0"), copy("one", "b", "OUTPUT1")]
    both = [*outputs, f"OUTPUT1 {ANY}"]
    save_ensemble(root, "fork", ensemble_config(inputs, both, fork, BATCHED))
    return root


@pytest.fixture(
    scope="module", params=["scheduler", pytest.param("none", marks=pytest.mark.nightly)]
)
def shared(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mesh]:
    log = tmp_path_factory.mktemp("mesh") / "log"
    flags = (BRIEFLY, f"--join={request.param}")
    with running(models, log, *flags, executors=2) as mesh:
        yield mesh


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["chain", "fork"])
def test_an_image_comes_through_as_it_went_in(shared: Mesh, protocol: str, model: str) -> None:
    assert_shared(shared, model, (tensor(IMAGE, seed) for seed in range(5)), protocol)


def test_tensors_of_many_requests_do_not_mix_and_memory_goes_back(shared: Mesh) -> None:
    wrong: list[str] = []

    def work(protocol: str, seed: int) -> None:
        with client(shared, protocol) as one:
            for turn in range(8):
                # Some go inline, some in segments.
                array = tensor(15_000 + 1_000 * seed, seed * 100 + turn)
                if not np.array_equal(one.infer(("chain", "fork")[turn % 2], array), array):
                    wrong.append(f"{protocol} {seed} {turn}")

    run_all(work, 6)
    assert not wrong
    await_no_segments(shared)


def test_requests_that_are_given_up_leave_no_memory_behind(models: Path, tmp_path: Path) -> None:
    with running(models, tmp_path / "log", BRIEFLY) as mesh:
        give_up_requests(mesh, "fork", 40)
        # What the steps have made; requests' own segments are the same for all models.
        await_no_segments(mesh, ("nereid_executor",))


def test_executors_that_die_lose_no_large_request(models: Path, tmp_path: Path) -> None:
    """Also not when what a step has made dies with them before the next step."""
    with running(models, tmp_path / "log", "--max-retries=5", BRIEFLY, executors=2) as mesh:
        assert not kill_executors_under_load(mesh, "chain", "fork")
        await_no_segments(mesh)
