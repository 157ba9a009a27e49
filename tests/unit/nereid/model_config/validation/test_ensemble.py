"""The rules for an ensemble's steps."""

from __future__ import annotations

import pytest

from nereid.core.errors import InvalidArgument
from nereid.model_config import complete_config, freeze_config, parse_config


def check(text: str, platform: str = "ensemble") -> str | None:
    config = parse_config(f'platform: "{platform}" {text}', model_name="e")
    try:
        freeze_config(complete_config(config, model_name="e", description=None))
    except InvalidArgument as error:
        return error.message
    return None


def ensemble(inputs: str, outputs: str, *steps: tuple[str, str]) -> str:
    """Tensors by name, separated by blanks; a step is what it reads and what it writes."""
    text = ""
    for role, names in (("input", inputs), ("output", outputs)):
        for name in names.split():
            text += f'{role} {{ name: "{name}" data_type: TYPE_FP32 dims: 1 }} '
    for index, (reads, writes) in enumerate(steps):
        text += f'ensemble_scheduling {{ step {{ model_name: "m{index}" ' if index == 0 else ""
        text += f'step {{ model_name: "m{index}" ' if index else ""
        for field, names in (("input_map", reads), ("output_map", writes)):
            for number, name in enumerate(names.split()):
                text += f'{field} {{ key: "t{number}" value: "{name}" }} '
        text += "} "
    return f"{text} }}"


CHAIN = ensemble("x", "y", ("x", "a"), ("a", "y"))


@pytest.mark.parametrize(
    "text",
    [
        CHAIN,
        ensemble("x", "y", ("a", "y"), ("x", "a")),
        ensemble("x z", "y w", ("x", "a b"), ("a z", "y"), ("b a", "w")),
        ensemble("x", "a y", ("x", "a"), ("a", "y")),
    ],
)
def test_a_connected_graph_is_accepted(text: str) -> None:
    assert check(text) is None


NOT_CONNECTED = (
    "output 'y' for ensemble 'e' is not written: at least one of its depending tensors, '{}', is "
    "not connected"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ensemble_scheduling { }", "must specify 'step' for ensemble 'e'"),
        (
            CHAIN + " instance_group { }",
            "instance group should not be specified for ensemble 'e'",
        ),
        (CHAIN + " optimization { }", "optimization should not be specified for ensemble 'e'"),
        (CHAIN + " model_warmup { }", "model_warmup can not be specified for ensemble 'e'"),
        (
            CHAIN.replace('model_name: "m1"', ""),
            "must specify 'model_name' in step 1 of ensemble 'e'",
        ),
        (
            ensemble("x", "y", ("", "y")),
            "must specify 'input_map' in step 0 of ensemble 'e'",
        ),
        (
            ensemble("x", "y", ("x", "")),
            "must specify 'output_map' in step 0 of ensemble 'e'",
        ),
        (
            ensemble("x", "y", ("x", "y"), ("x", "y")),
            "ensemble tensor 'y' can appear in an output map only once for ensemble 'e' step 1",
        ),
        (
            ensemble("x z", "y", ("x", "y")),
            "ensemble input 'z' for ensemble e is not used",
        ),
        (
            ensemble("x", "y z", ("x", "y")),
            "ensemble output 'z' for ensemble e is not used",
        ),
        (
            ensemble("x", "y", ("x a", "y")),
            NOT_CONNECTED.format("a"),
        ),
        (
            ensemble("x", "y", ("x b", "y"), ("a", "b")),
            NOT_CONNECTED.format("a"),
        ),
        (
            ensemble("x", "y z", ("x", "y"), ("z", "a")),
            "output 'z' for ensemble 'e' is not written",
        ),
        (
            ensemble("x", "y", ("x a", "b y"), ("b", "a")),
            NOT_CONNECTED.format("b"),
        ),
        (
            ensemble("x", "y", ("x", "y a")),
            "ensemble tensor 'a' is unused in ensemble 'e'",
        ),
        (
            ensemble("x", "y", ("x", "y"), ("b", "a")),
            "ensemble tensor 'a' is unused in ensemble 'e'",
        ),
    ],
)
def test_invalid_ensembles_are_refused(text: str, expected: str) -> None:
    assert check(text) == expected


def test_only_an_ensemble_has_steps() -> None:
    assert check(CHAIN, platform="onnxruntime_onnx") == (
        "ensemble scheduling cannot be set for model 'e' whose platform is not ensemble"
    )
