"""Sequences: what stateful models see of them, what is refused, ensembles of them, and calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from tritonclient.grpc import service_pb2 as pb

from tests.conformance.exchange import Http, Rpc, Stream
from tests.conformance.grpc_infer import parameter, request, tensor
from tests.conformance.http_infer import infer, one
from tests.conformance.row import Row, grouped, post, row
from tests.conformance.rows.ensembles import sorted_outputs
from tests.conformance.rows.python_models import levelled

_UINT64: Final = (1 << 64) - 1
_INT_MODELS: Final = ("direct", "oldest", "flat")


def rows() -> Iterator[Row]:
    requests = (
        _controls,
        _rules,
        _errors,
        _ids,
        _timeouts,
        _backlog,
        _batches,
        _streams,
        _generate,
    )
    for group in (*requests, _ensembles, _bls, _described, _statistics, _seen, _kinds):
        yield from grouped(f"sequence/{group.__name__[1:]}", group(), server="sequences")


def _parameters(which: Any, start: Any, end: Any, **more: Any) -> dict[str, Any]:
    found = {}
    if which is not None:
        kind = "string_param" if isinstance(which, str) else "int64_param"
        found["sequence_id"] = parameter(**{kind: which})
    if start is not None:
        found["sequence_start"] = parameter(bool_param=start)
    if end is not None:
        found["sequence_end"] = parameter(bool_param=end)
    return found | {key: parameter(int64_param=each) for key, each in more.items()}


def _message(
    model: str,
    x: tuple[float, ...],
    which: Any,
    start: bool | None = None,
    end: bool | None = None,
    *,
    name: str = "",
    batch: int = 1,
    **more: Any,
) -> pb.ModelInferRequest:
    """The request of a sequence; name: of the request."""
    shape = (len(x),) if model.endswith("flat") else (batch, len(x) // batch)
    inputs = [tensor("X", "FP32", shape, fp32_contents=x)]
    return request(model, inputs, (), id=name, parameters=_parameters(which, start, end, **more))


def _rpc(*arguments: Any, **more: Any) -> Rpc:
    return Rpc("ModelInfer", _message(*arguments, **more))


def _document(model: str, x: float, parameters: dict[str, Any]) -> dict[str, Any]:
    document = one([x], (1,) if model.endswith("flat") else (1, 1), "FP32")
    document["inputs"][0]["name"] = "X"
    return {**document, "parameters": parameters}


def _http(model: str, x: float, **parameters: Any) -> Http:
    """Each parameter's name without its "sequence_"."""
    named = {
        f"sequence_{key}" if key in {"id", "start", "end"} else key: value
        for key, value in parameters.items()
    }
    body = json.dumps(_document(model, x, named)).encode()
    return Http("POST", f"/v2/models/{model}/infer", body)


def _controls() -> Iterator[Row]:
    """Every control of every type, on a sequence's first, second and last request."""
    for model in (*_INT_MODELS, "texts", "one_direct", "one_oldest"):
        which = "abc" if model == "texts" else 5
        calls = [(1.0, True, None), (2.0, None, False), (3.0, False, True)]
        steps = [_rpc(model, (x,), which, start, end, name="n") for x, start, end in calls]
        yield row(model, *steps, _rpc(model, (1,), which), view=levelled)
        http = [
            _http(model, 1, id=which, start=True),
            _http(model, 2, id=which),
            _http(model, 3, id=which, end=True),
        ]
        yield row(f"{model}-http", *http, view=levelled)
        yield row(f"{model}-alone", _rpc(model, (1,), which, True, True), view=levelled)
    # Slots before the sequence's own are null requests.
    starts = [_rpc("direct", (which,), which, True) for which in range(1, 4)]
    middle = [_rpc("direct", (1,), which) for which in (3, 1)]
    ends = [_rpc("direct", (1,), which, end=True) for which in (1, 3)]
    again = [_rpc("direct", (1,), 9, True, True), _rpc("direct", (1,), 2, end=True)]
    yield row("slots", *starts, *middle, *ends, *again, view=levelled)
    yield row(
        "slots-text", *(_rpc("texts", (1,), each, True, True) for each in "ab"), view=levelled
    )


