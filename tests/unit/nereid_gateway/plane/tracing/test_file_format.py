"""Traces in the form of Triton's files."""

import json
from typing import Any

import numpy as np
import pytest

from nereid.core.tensors.byte_elements import join_bytes
from nereid.core.wire.messages import TracedModel, TracedTensor, TraceRule
from nereid_gateway.plane.tracing.file_format import Trace, text_of

TIMES = TraceRule(on=True, rate=1, limit=-1)
TENSORS = TIMES._replace(times=False, tensors=True)


def model(context: str, parent: str, start_ns: int, request_id: str = "") -> TracedModel:
    times = (("REQUEST_START", start_ns), ("REQUEST_END", start_ns + 9))
    return TracedModel(context.encode(), parent.encode(), context, 2, request_id, times)


def objects(trace: Trace, rule: TraceRule, first_id: int = 1) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(f"[{text_of(trace, rule, first_id)}]")
    return records


def at(number: int, name: str, ns: int) -> dict[str, Any]:
    return {"id": number, "timestamps": [{"name": name, "ns": ns}]}


def test_what_the_gateway_saw_first_stands_first_and_the_rest_in_the_order_of_time() -> None:
    moments = [("RECV_START", 5), ("RECV_END", 6), ("SEND_START", 12), ("SEND_END", 30)]
    trace = Trace([model("m", "", 10, "mine")], moments)
    assert objects(trace, TIMES, 7) == [
        at(7, "RECV_START", 5),
        at(7, "RECV_END", 6),
        {"id": 7, "model_name": "m", "model_version": 2, "request_id": "mine"},
        at(7, "REQUEST_START", 10),
        at(7, "SEND_START", 12),
        at(7, "REQUEST_END", 19),
        at(7, "SEND_END", 30),
    ]


def test_what_is_below_a_model_names_it_and_has_a_higher_number() -> None:
    # As they ended.
    models = [model("root", "gw", 1), model("b", "a", 3), model("a", "root", 2), model("c", "?", 4)]
    records = [each for each in objects(Trace(models, []), TIMES, 4) if "model_name" in each]
    assert [(each["model_name"], each["id"], each.get("parent_id")) for each in records] == [
        ("root", 4, None),
        ("a", 5, 4),
        ("b", 6, 5),
        # Its parent is unknown.
        ("c", 7, 4),
    ]


@pytest.mark.parametrize(
    ("datatype", "data", "text"),
    [
        ("FP32", np.array([0.1, 1e10, np.nan], np.float32).tobytes(), "0.1,1e+10,nan"),
        ("FP64", np.array([1 / 3]).tobytes(), "0.333333"),
        ("FP16", np.array([1.5, -2], np.float16).tobytes(), "1.5,-2"),
        ("INT8", b"\xfd\x41", "-3,65"),
        ("UINT64", np.array([1 << 63], np.uint64).tobytes(), str(1 << 63)),
        ("BOOL", b"\1\0", "1,0"),
        ("BYTES", join_bytes([b'a"b,c', b"\xff\n"]), '"a"b,c","\ufffd\n"'),
        ("BF16", b"\0\0", ""),
        ("INT8", None, ""),
        ("INT8", b"", ""),
    ],
)  # fmt: skip
def test_tensors_are_written_as_text(datatype: str, data: bytes | None, text: str) -> None:
    tensor = TracedTensor("TENSOR_QUEUE_INPUT", "I", datatype, (1, 2), data)
    trace = Trace([model("m", "", 1)], [("RECV_START", 1)], [tensor])
    shown = {"name": "I", "data": text, "shape": "1,2", "dtype": datatype}
    assert objects(trace, TENSORS) == [
        {"id": 1, "activity": "TENSOR_QUEUE_INPUT", "tensor": shown},
    ]
    assert all("tensor" not in each for each in objects(trace, TIMES))


def test_a_models_tensors_stand_where_it_is_queued() -> None:
    here, below = (
        TracedTensor("TENSOR_QUEUE_INPUT", name, "UINT8", (1,), b"a") for name in ("I", "J")
    )
    queued = (("REQUEST_START", 2), ("QUEUE_START", 3), ("REQUEST_END", 9))
    root = model("root", "gw", 2)._replace(times=queued)
    step = model("step", "root", 2)._replace(times=queued, tensors=(below,))
    trace = Trace([root, step], [("RECV_START", 0), ("RECV_END", 1), ("SEND", 10)], [here])
    own = ["QUEUE_START", here.name, "REQUEST_END"]
    names = [
        each["timestamps"][0]["name"] if "timestamps" in each else each["tensor"]["name"]
        for each in objects(trace, TIMES._replace(tensors=True))
        if "model_name" not in each
    ]
    started = ["RECV_START", "RECV_END", "REQUEST_START"]
    assert names[:7] == [*started, *own, "SEND"]
    assert names[7:] == ["REQUEST_START", "QUEUE_START", below.name, "REQUEST_END"]
    assert [(each["id"], each["tensor"]["name"]) for each in objects(trace, TENSORS)] == [
        (1, here.name),
        (2, below.name),
    ]
