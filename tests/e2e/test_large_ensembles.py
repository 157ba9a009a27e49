"""Large tensors on their way through ensembles: by reference from step to step, and given back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.mesh import Mesh, running, until
from tests.e2e.models import DATATYPES, save_identity
from tests.e2e.test_large import IDLE_S, IMAGE, ROOM, Client, client, segments, tensor
from tests.ensembles import Step, ensemble_config, save_ensemble

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


@pytest.fixture(scope="module", params=["all", "none"])
def shared(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mesh]:
    log = tmp_path_factory.mktemp("mesh") / "log"
    with running(models, log, ROOM, f"--join={request.param}", executors=2) as mesh:
        yield mesh


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["chain", "fork"])
def test_an_image_comes_through_as_it_went_in(shared: Mesh, protocol: str, model: str) -> None:
    with client(shared, protocol) as one:
        for seed in range(5):
            image = tensor(IMAGE[1], seed)
            assert np.array_equal(one.infer(model, image), image)
    assert segments(shared), "it went through shared memory"


def test_tensors_of_many_requests_do_not_mix_and_memory_goes_back(shared: Mesh) -> None:
    wrong: list[str] = []

    def work(protocol: str, seed: int) -> None:
        with client(shared, protocol) as one:
            for turn in range(8):
                # Some go inline, some in segments.
                array = tensor(15_000 + 1_000 * seed, seed * 100 + turn)
                if not np.array_equal(one.infer(("chain", "fork")[turn % 2], array), array):
                    wrong.append(f"{protocol} {seed} {turn}")

    run_all(threading.Thread(target=work, args=(("http", "grpc")[n % 2], n)) for n in range(6))
    assert not wrong
    until(lambda: not segments(shared), "segments to go", IDLE_S)


def run_all(threads: Any) -> None:
    started = list(threads)
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def test_requests_that_are_given_up_leave_no_memory_behind(models: Path, tmp_path: Path) -> None:
    array = tensor(1_000_000)
    with running(models, tmp_path / "log") as mesh:
        with client(mesh, "grpc") as one:
            for step in range(40):
                with contextlib.suppress(InferenceServerException):
                    one.infer("fork", array, client_timeout=0.002 * step)
            assert np.array_equal(one.infer("fork", array), array)
        # What the steps have made; requests' own segments are the same for all models.
        until(lambda: not segments(mesh, ("services.executor",)), "segments to go", IDLE_S)


def test_executors_that_die_lose_no_large_request(models: Path, tmp_path: Path) -> None:
    """Also not when what a step has made dies with them before the next step."""
    wrong: list[str] = []
    done = threading.Event()
    answered = threading.Semaphore(0)

    def work(mesh: Mesh, protocol: str, seed: int) -> None:
        array = tensor(300_000, seed)
        with contextlib.closing(Client(protocol, getattr(mesh, protocol))) as one:
            while not done.is_set():
                try:
                    if not np.array_equal(one.infer(("chain", "fork")[seed // 2], array), array):
                        wrong.append("another answer")
                except InferenceServerException as error:
                    wrong.append(str(error))
                answered.release()

    with running(models, tmp_path / "log", "--max-retries=5", executors=2) as mesh:
        threads = [
            threading.Thread(target=work, args=(mesh, ("http", "grpc")[seed % 2], seed))
            for seed in range(4)
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in range(5):
                for _ in range(12):
                    assert answered.acquire(timeout=60)
                mesh.kill("services.executor")
                until(lambda: len(mesh.children("services.executor")) == 2, "another executor")
            for _ in range(12):
                assert answered.acquire(timeout=60)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert not wrong
        until(lambda: not segments(mesh), "segments to go", IDLE_S)