def _rules() -> Iterator[Row]:
    """What START and END may be, batches, and which errors leave the sequence as it is."""
    for model in _INT_MODELS:
        yield row(f"{model}-no-start", _rpc(model, (1,), 50), _rpc(model, (1,), 50, name="n"))
        yield row(
            f"{model}-no-start-http", _http(model, 1, id=50), _http(model, 1, id=50, end=True)
        )
        yield row(f"{model}-no-start-end", _rpc(model, (1,), 50, end=True))
        yield row(
            f"{model}-no-id", _rpc(model, (1,), None), _rpc(model, (1,), None, True, name="n")
        )
        yield row(f"{model}-id-0", _rpc(model, (1,), 0, True), _http(model, 1, id=0, start=True))
        yield row(
            f"{model}-id-empty", _rpc(model, (1,), "", True), _http(model, 1, id="", start=True)
        )
        live = [_rpc(model, (1,), 51, True), _rpc(model, (2,), 51), _rpc(model, (5,), 51, True)]
        yield row(f"{model}-start-live", *live, _rpc(model, (1,), 51, end=True), view=levelled)
        alone = [
            _rpc(model, (1,), 52, True),
            _rpc(model, (5,), 52, True, True),
            _rpc(model, (1,), 52),
        ]
        yield row(f"{model}-start-end-live", *alone, view=levelled)
        if model != "flat":
            batch = [_rpc(model, (1, 2), 56, True, batch=2), _rpc(model, (1,), 56)]
            yield row(f"{model}-batch", *batch, view=levelled)
            document = _document(model, 1, {"sequence_id": 56, "sequence_start": True})
            document["inputs"][0] |= {"shape": [2, 1], "data": [1, 2]}
            yield infer(f"{model}-batch-http", model, document)
            inside = [
                _rpc(model, (1,), 57, True),
                _rpc(model, (1, 2), 57, batch=2, name="n"),
                _rpc(model, (1,), 57, end=True),
            ]
            yield row(f"{model}-batch-inside", *inside, view=levelled)
    # The shape may differ from request to request.
    shapes = [
        _rpc("direct", (1,), 58, True),
        _rpc("direct", (1, 2, 3), 58),
        _rpc("direct", (1,), 58, end=True),
    ]
    yield row("shapes", *shapes, view=levelled)
    bad = tensor("X", "INT32", (1, 1), int_contents=[1])
    wrong = request("direct", [bad], (), parameters=_parameters(59, True, None))
    yield row("invalid-start", Rpc("ModelInfer", wrong), _rpc("direct", (1,), 59), view=levelled)
    wrong_members: dict[str, dict[str, Any]] = {
        "start-text": {"start": "true"},
        "start-number": {"start": 1},
        "end-number": {"end": 0},
        "start-null": {"start": None},
        "id-fraction": {"id": 1.5, "start": True},
        "id-bool": {"id": True, "start": True},
        "id-null": {"id": None, "start": True},
        "id-list": {"id": [1], "start": True},
    }
    for name, value in wrong_members.items():
        yield row(f"http-{name}", _http("direct", 1, **{"id": 60, "end": True, **value}))
    for name, given in {
        "start-text": {"sequence_start": parameter(string_param="true")},
        "start-number": {"sequence_start": parameter(int64_param=1)},
        "id-bool": {"sequence_id": parameter(bool_param=True)},
        "id-double": {"sequence_id": parameter(double_param=1)},
        "id-unsigned": {"sequence_id": parameter(uint64_param=61)},
    }.items():
        message = _message("direct", (1,), 61, True, True)
        for key, each in given.items():
            message.parameters[key].CopyFrom(each)
        yield row(f"grpc-{name}", Rpc("ModelInfer", message), view=levelled)


def _errors() -> Iterator[Row]:
    """A sequence continues behind a request that fails."""
    for model in ("direct", "oldest"):
        inside = [_rpc(model, (1,), 53, True), _rpc(model, (-1,), 53)]
        yield row(model, *inside, _rpc(model, (2,), 53, end=True), view=levelled)
        first = [_rpc(model, (-1,), 54, True), _rpc(model, (2,), 54, end=True)]
        yield row(f"{model}-first", *first, view=levelled)
        last = [_rpc(model, (1,), 55, True), _rpc(model, (-2,), 55, end=True)]
        yield row(f"{model}-last", *last, _rpc(model, (1,), 55), view=levelled)


