"""What a request causes behind its parser: loads of configurations, control calls, responses, and
messages that a slow reader leaves with the server.

The input is what a client sends, or what a model returned for it. Numbers ask for much in few
bytes: inputs that have them grow by spaces alone, and what they cost has to be within a target's
fixed amount.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import hpack

from nereid.core.errors import NereidError
from nereid.core.tensors.tensors import NUMPY_TYPE
from nereid.model_config import config_json, freeze_config, validate_config
from nereid.model_config.validation.costs import MAX_WARMUP_BYTES
from nereid.pb import kserve_pb2
from nereid.rpc.http2.limits import Limits
from nereid_executor.batch.warmup import read_samples
from nereid_gateway.fronts.http.endpoints import (
    generate_schema,
    repository,
    shared_memory,
    trace_and_log,
)
from nereid_gateway.fronts.http.inference import infer_response
from nereid_gateway.fronts.http.inference.infer_request import ResponseForm
from nereid_gateway.server import content_coding
from nereid_scheduler.batching.batcher import make_batcher
from nereid_scheduler.core.models.overrides import parse_override
from tests.fuzz.cost.growing import Growing, Target
from tests.support.rpc.connection_harness import ServerHarness
from tests.support.rpc.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    SETTINGS,
    frame,
    message,
    settings,
    to,
)

_READ_BYTES = 1 << 18

# --- loads


def _load(data: bytes) -> None:
    """What a scheduler and an executor make of a configuration, short of the model itself."""
    with suppress(NereidError):
        draft = parse_override(data.decode("utf-8", "replace"))
        draft.name = "m"
        validate_config(draft)
        config_json(draft)
        make_batcher(freeze_config(draft))
        for _ in read_samples(draft, Path("/nonexistent")):
            pass


_TENSOR: dict[str, Any] = {"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}
_CONFIG: dict[str, Any] = {
    "backend": "identity",
    "max_batch_size": 8,
    "input": [_TENSOR],
    "output": [{**_TENSOR, "name": "y"}],
}
_HUGE = (1 << 31) - 1


def _numbers(name: str, **fields: Any) -> Growing:
    return Growing(name, b" ", json.dumps(_CONFIG | fields).encode())


def _warmup(batch_size: int, elements: int, count: int = 1) -> list[dict[str, Any]]:
    tensor = {"data_type": "TYPE_FP32", "dims": [elements], "random_data": True}
    return [{"name": "s", "batch_size": batch_size, "count": count, "inputs": {"x": tensor}}]


def _sequences(**fields: Any) -> dict[str, Any]:
    return {"max_sequence_idle_microseconds": _HUGE, **fields}


def _state(elements: int) -> dict[str, Any]:
    names = {"input_name": "a", "output_name": "b"}
    initial = {"name": "i", "data_type": "TYPE_FP32", "dims": [elements], "zero_data": True}
    return {**names, "data_type": "TYPE_FP32", "dims": [elements], "initial_state": [initial]}


LOAD = Target(
    "loads",
    _load,
    (
        _numbers("a huge batch size", max_batch_size=_HUGE),
        _numbers("many instances", instance_group=[{"count": _HUGE}]),
        _numbers("many groups", instance_group=[{"count": 100}] * 100),
        _numbers("a warm-up of many requests", model_warmup=_warmup(_HUGE, 1)),
        _numbers("a warm-up of the largest size", model_warmup=_warmup(1, MAX_WARMUP_BYTES // 4)),
        _numbers("a warm-up of a larger size", model_warmup=_warmup(1, 1 << 40)),
        _numbers("a long warm-up", model_warmup=_warmup(8, 8, _HUGE)),
        _numbers(
            "candidates", sequence_batching=_sequences(oldest={"max_candidate_sequences": _HUGE})
        ),
        _numbers("slots", max_batch_size=_HUGE, sequence_batching=_sequences(direct={})),
        _numbers("states", sequence_batching=_sequences(direct={}, state=[_state(1 << 40)])),
        _numbers(
            "priorities",
            dynamic_batching={"priority_levels": _HUGE, "default_priority_level": _HUGE},
        ),
        _numbers("dims", input=[{**_TENSOR, "dims": [1 << 62] * 64}]),
        Growing(
            "preferred sizes",
            b"1,",
            json.dumps(_CONFIG).encode()[:-1] + b',"dynamic_batching":{"preferred_batch_size":[',
            b"1]}}",
        ),
        Growing(
            "samples of a warm-up",
            json.dumps(_warmup(8, 1024)).encode()[1:-1] + b",",
            json.dumps(_CONFIG).encode()[:-1] + b',"model_warmup":[',
            json.dumps(_warmup(8, 1024)).encode()[1:] + b"}",
        ),
        Growing(
            "states of sequences",
            json.dumps(_state(8)).encode() + b",",
            json.dumps(_CONFIG).encode()[:-1] + b',"sequence_batching":{"state":[',
            json.dumps(_state(8)).encode() + b"]}}",
        ),
    ),
    words=(
        *(b'"max_batch_size":', b'"count":', b'"batch_size":', b'"dims":[', b"1" + b"0" * 9, b","),
        *(b"{", b"}", b"[", b"]", b'"direct":{}', b'"oldest":{', b'"max_candidate_sequences":'),
        *(b'"priority_levels":', b'"sequence_batching":{', b'"model_warmup":[', b"9" * 18, b"-1"),
    ),
    # A message of protobuf's for a few bytes, and its JSON.
    steps_per_byte=400,
    memory_per_byte=1500,
    largest_bytes=1 << 16,
    fixed_steps=20_000_000,
    # The warm-up's tensor and the message that it is sent in.
    fixed_bytes=4 * MAX_WARMUP_BYTES,
)

# --- control calls


def _control(data: bytes) -> None:
    for read in (
        lambda: repository._load_request(data, "m", ""),
        lambda: repository._wants_ready(data),
        lambda: repository._unload_request(data, "m", ""),
        lambda: trace_and_log._trace_request(data, "m"),
        lambda: trace_and_log._log_request(data),
        lambda: shared_memory._registration(data, "system", "r"),
        lambda: shared_memory._registration(data, "cuda", "r"),
    ):
        with suppress(NereidError):
            read()


CONTROL = Target(
    "control calls",
    _control,
    (
        Growing("trace levels", b'"TIMESTAMPS",', b'{"trace_level":[', b'"OFF"]}'),
        Growing("a trace file", b"x", b'{"trace_file":"', b'"}'),
        Growing("a rate", b"9", b'{"trace_rate":"', b'"}'),
        Growing("a count", b"9", b'{"trace_count":"-', b'"}'),
        Growing("settings of a log", b'"log_info":true,', b"{", b'"log_verbose_level":1}'),
        Growing("unknown settings", lambda number: b'"k%d":1,' % number, b"{", b'"log_info":true}'),
        Growing(
            "files",
            lambda number: b'"file:%d":"eA==",' % number,
            b'{"parameters":{',
            b'"config":"{}"}}',
        ),
        Growing("a file", b"QUFB", b'{"parameters":{"file:a":"', b'"}}'),
        Growing("a file that is none", b"=", b'{"parameters":{"file:a":"', b'"}}'),
        Growing("a configuration", b" ", b'{"parameters":{"config":"{', b'}"}}'),
        Growing("a region", b"k", b'{"key":"', b'","offset":0,"byte_size":9223372036854775807}'),
        Growing("a handle", b"QUFB", b'{"raw_handle":{"b64":"', b'"},"device_id":0,"byte_size":1}'),
    ),
    words=(
        b'"trace_level":[',
        b'"key":',
        b'"parameters":{',
        b'"file:',
        b'"config":',
        b"{",
        b"}",
        b'"',
        b",",
        b"9",
        b"-",
        b"QUFB",
    ),
    steps_per_byte=100,
    memory_per_byte=300,
    largest_bytes=1 << 20,
)

# --- responses

_DATATYPE_BYTES = 8


def _respond(data: bytes) -> None:
    """A response whose output is the input behind its datatype, in all ways of sending it."""
    datatype = data[:_DATATYPE_BYTES].strip().decode("latin-1")
    raw = data[_DATATYPE_BYTES:]
    if datatype != "BYTES":
        if datatype not in NUMPY_TYPE:
            return
        raw = raw[: len(raw) - len(raw) % NUMPY_TYPE[datatype].itemsize]
    response = kserve_pb2.ModelInferResponse(model_name="m", model_version="1")
    response.outputs.add(name="y", datatype=datatype, shape=[-1])
    head = response.SerializeToString()
    with suppress(NereidError):
        _, parts = infer_response.encode_job([raw], head, "", ResponseForm(), _TEXT_BYTES)
        content_coding.compress(parts, b"gzip")
    with suppress(NereidError):
        members = infer_response.InferResponseEncoder().parse_head(head)
        generate_schema.encode_job([raw], members, "", _TEXT_BYTES)


def _output(datatype: str) -> bytes:
    return datatype.ljust(_DATATYPE_BYTES).encode()


_TEXT_BYTES = 16 << 20
RESPONSES = Target(
    "responses",
    _respond,
    (
        Growing("small integers", b"\x80", _output("INT8")),
        Growing("booleans", b"\0", _output("BOOL")),
        Growing("large integers", b"\0\0\0\0\0\0\0\x80", _output("INT64")),
        Growing("fractions", b"\xcd\xcc\xcc\x3d", _output("FP32")),
        Growing("long fractions", b"\x01\0\0\0\0\0\0\x80", _output("FP64")),
        Growing("numbers that are none", b"\0\0\xc0\x7f", _output("FP32")),
        Growing("empty strings", bytes(4), _output("BYTES")),
        Growing("short strings", b"\2\0\0\0\xc3\xa9", _output("BYTES")),
        Growing("strings of control characters", b"\4\0\0\0\1\1\1\1", _output("BYTES")),
        Growing("broken UTF-8", b"\1\0\0\0\xff", _output("BYTES")),
        Growing("half numbers", b"\0\0", _output("FP16")),
    ),
    words=(bytes(4), b"\1\0\0\0\1", b"\xff", b"\0\0\xc0\x7f", b"\2\0\0\0\xc3\xa9"),
    steps_per_byte=60,
    # The texts of one output, and of the response around it.
    memory_per_byte=60,
    largest_bytes=1 << 20,
    fixed_bytes=3 * _TEXT_BYTES,
)

# --- slow readers


def _leave_unread(data: bytes) -> None:
    """Calls of a client that grants no window and reads nothing."""
    server = ServerHarness(
        Limits(max_message_bytes=1 << 26, max_unsent_bytes=1 << 20), compression="medium"
    )
    server.http2.sender.set_blocked(True)
    for at in range(0, len(data), _READ_BYTES):
        server.feed(data[at : at + _READ_BYTES])
    server.connection.connection_lost()


def _call(number: int, path: str, body: bytes, *fields: tuple[str, str]) -> bytes:
    stream = 2 * number + 1
    # Each block by itself, whatever came before.
    block = hpack.Encoder().encode(to(path, *fields))
    head = frame(HEADERS, END_HEADERS, stream, block)
    return head + frame(DATA, END_STREAM, stream, message(body))


_NO_WINDOW = settings(window=0)
_CHAT = frame(HEADERS, END_HEADERS, 1, hpack.Encoder().encode(to("/test/Chat")))
_ACCEPTS = ("grpc-accept-encoding", "gzip, deflate")
UNREAD = Target(
    "slow readers",
    _leave_unread,
    (
        Growing(
            "calls", lambda number: _call(number, "/test/Echo", b"x" * 100), settings(window=0)
        ),
        Growing(
            "large calls",
            lambda number: _call(number, "/test/Echo", bytes(9000)),
            _NO_WINDOW,
        ),
        Growing(
            "compressed responses",
            lambda number: _call(number, "/test/Echo", bytes(9000), _ACCEPTS),
            _NO_WINDOW,
        ),
        Growing("calls of nothing", lambda number: _call(number, "/none", b"")),
        Growing("messages of a stream", frame(DATA, 0, 1, message(b"x" * 100)), _CHAT),
        Growing("empty messages of a stream", frame(DATA, 0, 1, message(b"") * 100), _CHAT),
        Growing("pings", frame(PING, payload=bytes(8))),
        Growing("settings", frame(SETTINGS)),
    ),
    words=(
        _call(0, "/test/Echo", b"x"),
        frame(DATA, 0, 1, message(b"")),
        frame(PING, payload=bytes(8)),
        frame(SETTINGS),
        bytes(9),
    ),
    steps_per_byte=60,
    memory_per_byte=60,
    largest_bytes=1 << 21,
)
