"""Sequences over two gateways and two executors, which drain or die: each response is right, or
there is one error that says so.
"""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc
from tritonclient.grpc import InferInput, aio
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import Mesh, free_port, running, until
from tests.support.mesh.separate_services import ready, service
from tests.support.models import onnx_models, python_models

pytestmark = pytest.mark.slow

EXECUTOR = "nereid_executor"
SEQUENCES, LENGTH = 200, 6
INPUTS, HIDDEN = 3, 4
CONFIG = """
backend: "{backend}"
max_batch_size: 8
input {{ name: "X" data_type: TYPE_FP32 dims: [{inputs}] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [{hidden}] }}
instance_group [{{ count: {count} kind: KIND_CPU }}]
sequence_batching {{
  max_sequence_idle_microseconds: 60000000
  {strategy}
  state {{ input_name: "H" output_name: "H_OUT" data_type: TYPE_FP32 dims: [{hidden}] }}
}}
{more}
"""
OLDEST = "oldest { max_candidate_sequences: 32 }"
SAVED = 'parameters {{ key: "sequence_snapshot_interval" value {{ string_value: "{}" }} }}'
# Strategy and parameters of each model.
MODELS = {
    "oldest": (OLDEST, ""),
    "direct": ("direct { }", ""),
    "oldest_saved": (OLDEST, SAVED.format(1)),
    "direct_saved": ("direct { }", SAVED.format(1)),
    "oldest_replayed": (OLDEST, SAVED.format(4)),
    "python_saved": ("direct { }", SAVED.format(1)),
    "python_replayed": (OLDEST, SAVED.format(4)),
}


def write_config(directory: Path, strategy: str, more: str, count: int = 1) -> None:
    config = CONFIG.format(
        backend="python" if is_python(directory.name) else "onnxruntime",
        strategy=strategy,
        inputs=INPUTS,
        hidden=HIDDEN,
        more=more,
        count=count,
    )
    (directory / "config.pbtxt").write_text(config)


def is_python(model: str) -> bool:
    return model.startswith("python")


class World:
    """A mesh with two gateways, its models' values and what they should lead to."""

    def __init__(self, mesh: Mesh, gateways: tuple[str, str], version: Path) -> None:
        self.mesh, self.gateways, self.repository = mesh, gateways, version.parents[1]
        shape = (SEQUENCES, LENGTH, INPUTS)
        self.values = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        session = onnxruntime.InferenceSession(version / "model.onnx")
        state, outputs = np.zeros((SEQUENCES, HIDDEN), np.float32), []
        for step in range(LENGTH):
            feed = {"X": self.values[:, step], "H": state}
            output, state = session.run(["Y", "H_OUT"], feed)
            outputs.append(output)
        self.expected = np.stack(outputs, axis=1)
        # A Python model's state is the sum of its sequence's inputs so far.
        sums = self.values.sum(axis=2).cumsum(axis=1)
        self.expected_of_python = np.repeat(sums[:, :, None], HIDDEN, axis=2)
        self.first_id = 1

    def play(self, model: str, disturb: Callable[[], None]) -> list[list[str]]:
        """Play all sequences at once, each request by the other gateway than the one before; the
        errors of each sequence, after each of which it began again. `disturb` is called, in a
        thread, when half of the responses have come.
        """
        self._await_executors()
        return asyncio.run(self._play(model, disturb))

    async def _play(self, model: str, disturb: Callable[[], None]) -> list[list[str]]:
        self.first_id += SEQUENCES
        left, half = SEQUENCES * LENGTH // 2, asyncio.Event()

        def on_response() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                half.set()

        async def disturb_at_half() -> None:
            await half.wait()
            await asyncio.to_thread(disturb)

        async with self._clients() as clients:
            plays = [
                self._play_one(clients, model, which, on_response) for which in range(SEQUENCES)
            ]
            disturbance = asyncio.ensure_future(disturb_at_half())
            errors = await asyncio.gather(*plays)
            await disturbance
        return errors

    async def _play_one(
        self, clients: list[Any], model: str, which: int, on_response: Callable[[], None]
    ) -> list[str]:
        errors: list[str] = []
        expected = (self.expected_of_python if is_python(model) else self.expected)[which]
        step = 0
        while step < LENGTH:
            tensor = InferInput("X", [1, INPUTS], "FP32")
            tensor.set_data_from_numpy(self.values[which, step][None])
            try:
                result = await clients[step % 2].infer(
                    model,
                    [tensor],
                    sequence_id=self.first_id + which,
                    sequence_start=step == 0,
                    sequence_end=step == LENGTH - 1,
                )
            except InferenceServerException as error:
                errors.append(error.message())
                step = 0
                continue
            output = result.as_numpy("Y")[0]
            np.testing.assert_allclose(output, expected[step], rtol=1e-4, atol=1e-5)
            on_response()
            step += 1
        return errors

    @contextlib.asynccontextmanager
    async def _clients(self) -> AsyncIterator[list[Any]]:
        async with contextlib.AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(aio.InferenceServerClient(each))
                for each in self.gateways
            ]

    def drain_executor(self) -> None:
        """SIGTERM one, as an operator would, and await its end."""
        first = self.mesh.children(EXECUTOR)[0]
        os.kill(first, signal.SIGTERM)
        until(lambda: first not in self.mesh.children(EXECUTOR), "the executor's end")

    def kill_executor(self) -> None:
        """SIGKILL one."""
        self.mesh.kill(EXECUTOR)

    def resize(self, model: str, count: int) -> None:
        """Load a model with so many instances on each executor."""
        write_config(self.repository / model, *MODELS[model], count)
        status, body = self.mesh.get(f"/v2/repository/models/{model}/load", "POST")
        assert status == 200, body

    def _await_executors(self) -> None:
        """Until both have all models again."""
        series = 'nereid_instances{model="%s",version="1",state="free"} '

        def ready(page: str) -> bool:
            return all(re.search(re.escape(series % name) + "[2-9]", page) for name in MODELS)

        until(lambda: ready(self.mesh.metrics()), "both executors")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("sequences")
    for name, (strategy, more) in MODELS.items():
        if is_python(name):
            model = python_models.save(directory / "models", "summing", name=name)
        else:
            version = onnx_models.gru(directory / "models" / name / "1", INPUTS, HIDDEN)
            model = version.parent
        write_config(model, strategy, more)
    scheduler, http_port, grpc_port = (free_port() for _ in range(3))
    dial = f"--scheduler-address=127.0.0.1:{scheduler}"
    control = ("--model-control-mode=explicit", "--load-model=*")
    flags = (dial, "--cache-config=local,size=16777216", *control)
    other = (dial, f"--http-port={http_port}", f"--grpc-port={grpc_port}")
    with (
        running(directory / "models", directory / "log", *flags, executors=2) as mesh,
        service("gateway", directory / "gateway", *other, f"--metrics-port={free_port()}"),
    ):
        until(lambda: ready(http_port, "oldest"), "the other gateway")
        yield World(mesh, (mesh.grpc, f"127.0.0.1:{grpc_port}"), version)


