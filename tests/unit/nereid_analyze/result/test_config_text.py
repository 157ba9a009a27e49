import pytest

from nereid.model_config import parse_config
from nereid_analyze.result.config_text import ConfigTextError, changed_text
from nereid_analyze.space.candidate import DELAY, INSTANCES, MAX_BATCH, PREFERRED
from nereid_analyze.space.override import OFF

_TEXT = """\
# The author's own words.
name: "m"  # said twice
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]  # max_batch_size: 5 } stays
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
dynamic_batching { preferred_batch_size: [ 8 ] }
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
parameters { key: "text" value { string_value: "a } # \\" b" } }
"""
_SERVED = {
    "instance_group": [{"name": "m_0", "kind": "KIND_CPU", "count": 1}],
    "dynamic_batching": {},
    "max_batch_size": 8,
}


def _changed(**values: object) -> str:
    named = {
        "batch": MAX_BATCH,
        "instances": INSTANCES,
        "delay": DELAY,
        "preferred": PREFERRED,
        "threads": "parameters.intra_op_thread_count",
    }
    given = {named[name]: value for name, value in values.items()}
    return changed_text(_TEXT, "m", given, _SERVED, cpu_only=False)  # type: ignore[arg-type]


def test_only_the_fields_that_change_are_written_anew() -> None:
    made = _changed(batch=16)
    before, after = _TEXT.splitlines(), made.splitlines()
    assert [line for line in before if line not in after] == ["max_batch_size: 8"]
    assert [line for line in after if line not in before] == ["max_batch_size: 16"]


def test_a_new_field_comes_at_the_end_with_the_servers_kind() -> None:
    made = _changed(instances=3)
    assert made.startswith(_TEXT)
    config = parse_config(made, model_name="m")
    assert [(each.count, each.kind) for each in config.instance_group] == [(3, 2)]


def test_what_no_longer_fits_goes() -> None:
    config = parse_config(_changed(batch=4, delay=500), model_name="m")
    assert list(config.dynamic_batching.preferred_batch_size) == []
    assert config.dynamic_batching.max_queue_delay_microseconds == 500


def test_a_batcher_can_be_taken_away_with_its_line() -> None:
    made = _changed(delay=OFF)
    assert "dynamic_batching" not in made
    assert "\n\n" not in made


def test_one_parameter_changes_and_the_other_does_not() -> None:
    config = parse_config(_changed(threads=2), model_name="m")
    assert config.parameters["intra_op_thread_count"].string_value == "2"
    assert config.parameters["text"].string_value == 'a } # " b'


def test_preferred_sizes_follow_the_largest_batch() -> None:
    config = parse_config(_changed(batch=32, preferred="half"), model_name="m")
    assert list(config.dynamic_batching.preferred_batch_size) == [16, 32]


def test_a_model_without_a_file_gets_what_changes() -> None:
    made = changed_text("", "m", {INSTANCES: 2, MAX_BATCH: 4}, _SERVED, cpu_only=False)
    config = parse_config(made, model_name="m")
    assert (config.max_batch_size, config.instance_group[0].count) == (4, 2)


def test_a_file_that_is_none_is_an_error() -> None:
    with pytest.raises(ConfigTextError, match="no field named"):
        changed_text("max_batch: 3", "m", {MAX_BATCH: 4}, _SERVED, cpu_only=False)
