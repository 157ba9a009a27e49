"""config.pbtxt: a configuration that can be rendered, written and read again, or why not."""

from __future__ import annotations

import orjson
from google.protobuf import text_format

from nereid.core.errors import NereidError
from nereid.core.variables import Variables
from nereid.model_config import config_json, freeze_config, parse_config, validate_config
from nereid.model_config.instance_groups import with_instance_groups
from nereid.model_config.overlays import ConfigFile, read_config_files

MAX_BYTES = 2048
_TENSORS = (
    b'input [{ name: "x" data_type: TYPE_FP32 dims: [-1, 4] reshape { shape: [4] } }]\n'
    b"output { name: 'y' data_type: TYPE_STRING dims: 1 label_filename: \"labels.txt\" }\n"
)
_MODEL = b'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 8\n' + _TENSORS
SEEDS = [
    _MODEL,
    b"# a comment\n" + _MODEL + b"dynamic_batching { preferred_batch_size: [4, 8] "
    b"max_queue_delay_microseconds: 100 priority_levels: 2 default_priority_level: 1 "
    b"priority_queue_policy { key: 1 value { timeout_action: DELAY } } }",
    _MODEL + b"instance_group [{ count: 2 kind: KIND_CPU rate_limiter { priority: 2 } }]"
    b"version_policy: { specific { versions: [1, 3] } } response_cache { enable: true }",
    _MODEL + b'parameters { key: "k" value { string_value: "\\303\\251\\x41" } }'
    b"optimization { graph { level: 1 } execution_accelerators { cpu_execution_accelerator {"
    b' name: "openvino" parameters { key: "a" value: "b" } } } }',
    b'name: "e" platform: "ensemble" ' + _TENSORS + b"ensemble_scheduling { step [{ model_name: "
    b'"a" model_version: -1 input_map { key: "i" value: "x" } '
    b'output_map { key: "o" value: "y" } }] }',
    b'name: "e" platform: "ensemble" ' + _TENSORS + b"ensemble_scheduling { step [{ model_name: "
    b'"a" model_version: -1 input_map { key: "i" value: "x" } '
    b'output_map { key: "o" value: "c" } }, { model_name: "b" input_map { key: "i" value: "x" } '
    b'output_map { key: "o" value: "y" } }] } parameters { key: "condition.b" value { '
    b"string_value: 'c >= 1' } } parameters: [ < key: \"default.y\" 'x' value: < string_value: "
    b'"0" > > ]',
    _MODEL + b'model_warmup [{ name: "w" batch_size: 1 inputs { key: "x" value { data_type: '
    b"TYPE_FP32 dims: 4 zero_data: true } } }]",
    _MODEL + b"sequence_batching { max_sequence_idle_microseconds: 5 oldest { "
    b'max_candidate_sequences: 4 } control_input [{ name: "S" control [{ kind: '
    b"CONTROL_SEQUENCE_START fp32_false_true: [0, 1] }] }] }",
]
WORDS = [
    *(b"name: ", b"dims: ", b"data_type: TYPE_", b"max_batch_size: ", b"input {", b"output {"),
    *(b"dynamic_batching {", b"instance_group {", b"ensemble_scheduling {", b"}", b"]", b'"'),
    *(
        b"version_policy {",
        b"model_warmup {",
        b"optimization {",
        b"parameters {",
        b"key:",
        b"value:",
    ),
    *(b"18446744073709551616", b"-1", b"1e400", b"nan", b"\\xff", b"#", b"TYPE_FP32", b"KIND_GPU"),
]


def run(data: bytes) -> None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    try:
        config = parse_config(text, model_name="m")
    except NereidError as error:
        assert error.message
        return
    written = text_format.MessageToString(config)
    assert text_format.MessageToString(parse_config(written, model_name="m")) == written
    orjson.loads(config_json(config))
    # Merged over nothing, each field is as protobuf has read it.
    files = [ConfigFile("config.pbtxt", "", False), ConfigFile("config.o.pbtxt", text, True)]
    merged = read_config_files(files, model_name="m", variables=Variables()).config
    assert text_format.MessageToString(merged) == written
    try:
        validate_config(config)
        grouped = with_instance_groups(config, gpu_ids=[0])
        freeze_config(grouped)
    except NereidError as error:
        assert error.message
