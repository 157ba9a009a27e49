"""Python models: what they see, what they may return, and what clients get."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator
from typing import Any, Final

from tritonclient.grpc import service_pb2 as pb

from tests.conformance.exchange import Http, Page, Rpc, Stream
from tests.conformance.grpc_infer import output, parameter, request, tensor
from tests.conformance.http_infer import infer, one
from tests.conformance.python_repository import BROKEN, COMPLETE, COMPLETED
from tests.conformance.python_scripts import (
    BLS,
    COROUTINES,
    PROBES,
    RESPONSES,
    SEEN,
    STREAMS,
    TYPES,
)
from tests.conformance.row import Row, grouped, post, row, without_poll_reasons

_PLACE: Final = re.compile(
    r"^  (?:(?:/.*/)?(model\.py|<string>)\(\d+\)|.*\(\d+\)): (.*)\n?", re.MULTILINE
)
_PATH: Final = re.compile(r"/[^ ']*/(\w+/1/model\.py)")
_DOUBLE: Final = re.compile(r"[0-9]{16,}\.0|[0-9.]+e\+[0-9]+")
_ADDRESS: Final = re.compile(r"0x[0-9a-f]+")


def rows() -> Iterator[Row]:
    for group in (
        _probes,
        _types,
        _seen,
        _responses,
        _bls,
        _streams,
        _strings,
        _tensors,
        _completion,
    ):
        yield from grouped(f"python/{group.__name__[1:]}", group(), server="python")
    for group in (_statistics, _metrics):
        yield from grouped(f"python/{group.__name__[1:]}", group(), server="python")


def levelled(value: Any) -> Any:
    """Texts without paths and addresses; raw outputs of texts as the texts."""
    if isinstance(value, dict):
        value = {key: levelled(each) for key, each in value.items()}
        for content, found in zip(
            value.get("raw_output_contents", ()), value.get("outputs", ()), strict=False
        ):
            found["raw"] = _content(base64.b64decode(content), found.get("datatype", ""))
        value.pop("raw_output_contents", None)
        return value
    if isinstance(value, list):
        return [levelled(each) for each in value]
    if isinstance(value, str):
        value = without_poll_reasons(value)
        value = _ADDRESS.sub("0x0", value.replace("\\n", "\n"))
        value = _PLACE.sub(lambda found: f"  {found[1]}: {found[2]}\n" if found[1] else "", value)
        return _PATH.sub(r"\1", value)
    return value


def _numbers(response: Any) -> Any:
    """As levelled; of a double the value counts, not how it is spelt."""
    text = json.dumps(levelled(response))
    return json.loads(_DOUBLE.sub(lambda found: repr(float(found[0])), text))


def _content(raw: bytes, datatype: str) -> Any:
    if datatype != "BYTES":
        return raw.hex()
    found = []
    while raw:
        size = 4 + int.from_bytes(raw[:4], "little")
        found.append(levelled(raw[4:size].decode("utf-8", "backslashreplace")))
        raw = raw[size:]
    return found


def run(model: str, code: str, inputs: Any = (), **more: Any) -> Rpc:
    return Rpc("ModelInfer", _message(model, code, inputs, **more))


def _message(model: str, code: str, inputs: Any = (), **more: Any) -> pb.ModelInferRequest:
    shape = (1, 1) if model == "scripts" else (1,)
    whole = [tensor("CODE", "BYTES", shape, bytes_contents=[code.encode()]), *inputs]
    return request(model, whole, (), **more)


def _found(expression: str) -> str:
    return expression if "found" in expression else f"found = {expression}"


def _x(*numbers: float, name: str = "X") -> Any:
    return tensor(name, "FP32", (len(numbers),), fp32_contents=numbers)


def _probes() -> Iterator[Row]:
    for name, code in PROBES.items():
        yield row(name, run("script", _found(code)), view=levelled)


def _types() -> Iterator[Row]:
    """Arguments of every type."""
    for name, code in TYPES.items():
        yield row(name, run("script", _found(code)), view=levelled)


def _seen() -> Iterator[Row]:
    """Requests as their models see them."""
    kinds: dict[str, dict[str, Any]] = {
        "nothing": {},
        "id": {"id": "a b"},
        "output": {"outputs": ["OUT"]},
        "class": {"outputs": [output("Y", classification=parameter(int64_param=1)), "OUT"]},
        "timeout": {"parameters": {"timeout": parameter(int64_param=1234)}},
        "priority": {"parameters": {"priority": parameter(int64_param=3)}},
        "correlation": {"parameters": {"sequence_id": parameter(int64_param=9)}},
        "correlation-text": {"parameters": {"sequence_id": parameter(string_param="nine")}},
        **{
            f"{key}-{number}": {"parameters": {key: parameter(int64_param=number)}}
            for key in ("sequence_id", "timeout", "priority")
            for number in (-1, 0, -(1 << 63), (1 << 63) - 1)
        },
        **{
            f"{key}-{kind}": {"parameters": {key: parameter(**{kind: each})}}
            for key in ("sequence_id", "timeout", "priority", "sequence_start", "sequence_end")
            for kind, each in {
                "uint64_param": (1 << 64) - 1,
                "string_param": "x",
                "bool_param": True,
                "double_param": 2.0,
            }.items()
        },
        "correlation-128": {"parameters": {"sequence_id": parameter(string_param="x" * 128)}},
        "correlation-129": {"parameters": {"sequence_id": parameter(string_param="x" * 129)}},
        "correlation-bytes": {"parameters": {"sequence_id": parameter(string_param="é" * 65)}},
        "start": {"parameters": {"sequence_start": parameter(bool_param=True)}},
        "end": {"parameters": {"sequence_end": parameter(bool_param=True)}},
        "parameter-text": {"parameters": {"a": parameter(string_param='x"\\é\n')}},
        "parameter-bool": {"parameters": {"a": parameter(bool_param=True)}},
        "parameter-int": {"parameters": {"a": parameter(int64_param=-5)}},
        "parameter-double": {"parameters": {"a": parameter(double_param=0.25)}},
        "x": {"inputs": [_x(1, 2)]},
        "x-empty": {"inputs": [_x()]},
        "texts": {"inputs": [tensor("S", "BYTES", (2,), bytes_contents=[b"a", b"\xff"])]},
        "order": {"inputs": [tensor("S", "BYTES", (1,), bytes_contents=[b"a"]), _x(1)]},
    }
    for name, more in kinds.items():
        yield row(name, run("script", SEEN, **more), view=levelled)
    for name in ("nothing", "x"):
        more = {
            "inputs": [tensor("X", "FP32", (1, 2), fp32_contents=[1, 2])] if name == "x" else ()
        }
        yield row(f"batched-{name}", run("scripts", SEEN, **more), view=levelled)
    document = one([SEEN], (1,), "BYTES")
    document["inputs"][0]["name"] = "CODE"
    more = {"id": "7", "parameters": {"a": 1, "b": "x", "c": True, "d": 1.5, "sequence_id": 3}}
    yield infer("http", "script", {**document, **more}, view=levelled)
    for key in ("sequence_id", "timeout", "priority", "sequence_start", "a"):
        value: Any
        for value in (-1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 1.5, "5", True, None, []):
            given = {**document, "parameters": {key: value}}
            yield infer(f"http-{key}-{value!r}", "script", given, view=_numbers)
    yield infer("http-correlation-129", "script", {**document, "parameters": {"sequence_id": "x" * 129}})  # fmt: skip


def _responses() -> Iterator[Row]:
    for name, code in RESPONSES.items():
        yield row(name, run("script", code), view=levelled)
        document = one([code], (1,), "BYTES")
        document["inputs"][0]["name"] = "CODE"
        if not name.startswith("raise"):
            yield infer(f"{name}-http", "script", document, view=levelled)
    for name, code in RESPONSES.items():
        if name.startswith("raise"):
            yield row(f"{name}-batched", run("scripts", code), view=levelled)


def _bls() -> Iterator[Row]:
    for name, code in BLS.items():
        yield row(name, run("script", code), view=levelled)
    for name, code in COROUTINES.items():
        yield row(f"async-{name}", run("waiting", code), view=levelled)


def _streams() -> Iterator[Row]:
    wants_empty_final = {"triton_enable_empty_final_response": parameter(bool_param=True)}
    for name, code in STREAMS.items():
        for ending, more in (("", {}), ("-final", wants_empty_final)):
            messages = (_message("stream", code, id="7", parameters=more),)
            yield row(name + ending, Stream(messages), view=levelled)
        yield row(f"{name}-infer", run("stream", code), view=levelled)
    for name, numbers in (("none", ()), ("three", (1, 2, 3)), ("error", (1, -1, 2)), ("one", (5,))):
        message = request("repeat", [_x(*numbers)], ())
        yield row(f"repeat-{name}", Stream((message,)), view=levelled)
        body = {"X": list(numbers)} if numbers else {"X": []}
        for kind in ("generate", "generate_stream"):
            yield row(f"repeat-{name}-{kind}", post(f"models/repeat/{kind}", body), view=levelled)
        document = one(list(numbers), (len(numbers),), "FP32")
        document["inputs"][0]["name"] = "X"
        yield infer(f"repeat-{name}-http", "repeat", document, view=levelled)


def _strings() -> Iterator[Row]:
    whole = (b"", b"a", "é€😀".encode(), b"x" * 300)
    cases = {
        "same": (*whole, b"\xff\x00\xfe", b"\0"),
        "as_text": (*whole, b"\0"),
        "reverse": (*whole, b"\xff\x00", b"\0a"),
        "fixed": (b"a", b"abc", b"", b"\xff", b"a\0", b"\0a"),
        "unicode": ("é€😀".encode(), b"a"),
        "strided": (b"a", b"", b"b"),
        "serialized": (*whole, b"\xff\0"),
    }
    for kind, elements in cases.items():
        for shape in (
            ((1, len(elements)), (len(elements), 1)) if len(elements) < 5 else ((1, len(elements)),)
        ):
            kinds = [kind.encode()] * shape[0]
            inputs = [
                tensor("S", "BYTES", shape, bytes_contents=elements),
                tensor("KIND", "BYTES", (shape[0], 1), bytes_contents=kinds),
            ]
            yield row(
                f"{kind}-{shape[0]}",
                Rpc("ModelInfer", request("strings", inputs, ())),
                view=levelled,
            )
        text = b"".join(struct.pack("<I", len(each)) + each for each in elements)
        document = {
            "inputs": [
                {"name": "S", "datatype": "BYTES", "shape": [1, len(elements)], "parameters": {"binary_data_size": len(text)}},
                {"name": "KIND", "datatype": "BYTES", "shape": [1, 1], "data": [kind]},
            ]
        }  # fmt: skip
        yield infer(f"{kind}-http", "strings", document, text, view=levelled)
        binary = {**document, "parameters": {"binary_data_output": True}}
        yield infer(f"{kind}-http-binary", "strings", binary, text, view=levelled)


def _tensors() -> Iterator[Row]:
    """Models that compute."""
    for model, shape in (("double", (1, 2)), ("double", (4, 1)), ("double", (5, 1)), ("flat", (2,)), ("bare", (2,)), ("wrapped", (2,))):  # fmt: skip
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        for sign in (1, -1):
            document = one([sign] * count, shape, "FP32")
            document["inputs"][0]["name"] = "X"
            yield infer(f"{model}-{shape}-{sign}", model, document, view=levelled)
    for model in ("script", "double", "repeat", "bare", "counting"):
        yield row(f"{model}-metadata", Http(target=f"/v2/models/{model}"))
        yield row(f"{model}-config", Http(target=f"/v2/models/{model}/config"))
        yield row(f"{model}-ready", Http(target=f"/v2/models/{model}/ready"))


def _completion() -> Iterator[Row]:
    """Configurations that models complete, and models that cannot be loaded."""
    yield row("index", Http("POST", "/v2/repository/index"), view=_index)
    for name in (*COMPLETED, *BROKEN):
        yield row(f"{name}-config", Http(target=f"/v2/models/{name}/config"), view=_config)
        yield row(f"{name}-metadata", Http(target=f"/v2/models/{name}"))
        if name not in COMPLETE:
            yield row(f"{name}-load", post(f"repository/models/{name}/load"), view=levelled)
        for shape in ((2,), (1, 2), (3, 1)):
            document = one([1] * (shape[0] * shape[-1] if len(shape) > 1 else 2), shape, "FP32")
            document["inputs"][0]["name"] = "X"
            yield infer(f"{name}-{shape}", name, document, view=levelled)


def _index(response: Any) -> Any:
    """Models of this module alone: what became of them."""
    return levelled([each for each in response["json"] if not each["name"].startswith("wrong_")])


def _config(response: Any) -> Any:
    response.get("json", {}).pop("parameters", None)
    return response


_COUNTED_STREAMS: Final = (
    "sender.send(flags=FINAL)",
    "sender.send(answer(texts('a')), flags=FINAL)",
    "for _ in range(3): sender.send(answer(texts('a')))\nsender.send(flags=FINAL)",
    "sender.send(failure('no'), flags=FINAL)",
    "sender.send(failure('no'))\nsender.send(answer(texts('a')), flags=FINAL)",
    "PASS\nraise ValueError('no')",
)


def _without_response_stats(response: Any) -> Any:
    """The real server's Python backend keeps none."""
    response = levelled(response)
    for each in response.get("reply", {}).get("model_stats", ()):
        each.pop("response_stats", None)
    return response