def test_instances_that_are_too_many_hand_their_sequences_over(world: World) -> None:
    world.resize("direct", 3)
    assert world.play("direct", lambda: world.resize("direct", 1)) == [[]] * SEQUENCES


ROUNDS = [pytest.param(number, marks=pytest.mark.nightly if number else ()) for number in range(20)]


@pytest.mark.parametrize("round_", ROUNDS)
def test_an_executor_that_drains_hands_its_sequences_over(world: World, round_: int) -> None:
    model = ("oldest", "direct", "oldest_saved", "oldest_replayed")[round_ % 4]
    errors = world.play(model, world.drain_executor)
    assert errors == [[]] * SEQUENCES


@pytest.mark.parametrize("round_", ROUNDS)
def test_a_killed_executors_sequences_go_on_from_their_snapshots(world: World, round_: int) -> None:
    model = ("oldest_saved", "direct_saved", "oldest_replayed")[round_ % 3]
    errors = world.play(model, world.kill_executor)
    assert errors == [[]] * SEQUENCES


@pytest.mark.parametrize("round_", ROUNDS)
def test_states_of_python_models_move_as_well(world: World, round_: int) -> None:
    models = ("python_saved", "python_replayed")
    assert world.play(models[round_ % 2], world.drain_executor) == [[]] * SEQUENCES
    for model in models:
        assert world.play(model, world.kill_executor) == [[]] * SEQUENCES


@pytest.mark.parametrize("round_", ROUNDS)
def test_without_snapshots_they_get_one_error_each(world: World, round_: int) -> None:
    model = ("direct", "oldest")[round_ % 2]
    errors = world.play(model, world.kill_executor)
    assert any(errors)
    for each in errors:
        assert len(each) <= 1
        assert all("begin it again with a request that has the START flag" in one for one in each)


def test_sequences_of_a_lost_scheduler_are_started_again(world: World) -> None:
    """Last: the other gateway's clients stay connected."""

    def infer(**flags: bool) -> Any:
        tensor = InferInput("X", [1, INPUTS], "FP32")
        tensor.set_data_from_numpy(world.values[0, 0][None])
        return client.infer("oldest_saved", [tensor], sequence_id=7, **flags).as_numpy("Y")[0]

    with tritonclient.grpc.InferenceServerClient(world.gateways[1]) as client:
        infer(sequence_start=True)
        world.mesh.kill("nereid_mesh.serve.joined")
        with pytest.raises(InferenceServerException, match="must specify the START flag"):
            infer()
        np.testing.assert_allclose(infer(sequence_start=True), world.expected[0, 0], rtol=1e-4)
