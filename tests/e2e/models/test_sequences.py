"""Stateful models through a whole mesh: sequences of requests, by every way that requests come."""

import queue
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models import python_models

pytestmark = pytest.mark.slow

EXECUTORS = 2


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    for name, strategy in {
        "direct": "direct { }",
        "oldest": "oldest { max_candidate_sequences: 64 }",
    }.items():
        python_models.save(root, "running_sum", python_models.RUNNING_SUM % strategy, name)
    python_models.save(root, "running_sum", python_models.RUNNING_SUM % "direct { }", "shrinking")
    return root


@pytest.fixture(scope="module")
def mesh(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    log = tmp_path_factory.mktemp("mesh") / "log"
    explicit = ("--model-control-mode=explicit", "--load-model=*")
    with running(root, log, *explicit, executors=EXECUTORS) as mesh:
        yield mesh


def x_of(module: Any, value: float) -> list[Any]:
    tensor = module.InferInput("X", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.array([[value]], np.float32))
    return [tensor]


@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_many_interleaved_sequences_on_a_stream(mesh: Mesh, model: str) -> None:
    """More sequences than slots, all requests sent without waiting for responses."""
    sequences, length = 100, 10
    random_ = random.Random(3)
    values = {which: [random_.randint(1, 9) for _ in range(length)] for which in range(1, 101)}
    order = [which for which in values for _ in range(length)]
    random_.shuffle(order)
    sent: defaultdict[int, int] = defaultdict(int)
    results: queue.Queue[tuple[Any, Any]] = queue.Queue()
    got: dict[str, float] = {}
    instances: defaultdict[str, set[bytes]] = defaultdict(set)
    with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        for which in order:
            step = sent[which]
            sent[which] += 1
            client.async_stream_infer(
                model,
                x_of(tritonclient.grpc, values[which][step]),
                request_id=f"{which}-{step}",
                sequence_id=1000 + which,
                sequence_start=step == 0,
                sequence_end=step == length - 1,
            )
        for _ in range(sequences * length):
            result, error = results.get(timeout=60)
            assert error is None
            name = result.get_response().id
            assert name not in got
            got[name] = float(result.as_numpy("SUM")[0, 0])
            instances[name.partition("-")[0]].add(result.as_numpy("INSTANCE")[0, 0])
        client.stop_stream()
    for which, terms in values.items():
        sums = [got[f"{which}-{step}"] for step in range(length)]
        assert sums == np.cumsum(terms).tolist()
        assert len(instances[str(which)]) == 1


def test_sequences_outlive_a_smaller_instance_group(mesh: Mesh, root: Path) -> None:
    def instances(count: int) -> str:
        return f'nereid_instances{{model="shrinking",version="1",state="free"}} {count}'

    with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:

        def step(which: int, **flags: bool) -> tuple[float, bytes]:
            x = x_of(tritonclient.grpc, 1)
            result = client.infer("shrinking", x, sequence_id=which, **flags)
            return float(result.as_numpy("SUM")[0, 0]), result.as_numpy("INSTANCE")[0, 0]

        until(lambda: instances(4) in mesh.metrics(), "all instances are ready")
        # One at each instance.
        places = {which: step(which, sequence_start=True)[1] for which in range(1, 5)}
        names = ["shrinking_0_0", "shrinking_0_1"]
        assert sorted(each.decode() for each in places.values()) == sorted(names * EXECUTORS)
        written = root / "shrinking" / "config.pbtxt"
        written.write_text(written.read_text().replace("count: 2", "count: 1"))
        client.load_model("shrinking")
        assert instances(4) in mesh.metrics()
        for which, place in places.items():
            assert step(which) == (2, place)
        # The slots that are left at the instances that stay.
        for which in range(11, 17):
            assert step(which, sequence_start=True)[0] == 1
        done: list[tuple[Any, Any]] = []
        client.async_infer(
            "shrinking",
            x_of(tritonclient.grpc, 1),
            lambda result, error: done.append((result, error)),
            sequence_id=17,
            sequence_start=True,
            sequence_end=True,
        )
        for which, place in places.items():
            assert step(which, sequence_end=True) == (3, place)
        until(lambda: instances(2) in mesh.metrics(), "two instances are unloaded")
        until(lambda: done, "a sequence that waited for a slot has one")
        assert done[0][1] is None
        for which in range(11, 17):
            assert step(which, sequence_end=True)[0] == 2