def _statistics() -> Iterator[Row]:
    """Counts, after requests to models that nobody else asks."""
    good, bad = request("complete_same", [_x(1)], ()), request("complete_same", [_x(1), _x(2)], ())
    steps = [Rpc("ModelInfer", each) for each in (good, good, bad)]
    ask = Rpc("ModelStatistics", pb.ModelStatisticsRequest(name="complete_same"))
    yield row("plain", *steps, ask, view=levelled)
    ask = Rpc("ModelStatistics", pb.ModelStatisticsRequest(name="counted"))
    codes = (
        "found = 1",
        "response = failure('no')",
        "PASS\nraise ValueError('no')",
        "response = failure('no', pb_utils.TritonError.CANCELLED)",
    )
    steps = [run("counted", each) for each in codes]
    unknown = run("counted", "found = 1", [_x(1, name="NOPE")])
    prefix = 'nv_inference_request_failure{model="counted",'
    page = Page(prefix, 'reason="BACKEND",version="1"} 1')
    yield row("errors", *steps, unknown, ask, page, view=levelled)
    ask = Rpc("ModelStatistics", pb.ModelStatisticsRequest(name="counted_stream"))
    streams = [Stream((_message("counted_stream", each),)) for each in _COUNTED_STREAMS]
    yield row("decoupled-errors", *streams, ask, view=_without_response_stats)
    ask = Rpc("ModelStatistics", pb.ModelStatisticsRequest(name="complete_decoupled"))
    yield row("decoupled", ask, view=levelled)


def _metrics() -> Iterator[Row]:
    inputs = [Rpc("ModelInfer", request("counting", [_x(each)], ())) for each in (1, 2, 0.25, 40)]
    yield row("custom", *inputs, Page("custom_", "} 43.25"), view=levelled)