def _ids() -> Iterator[Row]:
    numbers = {"-1": -1, "least": -(1 << 63), "2^31": 1 << 31, "2^32+5": (1 << 32) + 5}
    numbers["2^63-1"] = (1 << 63) - 1
    for model in (*_INT_MODELS, "one_direct", "through_direct"):
        for name, which in numbers.items():
            yield row(f"{model}-{name}", _rpc(model, (1,), which, True, True), view=sorted_outputs)
    for name, which in {**numbers, "2^63": 1 << 63, "2^64-1": _UINT64, "2^64": 1 << 64}.items():
        whole = _http("direct", 1, id=which, start=True, end=True)
        yield row(f"http-{name}", whole, view=levelled)
    # -1 is the same sequence as 2^64-1.
    same = (_rpc("direct", (1,), -1, True), _http("direct", 2, id=_UINT64, end=True))
    yield row("same", *same, view=levelled)
    unknown = (_rpc("direct", (1,), -1), _http("direct", 1, id=_UINT64))
    yield row("no-start", *unknown, view=levelled)
    texts = {
        "128": "x" * 128,
        "129": "x" * 129,
        "é": "é" * 100,
        "number": "5",
        "space": " ",
        "quote": '"\\',
    }
    for name, text in texts.items():
        yield row(f"text-{name}", _rpc("texts", (1,), text, True, True), view=levelled)
        http = _http("texts", 1, id=text, start=True, end=True)
        yield row(f"text-{name}-http", http, view=levelled)
        yield row(f"text-{name}-no-start", _rpc("texts", (1,), text, name="n"))
    # A model without a control tensor for it takes any.
    yield row("text-on-one_oldest", _rpc("one_oldest", (1,), "abc", True, True), view=levelled)
    # A text and a number are two sequences.
    two = (
        *(_rpc("one_oldest", (1,), "5", True), _rpc("one_oldest", (1,), 5)),
        _rpc("one_oldest", (1,), "5", end=True),
    )
    yield row("text-and-number", *two, view=levelled)


def _timeouts() -> Iterator[Row]:
    """Timeouts of requests whose sequence has a slot."""
    for name, timeout in {"1": 1, "-1": -1, "0": 0, "2^63-1": (1 << 63) - 1}.items():
        for model in ("direct", "oldest"):
            whole = _rpc(model, (1,), 70, True, True, timeout=timeout)
            yield row(f"{model}-{name}", whole, view=levelled)
    values: dict[str, Any] = {"1": 1, "-1": -1, "2^63": 1 << 63, "2^64": 1 << 64}
    for name, value in {**values, "1.5": 1.5, "text": "1"}.items():
        http = _http("direct", 1, id=71, start=True, end=True, timeout=value)
        yield row(f"http-{name}", http, view=levelled)
    message = _message("direct", (1,), 72, True, True)
    message.parameters["timeout"].CopyFrom(parameter(uint64_param=1 << 63))
    yield row("unsigned", Rpc("ModelInfer", message), view=levelled)


def _by_id(response: Any) -> Any:
    """Responses of several sequences of one stream come in any order."""
    response = levelled(response)
    if "replies" in response:
        response["replies"].sort(key=lambda each: json.dumps(each, sort_keys=True))
    return response


