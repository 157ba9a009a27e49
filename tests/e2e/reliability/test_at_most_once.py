"""A model that charges an account, while processes of the mesh are killed or cut off.

No run begins while another run of the same request goes on and can be reached; and none at all is
repeated for a model that runs requests at most once.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio as grpcclient
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models import python_models
from tests.support.models.python_models import AT_MOST_ONCE, CHARGING, LIMIT

pytestmark = pytest.mark.slow

RUN_S = 2.5
LIMIT_S = 60.0
# Not served by its worker itself, but by the executor.
BY_EXECUTOR = LIMIT.replace('"3"', '"30"')
CONFIGS = {
    "ordinary": CHARGING,
    "ordinary, by its executor": CHARGING + BY_EXECUTOR,
    "at most once": CHARGING + AT_MOST_ONCE,
    "at most once, by its executor": CHARGING + AT_MOST_ONCE + BY_EXECUTOR,
}


class Account:
    """The model's file of charges."""

    def __init__(self, root: Path, config: str) -> None:
        self._path = python_models.save(root, "charging", config) / "charges"

    @property
    def lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []

    def count(self, word: str) -> int:
        return sum(line.startswith(word) for line in self.lines)


async def charge(mesh: Mesh, name: str = "a", seconds: float = RUN_S) -> str:
    """One request; 'right', or the error's status and text."""
    array = np.array([seconds], np.float32)
    tensor = grpcclient.InferInput("SECONDS", [1], "FP32")
    tensor.set_data_from_numpy(array)
    async with grpcclient.InferenceServerClient(mesh.grpc) as client:
        try:
            async with asyncio.timeout(LIMIT_S):
                result = await client.infer("charging", [tensor], request_id=name)
        except InferenceServerException as error:
            return f"{error.status()} {error.message()}"
        assert result.as_numpy("TOTAL").tolist() == [2 * seconds]
        return "right"


async def charge_meanwhile(mesh: Mesh, account: Account, trouble: Callable[[], None]) -> str:
    """A request, and trouble once it runs."""
    request = asyncio.create_task(charge(mesh))
    await asyncio.to_thread(until, lambda: account.count("begin"), "the charge to begin")
    await asyncio.to_thread(trouble)
    return await request


@pytest.mark.parametrize(
    ("kind", "executors"),
    [
        ("ordinary", 2),
        ("at most once, by its executor", 2),
        *(
            pytest.param(kind, executors, marks=pytest.mark.nightly)
            for kind in CONFIGS
            for executors in (1, 2)
        ),
    ],
)
def test_a_killed_scheduler_lets_the_run_complete(
    tmp_path: Path, kind: str, executors: int
) -> None:
    account = Account(tmp_path / "models", CONFIGS[kind])
    flags = ("--join=none",)
    with running(tmp_path / "models", tmp_path / "log", *flags, executors=executors) as mesh:

        def kill() -> None:
            mesh.kill("nereid_scheduler")

        assert asyncio.run(charge_meanwhile(mesh, account, kill)) == "right"
        assert account.lines == ["begin a", "end a"]
        # The mesh serves on.
        assert asyncio.run(charge(mesh, "b", 0.0)) == "right"
        assert Counter(account.lines).total() == 4


@pytest.mark.parametrize(
    "kind",
    ["at most once", pytest.param("at most once, by its executor", marks=pytest.mark.nightly)],
)
def test_a_killed_executor_fails_a_request_that_may_have_run(tmp_path: Path, kind: str) -> None:
    account = Account(tmp_path / "models", CONFIGS[kind])
    with running(tmp_path / "models", tmp_path / "log", executors=2) as mesh:

        def kill() -> None:
            for pid in mesh.children("nereid_executor"):
                os.kill(pid, signal.SIGKILL)

        outcome = asyncio.run(charge_meanwhile(mesh, account, kill))
        assert outcome.startswith("StatusCode.ABORTED")
        assert "the request may have run" in outcome
        mesh.await_settled(2)
        assert asyncio.run(charge(mesh, "b", 0.0)) == "right"
        assert account.lines == ["begin a", "begin b", "end b"]


def test_a_request_whose_run_is_lost_with_the_scheduler_fails(tmp_path: Path) -> None:
    account = Account(tmp_path / "models", CONFIGS["at most once"])
    with running(tmp_path / "models", tmp_path / "log", "--join=none") as mesh:

        def kill() -> None:
            for module in ("nereid_scheduler", "nereid_executor"):
                mesh.kill(module)

        outcome = asyncio.run(charge_meanwhile(mesh, account, kill))
        assert outcome.startswith("StatusCode.ABORTED")
        assert account.lines == ["begin a"]


def test_a_gateway_that_was_cut_off_gets_the_response_of_the_run(tmp_path: Path) -> None:
    account = Account(tmp_path / "models", CHARGING)
    quick = ("--mesh-silence-secs=1.8",)
    flags = ("--join=none", "--watchdog-timeout-secs=0", *quick)
    with running(tmp_path / "models", tmp_path / "log", *flags, executors=2) as mesh:

        def cut_off() -> None:
            with mesh.held("nereid_gateway"):
                until(lambda: account.count("end"), "the end of the run")

        outcome = asyncio.run(charge_meanwhile(mesh, account, cut_off))
        assert outcome == "right"
        assert account.lines == ["begin a", "end a"]
        assert "the link to the scheduler broke" in mesh.log.read_text()
