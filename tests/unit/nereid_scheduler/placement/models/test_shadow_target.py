"""Targets of shadows that cannot be compared, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nereid.comparison.shadow import Shadow
from nereid.pb import model_config_pb2 as config_pb
from nereid_scheduler.placement.models.catalogue import Catalogue
from nereid_scheduler.placement.models.shadow_target import target_problem
from tests.support.scheduler.world import served_model, served_version

Change = Callable[[config_pb.ModelConfig], Any]


def config(name: str, change: Change = lambda _: None) -> config_pb.ModelConfig:
    made = config_pb.ModelConfig(name=name, max_batch_size=4)
    made.input.add(name="i", data_type=config_pb.TYPE_FP32, dims=[-1])
    made.output.add(name="o", data_type=config_pb.TYPE_FP32, dims=[2])
    change(made)
    return made


def problem(to: str, change: Change = lambda _: None, elsewhere: str = "") -> str:
    served = [
        served_version("m", 1, shown=config("m")),
        served_version("m", 2, state="loading"),
        served_version("m", 3, shown=config("m")),
    ]
    other = served_version("n", shown=config("n", change))
    catalogue = Catalogue([served_model("m", *served), served_model("n", other)])
    return target_problem(catalogue, "m", Shadow(to), lambda name: name == elsewhere)


@pytest.mark.parametrize(
    "to", ["version:1", "version:3", "model:n", "url:grpc://h:1/m", "model:away"]
)
def test_nothing_is_wrong(to: str) -> None:
    assert problem(to, elsewhere="away") == ""


@pytest.mark.parametrize("to", ["version:2", "version:4", "model:away"])
def test_what_is_not_ready(to: str) -> None:
    assert "is not ready" in problem(to)


def _add_input(made: config_pb.ModelConfig, *, optional: bool) -> None:
    made.input.add(name="j", data_type=config_pb.TYPE_FP32, dims=[1], optional=optional)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda made: setattr(made, "max_batch_size", 0), "batches, and the shadow does not"),
        (lambda made: made.sequence_batching.SetInParent(), "has sequences"),
        (lambda made: made.input[0].dims.append(2), "'i' is FP32 [-1], and FP32 [-1,2]"),
        (lambda made: setattr(made.output[0], "data_type", config_pb.TYPE_INT8), "INT8"),
        (lambda made: made.output.pop(), "no output 'o'"),
        (lambda made: setattr(made.input[0], "name", "x"), "needs an input 'x'"),
        (lambda made: _add_input(made, optional=False), "needs an input 'j'"),
    ],
)
def test_other_signatures(change: Change, reason: str) -> None:
    assert reason in problem("model:n", change)


def test_signatures_that_fit() -> None:
    def widen(made: config_pb.ModelConfig) -> None:
        made.output[0].dims[0] = -1
        made.output.add(name="more", data_type=config_pb.TYPE_FP32, dims=[1])
        _add_input(made, optional=True)

    assert problem("model:n", widen) == ""