def _backlog() -> Iterator[Row]:
    """Models of one slot."""
    # A sequence gives its slot up when it is idle.
    waits = (
        _message("short_direct", (1,), 81, True, name="a"),
        _message("short_direct", (2,), 82, True, True, name="b"),
    )
    yield row("idle", Stream(waits), _rpc("short_direct", (1,), 81), view=levelled)
    # A START in the backlog goes on in its sequence, unless that has had its END.
    for name, ends in {"again": False, "two": True}.items():
        messages = [
            _message("short_direct", (1,), 94, True, name="a"),
            _message("short_direct", (2,), 95, True, ends, name="b1"),
            _message("short_direct", (3,), 95, True, None, name="b2"),
            _message("short_direct", (4,), 95, None, True, name="b3"),
        ]
        yield row(name, Stream(tuple(messages)), view=_by_id)
    for model in ("one_direct", "one_oldest"):
        # The whole sequence expires with its first request that does.
        expires = [
            _message(model, (1,), 83, True, name="a"),
            _message(model, (2,), 84, True, name="b1", timeout=50_000),
            _message(model, (3,), 84, None, True, name="b2"),
        ]
        yield row(f"{model}-expires", Stream(tuple(expires)), view=_by_id)
        yield row(
            f"{model}-expired",
            _rpc(model, (1,), 84),
            _rpc(model, (1,), 83, end=True),
            view=levelled,
        )
        second = [
            _message(model, (1,), 85, True, name="a"),
            _message(model, (2,), 86, True, name="b1"),
            _message(model, (3,), 86, None, True, name="b2", timeout=50_000),
        ]
        yield row(
            f"{model}-second-expires",
            Stream(tuple(second)),
            _rpc(model, (1,), 85, end=True),
            view=_by_id,
        )
        http = _http(model, 1, id=88, start=True, timeout=50_000)
        around = [_rpc(model, (1,), 87, start, not start) for start in (True, False)]
        yield row(f"{model}-http-expires", around[0], http, around[1], view=levelled)
        # All at once: each waits for the one before to end.
        many = [
            _message(model, (each,), which, each == 0, each == 2, name=f"{which}-{each}")
            for each in range(3)
            for which in (91, 92, 93)
        ]
        yield row(f"{model}-many", Stream(tuple(many)), view=_by_id)


def _batches() -> Iterator[Row]:
    """Which requests are executed together: the log names all of a batch."""
    for model in ("half_direct", "two_oldest"):
        both = tuple(_message(model, (each,), each, True, name=str(each)) for each in (1, 2))
        yield row(f"{model}-both", Stream(both), view=_by_id)
        yield row(
            f"{model}-one", *(_rpc(model, (1,), each, end=True) for each in (2, 1)), view=levelled
        )


def _streams() -> Iterator[Row]:
    for model in _INT_MODELS:
        messages = [
            _message(model, (each,), 5, each == 0, each == 4, name=str(each)) for each in range(5)
        ]
        yield row(model, Stream(tuple(messages)), view=levelled)
        wrong = (
            _message(model, (1,), 6, name="n"),
            _message(model, (1,), 0, name="m"),
            messages[0],
        )
        yield row(f"{model}-refused", Stream(wrong), _rpc(model, (1,), 5, end=True), view=_by_id)
        ends = (("triton_grpc_error", "true"),)
        yield row(f"{model}-refused-end", Stream(wrong[:1], ends), view=levelled)
    texts = [_message("texts", (each,), "abc", each == 0, each == 2) for each in range(3)]
    yield row("texts", Stream(tuple(texts)), view=levelled)
    decoupled = [
        _message("stream", tuple(range(1, each + 2)), 5, each == 0, each == 2, name=str(each))
        for each in range(3)
    ]
    for each in decoupled:
        each.parameters["triton_enable_empty_final_response"].bool_param = True
    yield row("decoupled", *(Stream((each,)) for each in decoupled), view=levelled)
    yield row("decoupled-refused", Stream((_message("stream", (1,), 5, name="n"),)), view=levelled)
    failing = (_message("stream", (1, -1), 6, True, name="n"),)
    after = (_message("stream", (3,), 6, None, True, name="m"),)
    yield row("decoupled-error", Stream(failing), Stream(after), view=levelled)
    yield row("decoupled-infer", _rpc("stream", (1,), 7, True, True), _http("stream", 1, id=7, start=True, end=True), view=levelled)  # fmt: skip
    ensemble = tuple(
        _message("through_stream", (each, 1), 8, each == 1, each == 3) for each in (1, 2, 3)
    )
    yield row("ensemble", *(Stream((each,)) for each in ensemble), view=sorted_stream)


def sorted_stream(response: Any) -> Any:
    response = levelled(response)
    for reply in response["replies"]:
        for outputs in [reply.get("infer_response", {}).get("outputs", [])]:
            outputs.sort(key=lambda each: str(each["name"]))
    return response


