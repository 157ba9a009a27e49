"""Plans completed by what a server says of its models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.plan import InputPlan, ModelPlan, ShapeOption
from nereid_perf.inputs.resolution import resolve_plan

CONFIG = {"max_batch_size": 4}


class Documents:
    """A server's metadata of any model: one input, one output."""

    def __init__(self, config: dict[str, Any] | None) -> None:
        self._config = config

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        tensor = {"datatype": "FP32", "shape": [-1, 2]}
        inputs, outputs = [{"name": "X", **tensor}], [{"name": "Y", **tensor}]
        return {"name": model, "versions": [version], "inputs": inputs, "outputs": outputs}

    def config(self, model: str, version: str = "") -> dict[str, Any] | None:
        return self._config


SERVER = Documents(CONFIG)


def test_models_get_their_signatures() -> None:
    (model,) = resolve_plan(InputPlan("grpc", (ModelPlan("m"),)), SERVER).models
    assert model.signature is not None
    assert model.signature.max_batch_size == 4
    (model,) = resolve_plan(InputPlan("grpc", (ModelPlan("m"),)), Documents(None)).models
    assert model.signature is not None
    assert model.signature.max_batch_size == 0


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (ModelPlan("m", batch_size=5), "-b: model 'm' has a max_batch_size of 4, less than 5"),
        (ModelPlan("m", outputs=("Z",)), "--requested-output: model 'm' has no output 'Z', but Y"),
        (
            ModelPlan("m", shapes=(ShapeOption("Z", (1,)),)),
            "--shape: no model has an input 'Z', but X",
        ),
    ],
)
def test_what_does_not_fit_the_model(model: ModelPlan, text: str) -> None:
    with pytest.raises(InputError, match=text):
        resolve_plan(InputPlan("grpc", (model,)), SERVER)


def test_batch_size_of_a_model_that_does_not_batch() -> None:
    plan = InputPlan("grpc", (ModelPlan("m", batch_size=2),))
    with pytest.raises(InputError, match="-b: model 'm' does not batch"):
        resolve_plan(plan, Documents({"max_batch_size": 0}))


def test_no_model() -> None:
    with pytest.raises(InputError, match="no model: name one with -m NAME"):
        resolve_plan(InputPlan("grpc"), SERVER)


def test_traces_name_the_models_and_m_chooses_among_them(tmp_path: Path) -> None:
    lines = [{"at_s": 0, "model": name, "version": "3"} for name in ("a", "b", "a")]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    traces = (str(file),)
    found = resolve_plan(InputPlan("grpc", traces=traces), SERVER)
    assert [(each.name, each.version) for each in found.models] == [("a", "3"), ("b", "3")]
    chosen = ModelPlan("b", batch_size=2)
    (model,) = resolve_plan(InputPlan("grpc", (chosen,), traces=traces), SERVER).models
    assert (model.name, model.version, model.batch_size) == ("b", "3", 2)
    with pytest.raises(InputError, match="no request to the models of -m, but to a, b"):
        resolve_plan(InputPlan("grpc", (ModelPlan("c"),), traces=traces), SERVER)
    with pytest.raises(InputError, match="--shared-memory cannot be used with --replay"):
        resolve_plan(InputPlan("grpc", traces=traces, region_prefix="p"), SERVER)
