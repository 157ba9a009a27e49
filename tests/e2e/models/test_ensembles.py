"""Ensembles of ONNX models through the whole mesh, with NVIDIA's clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from nereid.observability.samples import Samples
from tests.support.mesh.mesh import Mesh, running
from tests.support.mesh.nvidia_clients import FLAVOURS, connected
from tests.support.mesh.perf_analyzer import COUNTED, analyze, needs_analyzer
from tests.support.mesh.repeats import events, is_final, number_of, stream
from tests.support.models import python_models
from tests.support.models.e2e_models import DATATYPES, save_identity, save_scaler, save_sign
from tests.support.scheduler.ensemble_configs import Step, ensemble_config, save_ensemble

pytestmark = pytest.mark.slow

BATCHED = "max_batch_size: 8\n"
BATCHING = BATCHED + "dynamic_batching { }\n"


def scale(model: str, taken: str, given: str) -> Step:
    return model, {"INPUT0": taken}, {"OUTPUT0": given}


def make_repository(root: Path) -> Path:
    """Save ensembles of two models.

    sixfold is threefold of twofold; fork has the results of both; either is one of the two.
    """
    save_scaler(root, "twofold", 2, BATCHING)
    save_scaler(root, "threefold", 3, BATCHING)
    steps = [scale("twofold", "X", "doubled"), scale("threefold", "doubled", "Y")]
    outputs = ["Y FP32 8"]
    save_ensemble(root, "sixfold", ensemble_config(["X FP32 8"], outputs, steps, BATCHED))
    both = ["doubled FP32 8", "tripled FP32 8", "Y FP32 8"]
    steps.append(scale("threefold", "X", "tripled"))
    save_ensemble(root, "fork", ensemble_config(["X FP32 8"], both, steps, BATCHED))
    nested = [("fork", {"X": "X"}, {"tripled": "t"}), ("sixfold", {"X": "t"}, {"Y": "Y"})]
    save_ensemble(root, "nested", ensemble_config(["X FP32 8"], outputs, nested, BATCHED))
    save_sign(root, "sign", BATCHING)
    either: list[Step] = [
        ("sign", {"INPUT0": "X"}, {"POSITIVE": "positive"}),
        scale("twofold", "X", "Y"),
        scale("threefold", "X", "Y"),
    ]
    conditions = """parameters { key: "condition.twofold" value { string_value: "positive" } }
    parameters { key: "condition.threefold" value { string_value: "not positive" } }"""
    config = ensemble_config(["X FP32 8"], outputs, either, BATCHED + conditions)
    save_ensemble(root, "either", config)
    conditions = """parameters { key: "condition.twofold" value { string_value: "positive" } }
    parameters { key: "default.Y" value { string_value: "-1" } }"""
    config = ensemble_config(["X FP32 8"], outputs, either[:2], BATCHED + conditions)
    save_ensemble(root, "twofold_or_default", config)
    return root


@pytest.fixture(
    scope="module", params=["nereid", pytest.param("grpcio", marks=pytest.mark.nightly)]
)
def mesh(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("ensembles")
    repository = make_repository(root / "models")
    with running(repository, root / "log", f"--grpc-engine={request.param}") as it:
        yield it


def rows(*values: float) -> np.ndarray[Any, Any]:
    return np.repeat(np.array(values, np.float32), 8).reshape(-1, 8)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_client_gets_what_the_steps_make(mesh: Mesh, flavour: str) -> None:
    with connected(mesh, flavour) as client:
        wire_response = client.infer("sixfold", {"X": rows(1, 2)}, request_id="r")
        np.testing.assert_array_equal(wire_response.as_numpy("Y"), 6 * rows(1, 2))
        wire_response = client.infer("nested", {"X": rows(1)})
        np.testing.assert_array_equal(wire_response.as_numpy("Y"), 18 * rows(1))
        outputs = [client.module.InferRequestedOutput(name) for name in ("tripled", "doubled")]
        wire_response = client.infer("fork", {"X": rows(1)}, outputs=outputs)
        np.testing.assert_array_equal(wire_response.as_numpy("doubled"), rows(2))
        np.testing.assert_array_equal(wire_response.as_numpy("tripled"), rows(3))
        assert wire_response.as_numpy("Y") is None
        with pytest.raises(InferenceServerException, match="batch-size must be <= 8"):
            client.infer("sixfold", {"X": rows(*range(9))})
        assert client("is_model_ready", "nested")
        assert client.reported("get_model_metadata", "sixfold")["platform"] == "ensemble"


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_each_row_goes_through_the_steps_whose_conditions_hold(mesh: Mesh, flavour: str) -> None:
    with connected(mesh, flavour) as client:
        for values in ((1,), (-1,), (1, 2), (1, -1, -2, 3)):
            wire_response = client.infer("either", {"X": rows(*values)})
            expected = [value * (2 if value > 0 else 3) for value in values]
            np.testing.assert_array_equal(wire_response.as_numpy("Y"), rows(*expected))
            wire_response = client.infer("twofold_or_default", {"X": rows(*values)})
            expected = [value * 2 if value > 0 else -1 for value in values]
            np.testing.assert_array_equal(wire_response.as_numpy("Y"), rows(*expected))
    page = Samples(mesh.metrics().encode())
    for step in ("twofold", "threefold"):
        assert page.total("nereid_ensemble_steps_skipped_total", model="either", step=step)


@needs_analyzer
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_reports_the_steps(mesh: Mesh, protocol: str) -> None:
    reported = analyze(mesh, protocol, "sixfold", "--concurrency-range=8", *COUNTED)
    for model in ("twofold", "threefold"):
        assert f"{model}, version: 1" in reported


# ---- with models that respond many times

COUNTS = ["COUNT INT32 1", "SIZE INT32 1", "MODE STRING 1"]
REPEAT_STEP: Step = (
    "repeat",
    {"COUNT": "COUNT", "SIZE": "SIZE", "MODE": "MODE"},
    {"OUT": "number"},
)
ONE_INSTANCE = "instance_group [{ count: 1 kind: KIND_CPU }]"


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """`counted`: each response of the Python model goes through the ONNX model."""
    root = tmp_path_factory.mktemp("streaming")
    python_models.save(root / "models", "repeat", python_models.REPEAT)
    save_identity(root / "models", "through", DATATYPES["INT32"][0], BATCHED + ONE_INSTANCE)
    through: Step = ("through", {"INPUT0": "number"}, {"OUTPUT0": "OUT"})
    config = ensemble_config(COUNTS, ["OUT INT32 1"], [REPEAT_STEP, through])
    save_ensemble(root / "models", "counted", config)
    with running(root / "models", root / "log") as it:
        yield it


@pytest.mark.parametrize("count", [0, 1, 50])
def test_each_response_of_a_model_goes_through_the_steps_behind_it(
    streaming: Mesh, count: int
) -> None:
    with stream(streaming) as one:
        one.ask("counted", "then_end", count, request_id="q", enable_empty_final_response=True)
        numbers, final = [], False
        while not final:
            response = one.next()
            assert (response.id, response.model_name) == ("q", "counted")
            final = is_final(response)
            numbers += [number_of(response)] if response.outputs else []
        assert numbers == list(range(count))
    with events(streaming, "counted", COUNT=count, SIZE=0, MODE="later") as reported:
        assert [each["OUT"] for each in reported] == list(range(count))