def _generate() -> Iterator[Row]:
    for kind in ("generate", "generate_stream"):
        for model in ("direct", "oldest", "stream", "through_direct"):
            steps = [
                post(
                    f"models/{model}/{kind}",
                    {
                        "X": [each + 1],
                        "id": "n",
                        "parameters": {
                            "sequence_id": 5,
                            "sequence_start": each == 0,
                            "sequence_end": each == 2,
                        },
                    },
                )
                for each in range(3)
            ]
            yield row(f"{kind}-{model}", *steps, view=_sorted_members)
        flat = {"X": 1, "sequence_id": 6, "sequence_start": True, "sequence_end": True}
        yield row(f"{kind}-members", post(f"models/direct/{kind}", flat), view=levelled)
        no_start = {"X": 1, "parameters": {"sequence_id": 6}}
        yield row(f"{kind}-no-start", post(f"models/direct/{kind}", no_start))
        yield row(f"{kind}-no-id", post(f"models/direct/{kind}", {"X": 1}))
        wrong = {
            "X": 1,
            "parameters": {"sequence_id": -1, "sequence_start": True, "sequence_end": True},
        }
        yield row(f"{kind}-negative", post(f"models/direct/{kind}", wrong), view=levelled)


def _sorted_members(response: Any) -> Any:
    """A document of an ensemble's outputs, whose order varies; events as they are."""
    response = levelled(response)
    if "text" in response:
        events = [each for each in response["text"].split("\n\n") if each]
        prefix = "data: "
        response["text"] = [
            json.loads(each.removeprefix(prefix)) if each.startswith(prefix) else each
            for each in events
        ]
    return response


def _ensembles() -> Iterator[Row]:
    """Steps have their ensemble's correlation id and flags."""
    for model in (
        "through_direct",
        "through_flat",
        "through_both",
        "through_twice",
        "through_nested",
    ):
        steps = [
            _rpc(model, (1,), 5, True, name="n"),
            _rpc(model, (2,), 5),
            _rpc(model, (3,), 5, None, True),
            _rpc(model, (1,), 5, name="n"),
        ]
        yield row(model, *steps, view=sorted_outputs)
        http = [_http(model, 1, id=6, start=True), _http(model, 2, id=6, end=True)]
        yield row(f"{model}-http", *http, _http(model, 1, id=6), view=sorted_outputs)
        yield row(f"{model}-none", _rpc(model, (1,), None), view=sorted_outputs)
        if not model.endswith("flat"):
            yield row(f"{model}-batch", _rpc(model, (1, 2), 7, True, batch=2), view=sorted_outputs)
            failing = [_rpc(model, (-1,), 8, True), _rpc(model, (1,), 8, None, True)]
            yield row(f"{model}-error", *failing, view=sorted_outputs)
    texts = [
        _rpc("through_texts", (1,), "abc", True),
        _rpc("through_texts", (2,), "abc", None, True),
    ]
    yield row("through_texts", *texts, view=sorted_outputs)
    long = _rpc("through_texts", (1,), "x" * 129, True)
    yield row("through_texts-long", long, view=sorted_outputs)


_START: Final = "pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START"
_END: Final = "pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END"
_X: Final = "pb_utils.Tensor('X', np.ones((1, 1), np.float32))"
_STEPS: Final = f"({_START}, 0, {_END})"


def _asked(model: str, correlation: str, flags: str) -> str:
    return f"ask('{model}', [{_X}], correlation_id={correlation}, flags={flags})"


