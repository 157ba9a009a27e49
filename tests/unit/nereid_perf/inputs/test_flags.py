"""Flags, the mix file, and the plans that they make."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from nereid.config.settings_reader import read_settings
from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.flags import (
    InputFlags,
    WeightedModel,
    id_range,
    number_range,
    percentage,
    request_parameter,
    shape_option,
    weighted_model,
)
from nereid_perf.inputs.plan import ModelPlan, ShapeOption


def flags(*argv: str) -> InputFlags:
    return read_settings(InputFlags, argv, {}, "nereid perf")


def test_perf_analyzers_command_line() -> None:
    argv = (
        "-m resnet -x 2 -b 4 --input-data data.json --input-data dir --shape X:3,224 "
        "--string-length 5 --string-data a --random-seed 3 --input-tensor-format json "
        "--output-tensor-format json --request-parameter a:b:c:string --sequence-length 9 "
        "--sequence-length-variation 50 --num-of-sequences 3 --sequence-id-range 5:9 "
        "--shared-memory system --output-shared-memory-size 77"
    )
    plan = flags(*argv.split()).input_plan("http")
    assert plan.models == (
        ModelPlan(
            "resnet",
            "2",
            batch_size=4,
            input_data=("data.json", "dir"),
            shapes=(ShapeOption("X", (3, 224)),),
            string_length=5,
            string_data="a",
            parameters=(("a", "b:c"),),
            sequence_length=9,
            sequence_length_variation=0.5,
        ),
    )
    assert (plan.seed, plan.sequences, plan.sequence_ids) == (3, 3, (5, 8))
    assert (plan.has_json_inputs, plan.has_json_outputs, plan.output_region_bytes) == (
        True,
        True,
        77,
    )
    assert plan.region_prefix.startswith("nereid-perf-")
    assert plan.region_prefix != flags(*argv.split()).input_plan("http").region_prefix


def test_defaults() -> None:
    plan = flags("-m", "a").input_plan("grpc")
    assert plan.models == (ModelPlan("a"),)
    assert plan.sequence_ids == (1, (1 << 32) - 1)
    assert not plan.request_ids
    assert plan.region_prefix == ""
    assert flags("-m", "a").input_plan("grpc", request_ids=True).request_ids
    assert flags("-m", "a", "--request-ids").input_plan("grpc").request_ids


def test_long_names_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    given = flags("--model-name", "a", "--model-version", "2", "--batch-size", "3")
    assert given == flags("-m", "a", "-x", "2", "-b", "3")
    with pytest.raises(SystemExit):
        flags("-m", "a", "--shape", "X")
    assert "--shape: 'X': expected NAME:SIZE,SIZE" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        flags("--help")
    assert "NAME=WEIGHT" in capsys.readouterr().out


def test_mix_of_flags() -> None:
    plan = flags("-m", "a=3", "-m", "b", "-b", "2").input_plan("grpc")
    assert [(each.name, each.weight, each.batch_size) for each in plan.models] == [
        ("a", Fraction(3), 2),
        ("b", Fraction(1), 2),
    ]


def test_mix_file_overrides_flags_for_each_model(tmp_path: Path) -> None:
    file = tmp_path / "mix.json"
    models = [
        {"model": "a", "weight": 0.5, "shape": ["X:1,2"], "batch-size": 4, "input_data": "zero"},
        {"model": "b=1", "request_parameter": ["k:1:int"], "sequence_length_variation": 10},
    ]
    file.write_text(json.dumps({"models": models}))
    a, b = flags("--mix", str(file), "--string-length", "3").input_plan("grpc").models
    assert a == ModelPlan(
        "a",
        weight=Fraction(1, 2),
        shapes=(ShapeOption("X", (1, 2)),),
        batch_size=4,
        input_data=("zero",),
        string_length=3,
    )
    assert (b.name, b.parameters, b.sequence_length_variation) == ("b=1", (("k", 1),), 0.1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ("[]", r"expected \{"),
        ('{"models": []}', r"expected \{"),
        ('{"models": [3]}', r"models\[0\]: expected an object with a model's name"),
        ('{"models": [{"model": 3}]}', r"models\[0\]: expected an object"),
        ('{"models": [{"model": "a"}, {"model": "b", "wait": 1}]}', r"models\[1\]: unknown member"),
        ('{"models": [{"model": "a", "weight": -1}]}', r"models\[0\]: weight: expected a positive"),
        ('{"models": [{"model": "a", "batch_size": 0}]}', "batch_size: expected a whole number"),
        (
            '{"models": [{"model": "a", "batch_size": [1, 2]}]}',
            "batch_size: expected a value as of",
        ),
        ('{"models": [{"model": "a", "shape": {}}]}', "shape: expected a value as of --shape"),
        ('{"models": [{"model": "a", "shape": ["X"]}]}', "shape: expected NAME:SIZE"),
    ],
)
def test_malformed_mix_files(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "mix.json"
    file.write_text(text)
    with pytest.raises(InputError, match=f"mix.json: .*{reason}") as caught:
        flags("--mix", str(file)).input_plan("grpc")
    assert str(file) in str(caught.value)


def test_flags_that_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leave -m out"):
        flags("--mix", "x", "-m", "a").input_plan("grpc")
    with pytest.raises(InputError, match="none: cannot be read: No such file"):
        flags("--mix", str(tmp_path / "none")).input_plan("grpc")
    with pytest.raises(InputError, match="--sequence-id-range: expected at least 5 ids"):
        flags("-m", "a", "--num-of-sequences=5", "--sequence-id-range=1:5").input_plan("grpc")


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (weighted_model, "a", WeightedModel("a")),
        (weighted_model, "a=b=2.5", WeightedModel("a=b", Fraction(5, 2))),
        (shape_option, "X:1", ShapeOption("X", (1,))),
        (shape_option, "in:0:3,4", ShapeOption("in:0", (3, 4))),
        (shape_option, "in:0:FP32:3,4", ShapeOption("in:0", (3, 4), "FP32")),
        (shape_option, "X:", ShapeOption("X", ())),
        (shape_option, "FP32:1", ShapeOption("FP32", (1,))),
        (request_parameter, "a:-1:int", ("a", -1)),
        (request_parameter, "a:1.5:float", ("a", 1.5)),
        (request_parameter, "a:true:bool", ("a", True)),
        (request_parameter, "a::string", ("a", "")),
        (number_range, "-5:7", (-5, 7)),
        (id_range, "5", (5, (1 << 32) - 1)),
        (id_range, "5:6", (5, 5)),
        (percentage, "12.5", 12.5),
    ],
)
def test_values(parse: Callable[[str], Any], text: str, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "reason"),
    [
        (weighted_model, "", "expected NAME"),
        (weighted_model, "a=0", "expected a weight"),
        (weighted_model, "a=x", "expected a weight"),
        (weighted_model, "=1", "expected NAME"),
        (shape_option, "X", "expected NAME:SIZE"),
        (shape_option, ":1", "expected NAME:SIZE"),
        (shape_option, "X:-1", "expected NAME:SIZE"),
        (shape_option, "X:1,,2", "expected NAME:SIZE"),
        (request_parameter, "a", "expected NAME:VALUE:TYPE"),
        (request_parameter, "a:1:number", "with a type of string, int"),
        (request_parameter, "a:x:int", "'x' is no int"),
        (request_parameter, "a:99999999999999999999:int", "expected a number of at most"),
        (request_parameter, "priority:1:int", "use --request-priority"),
        (number_range, "5:1", "expected LOW:HIGH"),
        (id_range, "0:5", "expected START"),
        (id_range, "5:5", "expected START"),
        (percentage, "101", "percentage"),
        (percentage, "x", "percentage"),
    ],
)
def test_values_that_are_refused(parse: Callable[[str], Any], text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(text)
