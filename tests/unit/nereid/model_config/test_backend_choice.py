"""Which backend a model is for."""

from __future__ import annotations

import pytest

from nereid.core.errors import InvalidArgument
from nereid.model_config import fill_backend, model_file_backend, parse_config


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("model.onnx", ("onnxruntime", "onnxruntime_onnx")),
        ("model.plan", ("tensorrt", "tensorrt_plan")),
        ("model.pt", ("pytorch", "pytorch_libtorch")),
        ("model.pt2", ("pytorch", "torch_aoti")),
        ("model.xml", ("openvino", "")),
        ("model.py", ("python", "")),
        ("model.savedmodel", ("tensorflow", "tensorflow_savedmodel")),
        ("model.graphdef", ("tensorflow", "tensorflow_graphdef")),
        ("weights.bin", None),
    ],
)
def test_a_model_file_stands_for_its_backend(
    filename: str, expected: tuple[str, str] | None
) -> None:
    assert model_file_backend(["README", filename]) == expected


def test_of_several_model_files_the_first_in_tritons_order_counts() -> None:
    assert model_file_backend(["model.py", "model.onnx"]) == ("onnxruntime", "onnxruntime_onnx")


@pytest.mark.parametrize(
    ("text", "files", "expected"),
    [
        ("", ["model.onnx"], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("", ["model.py"], ("python", "", "model.py")),
        ('backend: "onnxruntime"', [], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('platform: "onnxruntime_onnx"', [], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        (
            'platform: "onnxruntime_onnx" default_model_filename: "a.onnx"',
            [],
            ("onnxruntime", "onnxruntime_onnx", "a.onnx"),
        ),
        (
            'default_model_filename: "model.onnx"',
            [],
            ("onnxruntime", "onnxruntime_onnx", "model.onnx"),
        ),
        ('backend: "onnxruntime" platform: "x"', [], ("onnxruntime", "x", "model.onnx")),
        ('backend: "pytorch"', [], ("pytorch", "pytorch_libtorch", "model.pt")),
        ('backend: "pytorch"', ["model.pt2"], ("pytorch", "pytorch_libtorch", "model.pt")),
        ('platform: "torch_aoti"', [], ("pytorch", "torch_aoti", "model.pt2")),
        (
            'backend: "pytorch" platform: "torch_aoti"',
            ["model.pt"],
            ("pytorch", "torch_aoti", "model.pt2"),
        ),
        ("", ["model.pt2"], ("pytorch", "torch_aoti", "model.pt2")),
        ('backend: "pytorch" runtime: "model.py"', [], ("pytorch", "pytorch_libtorch", "")),
        ('backend: "mine"', ["model.onnx"], ("mine", "", "")),
        ('platform: "ensemble"', [], ("", "ensemble", "")),
        ('default_model_filename: "a.bin"', ["model.onnx"], ("", "", "a.bin")),
        ('backend: "tensorflow"', [], ("tensorflow", "", "")),
        (
            'backend: "tensorflow"',
            ["model.graphdef"],
            ("tensorflow", "tensorflow_graphdef", "model.graphdef"),
        ),
    ],
)
def test_what_is_missing_is_filled_in(
    text: str, files: list[str], expected: tuple[str, str, str]
) -> None:
    config = parse_config(text, model_name="m")
    fill_backend(config, model_name="m", filenames=files)
    assert (config.backend, config.platform, config.default_model_filename) == expected
    assert config.name == "m"


def test_a_written_name_is_kept() -> None:
    config = parse_config('name: "other" backend: "mine"', model_name="m")
    fill_backend(config, model_name="m")
    assert config.name == "other"


def test_a_models_name_can_determine_the_backend() -> None:
    config = parse_config("", model_name="m.identity")
    fill_backend(config, model_name="m.identity")
    assert (config.backend, config.default_model_filename) == ("identity", "model.identity")


def test_an_undetermined_backend_is_an_error() -> None:
    with pytest.raises(InvalidArgument) as caught:
        fill_backend(parse_config("", model_name="m"), model_name="m", filenames=["weights.bin"])
    assert caught.value.message == (
        "Invalid model name: Could not determine backend for model 'm' with no backend in model "
        "configuration. Expected model name of the form 'model.<backend_name>'."
    )