# By name: what a model does, and of coroutines. Each ends the sequences that it begins.
_CALLS: Final[dict[str, str]] = {
    "direct": f"found = [told({_asked('direct', '5', 'each')}.exec()) for each in {_STEPS}]",
    "oldest": f"found = [told({_asked('oldest', '5', 'each')}.exec()) for each in {_STEPS}]",
    "texts": f"found = [told({_asked('texts', repr('abc'), 'each')}.exec()) for each in {_STEPS}]",
    "ensemble": f"found = [told({_asked('through_direct', '5', 'each')}.exec()) for each in {_STEPS}]",
    "alone": f"found = told({_asked('direct', '6', f'{_START} | {_END}')}.exec())",
    "no-start": f"found = told({_asked('direct', '6', '0')}.exec())",
    "no-id": f"found = told(ask('direct', [{_X}]).exec())",
    "no-id-start": f"found = told(ask('direct', [{_X}], flags={_START}).exec())",
    "largest": f"found = told({_asked('direct', str(_UINT64), '3')}.exec())",
    "largest-seen": f"r = ask('direct', [{_X}], ['LOG'], correlation_id={_UINT64}, flags=3)\nfound = told(r.exec())",
    "text-long": f"found = told({_asked('texts', repr('x') + ' * 129', '3')}.exec())",
    "text-largest": f"found = told({_asked('texts', repr('x') + ' * 128', '3')}.exec())",
    "text-empty": f"found = told({_asked('texts', repr(''), '3')}.exec())",
    "set-flags": f"r = {_asked('direct', '7', '0')}\nr.set_flags(3)\nfound = (r.flags(), r.correlation_id(), told(r.exec()))",
    "other-flags": f"found = told({_asked('direct', '8', '7')}.exec())",
    "fraction": f"found = told({_asked('direct', '1.5', '3')}.exec())",
    "batch": "x = pb_utils.Tensor('X', np.ones((2, 1), np.float32))\nfound = told(ask('direct', [x], correlation_id=9, flags=3).exec())",
    "decoupled": f"found = [told(each) for flags in (1, 2) for each in {_asked('stream', '5', 'flags')}.exec(decoupled=True) if each.output_tensors()]",
}  # fmt: skip
_COROUTINES: Final[dict[str, str]] = {
    "in-turn": f"return [told(await {_asked('oldest', '5', 'each')}.async_exec()) for each in {_STEPS}]",
    "gather": f"return [told(each) for each in await asyncio.gather(*[{_asked('oldest', 'which', '3')}.async_exec() for which in (1, 2, 3)])]",
    "no-start": f"return told(await {_asked('oldest', '5', '0')}.async_exec())",
}  # fmt: skip


def _bls() -> Iterator[Row]:
    for model, codes in {"script": _CALLS, "waiting": _COROUTINES}.items():
        for name, code in codes.items():
            code_input = tensor("CODE", "BYTES", (1,), bytes_contents=[code.encode()])
            message = request(model, [code_input], ())
            prefix = "" if model == "script" else "async-"
            yield row(f"{prefix}{name}", Rpc("ModelInfer", message), view=levelled)


def _statistics() -> Iterator[Row]:
    """After all of the above; null requests count for nothing."""
    for model in ("flat", "one_direct", "one_oldest"):
        yield row(model, Http(target=f"/v2/models/{model}/stats"), view=_without_queue_times)
    rpc = Rpc("ModelStatistics", pb.ModelStatisticsRequest(name="one_oldest"))
    yield row("one_oldest-grpc", rpc, view=_without_queue_times)


def _without_queue_times(response: Any) -> Any:
    """A request may wait for no time that a clock shows."""
    if isinstance(response, dict):
        return {
            key: "any" if key == "ns" else _without_queue_times(each)
            for key, each in response.items()
        }
    return (
        [_without_queue_times(each) for each in response]
        if isinstance(response, list)
        else response
    )


def _described() -> Iterator[Row]:
    for model in ("direct", "oldest", "texts", "through_direct"):
        yield row(f"{model}-metadata", Http(target=f"/v2/models/{model}"))
        yield row(f"{model}-config", Http(target=f"/v2/models/{model}/config"))


def _seen() -> Iterator[Row]:
    """What models that have no sequences see of them."""
    code = "found = (request.correlation_id(), request.flags(), request.parameters())"
    code_input = tensor("CODE", "BYTES", (1,), bytes_contents=[code.encode()])
    for name, (which, start, end) in {
        "empty": ("", None, None),
        "zero": (0, True, None),
        "-1": (-1, None, True),
        "text": ("é", True, True),
        "start": (None, True, None),
        "false": (None, False, False),
    }.items():
        message = request("script", [code_input], (), parameters=_parameters(which, start, end))
        yield row(name, Rpc("ModelInfer", message), view=levelled)
    long = request("script", [code_input], (), parameters=_parameters("x" * 129, None, None))
    yield row("long", Rpc("ModelInfer", long))


def _kinds() -> Iterator[Row]:
    """Correlation ids that their control tensor cannot hold."""
    for model in ("direct", "oldest", "flat"):
        yield row(f"text-{model}", _rpc(model, (1,), "abc", True, True), view=levelled)
    yield row("number-texts", _rpc("texts", (1,), 7, True, True), view=levelled)
