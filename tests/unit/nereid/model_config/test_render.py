"""The config reply and the metadata reply."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nereid.model_config import (
    complete_config,
    config_json,
    fill_backend,
    freeze_config,
    metadata,
    parse_config,
    with_instance_groups,
)
from nereid.pb import model_config_pb2

# Configurations, and what Triton 2.51 with its Python backend replied for them.
REPLIES = json.loads(Path(__file__).with_name("triton_replies.json").read_text("utf-8"))


def numbers(value: Any) -> Any:
    """Triton forgets to make numbers of a few 64-bit fields."""
    if isinstance(value, dict):
        return {
            key: [int(dim) for dim in entry] if key in ("dim", "dims") else numbers(entry)
            for key, entry in value.items()
        }
    return [numbers(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", REPLIES)
def test_the_reply_is_tritons(name: str) -> None:
    config = parse_config(REPLIES[name]["config"], model_name=name)
    if config.platform != "ensemble":
        fill_backend(config, model_name=name, filenames=["model.py"])
    completed = complete_config(config, model_name=name, description=None)
    frozen = freeze_config(completed)
    reply = json.loads(config_json(with_instance_groups(frozen.proto, gpu_ids=())))
    expected = numbers(REPLIES[name]["reply"])
    if name == "ens":
        # Newer than that Triton; and derived from the members' configurations.
        del reply["ensemble_scheduling"]["max_inflight_requests"]
        del expected["model_transaction_policy"]
    assert reply == expected
    assert list(reply) == list(expected)


def test_the_reply_is_compact_utf_8() -> None:
    config = model_config_pb2.ModelConfig(name="ü")
    assert config_json(config).startswith('{"name":"ü","platform":"",'.encode())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1, "0.1"),
        (1.0, "1"),
        (-2.0, "-2"),
        (16777217.0, "16777216"),
        (1 / 3, "0.33333334"),
        (1e30, "1e+30"),
        (3.4028235e38, "3.4028234663852886e+38"),
        (float("inf"), '"Infinity"'),
        (float("-inf"), '"-Infinity"'),
        (float("nan"), '"NaN"'),
    ],
)
def test_a_float_is_shown_as_short_as_it_can_be(value: float, expected: str) -> None:
    config = model_config_pb2.ModelConfig()
    config.sequence_batching.direct.minimum_slot_utilization = value
    assert f'"minimum_slot_utilization":{expected}}}'.encode() in config_json(config)


def test_a_double_keeps_all_its_digits() -> None:
    config = model_config_pb2.ModelConfig()
    config.model_metrics.metric_control.add().histogram_options.buckets.extend([1 / 3, 2, 2.5])
    assert b'"buckets":[0.3333333333333333,2,2.5]' in config_json(config)


def test_an_enums_number_without_a_name_is_shown() -> None:
    config = model_config_pb2.ModelConfig()
    config.input.add().data_type = 99  # type: ignore[assignment]
    assert b'"data_type":99' in config_json(config)


@pytest.mark.parametrize(("max_batch_size", "batch"), [(0, []), (1, [-1])])
def test_metadata_has_the_batch_dimension(max_batch_size: int, batch: list[int]) -> None:
    config = parse_config(
        f'backend: "python" max_batch_size: {max_batch_size} '
        'input { name: "x" data_type: TYPE_STRING dims: [ 2, -1 ] } '
        'output { name: "y" data_type: TYPE_FP32 dims: 1 }',
        model_name="m",
    )
    frozen = freeze_config(complete_config(config, model_name="m", description=None))
    reply = metadata(frozen, [1, 3])
    assert (reply.name, list(reply.versions), reply.platform) == ("m", ["1", "3"], "python")
    assert [(t.name, t.datatype, list(t.shape)) for t in reply.inputs] == [
        ("x", "BYTES", [*batch, 2, -1])
    ]
    assert [(t.name, t.datatype, list(t.shape)) for t in reply.outputs] == [
        ("y", "FP32", [*batch, 1])
    ]


def test_metadata_prefers_the_platform() -> None:
    config = parse_config('backend: "onnxruntime"', model_name="m")
    frozen = freeze_config(complete_config(config, model_name="m", description=None))
    assert metadata(frozen, []).platform == "onnxruntime_onnx"
