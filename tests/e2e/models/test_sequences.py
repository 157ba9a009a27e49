"""Stateful models through a whole mesh: sequences of requests, by every way that requests come."""

import json
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
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models import python_models

pytestmark = pytest.mark.slow

EXECUTORS = 2
# To be filled in with a step before the last one, and with what the last one reads.
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input {{ name: "X" data_type: TYPE_FP32 dims: [-1] }}
output {{ name: "TOTAL" data_type: TYPE_FP32 dims: [1] }}
ensemble_scheduling {{ {step} step {{
  model_name: "oldest" model_version: -1
  input_map {{ key: "X" value: "{read}" }}
  output_map {{ key: "SUM" value: "TOTAL" }}
}} }}
"""
STATING = """step {
  model_name: "stating" model_version: -1
  input_map { key: "X" value: "X" }
  output_map { key: "Y" value: "between" }
}"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    for name, strategy in {
        "direct": "direct { }",
        "oldest": "oldest { max_candidate_sequences: 64 }",
    }.items():
        python_models.save(root, "running_sum", python_models.RUNNING_SUM % strategy, name)
    for name, step, read in (("chain", "", "X"), ("stated", STATING, "between")):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(ENSEMBLE.format(step=step, read=read))
    python_models.save(root, "stating", python_models.STATING)
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
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_sequence_by_unary_requests(mesh: Mesh, protocol: str, model: str) -> None:
    module = getattr(tritonclient, protocol)
    with module.InferenceServerClient(getattr(mesh, protocol)) as client:
        for which in (7, "a text"):
            sums, instances = [], set()
            for step in range(4):
                result = client.infer(
                    model,
                    x_of(module, step + 1),
                    sequence_id=which,
                    sequence_start=step == 0,
                    sequence_end=step == 3,
                )
                sums.append(float(result.as_numpy("SUM")[0, 0]))
                instances.add(result.as_numpy("INSTANCE")[0, 0])
            assert sums == [1, 3, 6, 10]
            assert len(instances) == 1
        with pytest.raises(InferenceServerException, match="must specify the START flag"):
            client.infer(model, x_of(module, 1), sequence_id=7)


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


def test_a_sequence_through_an_ensemble(mesh: Mesh) -> None:
    with tritonclient.http.InferenceServerClient(mesh.http) as client:
        totals = []
        for step in range(3):
            result = client.infer(
                "chain",
                x_of(tritonclient.http, 2),
                sequence_id=5,
                sequence_start=step == 0,
                sequence_end=step == 2,
            )
            totals.append(float(result.as_numpy("TOTAL")[0, 0]))
            assert result.get_response()["parameters"]["sequence_id"] == 5
        assert totals == [2, 4, 6]


def test_a_step_states_the_sequence_of_the_next(mesh: Mesh) -> None:
    """The requests themselves are in none."""
    with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
        totals = []
        for value in (21.5, 22.5, 21, 22, 21):
            result = client.infer("stated", x_of(tritonclient.grpc, value))
            totals.append(float(result.as_numpy("TOTAL")[0, 0]))
            assert result.get_response().parameters["sequence_id"].int64_param == int(value)
        assert totals == [21.5, 22.5, 42.5, 44.5, 63.5]


def test_a_sequence_by_generate(mesh: Mesh) -> None:
    totals = []
    for step in range(3):
        body = {
            "X": [1.5],
            "parameters": {
                "sequence_id": 6,
                "sequence_start": step == 0,
                "sequence_end": step == 2,
            },
        }
        status, reply = mesh.get("/v2/models/oldest/generate", "POST", json.dumps(body).encode())
        assert status == 200, reply
        totals.append(json.loads(reply)["SUM"])
    assert totals == [1.5, 3, 4.5]


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


@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_a_killed_executor_loses_its_sequences_with_one_error_each(
    tmp_path: Path, model: str
) -> None:
    strategy = {"direct": "direct { }", "oldest": "oldest { max_candidate_sequences: 4 }"}[model]
    python_models.save(tmp_path / "models", "running_sum", python_models.RUNNING_SUM % strategy)
    with (
        running(tmp_path / "models", tmp_path / "log", executors=EXECUTORS) as mesh,
        tritonclient.grpc.InferenceServerClient(mesh.grpc) as client,
    ):

        def step(which: int, **flags: bool) -> float:
            result = client.infer(
                "running_sum", x_of(tritonclient.grpc, 1), sequence_id=which, **flags
            )
            return float(result.as_numpy("SUM")[0, 0])

        # Two on each executor; one may load later than the other.
        ready = 'nereid_instances{model="running_sum",version="1",state="free"} 4'
        until(lambda: ready in mesh.metrics(), "all instances are ready")
        texts = set()
        for which in range(1, 9):
            assert step(which, sequence_start=True) == 1
        mesh.kill("nereid.services.executor")
        # A model's process goes on for a moment.
        until(lambda: "' was lost" in mesh.log.read_text(), "its executor is lost")
        lost = []
        for which in range(1, 9):
            try:
                assert step(which) == 2
            except InferenceServerException as error:
                lost.append(which)
                texts.add(error.message().partition(str(which))[0])
        assert texts == {"the state of sequence "}
        # Those of its instances; the other executor's go on.
        assert 0 < len(lost) < 8
        for which in range(1, 9):
            if which in lost:
                with pytest.raises(InferenceServerException, match="must specify the START flag"):
                    step(which)
                assert step(which, sequence_start=True) == 1
            assert step(which, sequence_end=True) == (2 if which in lost else 3)
