"""Sequences: what stateful models see of them, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tests.conformance.exchange import Rpc, Stream
from tests.conformance.grpc_infer import parameter, request, tensor
from tests.conformance.http_infer import infer
from tests.conformance.row import Row, grouped, row
from tests.conformance.rows.python_models import levelled
from tests.conformance.sequence_requests import (
    INTEGER_MODELS,
    document_of,
    http_infer,
    message_of,
    parameters,
    rpc,
    sorted_by_id,
)

_UINT64: Final = (1 << 64) - 1


def rows() -> Iterator[Row]:
    for group in (_controls, _rules, _errors, _ids, _timeouts, _backlog, _batches):
        yield from grouped(f"sequence/{group.__name__[1:]}", group(), server="sequences")


def _controls() -> Iterator[Row]:
    """Every control of every type, on a sequence's first, second and last request."""
    for model in (*INTEGER_MODELS, "texts", "one_direct", "one_oldest"):
        which = "abc" if model == "texts" else 5
        calls = [(1.0, True, None), (2.0, None, False), (3.0, False, True)]
        steps = [rpc(model, (x,), which, start, end, name="n") for x, start, end in calls]
        yield row(model, *steps, rpc(model, (1,), which), view=levelled)
        http = [
            http_infer(model, 1, id=which, start=True),
            http_infer(model, 2, id=which),
            http_infer(model, 3, id=which, end=True),
        ]
        yield row(f"{model}-http", *http, view=levelled)
        yield row(f"{model}-alone", rpc(model, (1,), which, True, True), view=levelled)
    # Slots before the sequence's own are null requests.
    starts = [rpc("direct", (which,), which, True) for which in range(1, 4)]
    middle = [rpc("direct", (1,), which) for which in (3, 1)]
    ends = [rpc("direct", (1,), which, end=True) for which in (1, 3)]
    again = [rpc("direct", (1,), 9, True, True), rpc("direct", (1,), 2, end=True)]
    yield row("slots", *starts, *middle, *ends, *again, view=levelled)
    yield row("slots-text", *(rpc("texts", (1,), each, True, True) for each in "ab"), view=levelled)


def _rules() -> Iterator[Row]:
    """What START and END may be, batches, and which errors leave the sequence as it is."""
    for model in INTEGER_MODELS:
        yield row(f"{model}-no-start", rpc(model, (1,), 50), rpc(model, (1,), 50, name="n"))
        yield row(
            f"{model}-no-start-http",
            http_infer(model, 1, id=50),
            http_infer(model, 1, id=50, end=True),
        )
        yield row(f"{model}-no-start-end", rpc(model, (1,), 50, end=True))
        yield row(f"{model}-no-id", rpc(model, (1,), None), rpc(model, (1,), None, True, name="n"))
        yield row(
            f"{model}-id-0", rpc(model, (1,), 0, True), http_infer(model, 1, id=0, start=True)
        )
        yield row(
            f"{model}-id-empty", rpc(model, (1,), "", True), http_infer(model, 1, id="", start=True)
        )
        live = [rpc(model, (1,), 51, True), rpc(model, (2,), 51), rpc(model, (5,), 51, True)]
        yield row(f"{model}-start-live", *live, rpc(model, (1,), 51, end=True), view=levelled)
        alone = [
            rpc(model, (1,), 52, True),
            rpc(model, (5,), 52, True, True),
            rpc(model, (1,), 52),
        ]
        yield row(f"{model}-start-end-live", *alone, view=levelled)
        if model != "flat":
            batch = [rpc(model, (1, 2), 56, True, batch=2), rpc(model, (1,), 56)]
            yield row(f"{model}-batch", *batch, view=levelled)
            document = document_of(model, 1, {"sequence_id": 56, "sequence_start": True})
            document["inputs"][0] |= {"shape": [2, 1], "data": [1, 2]}
            yield infer(f"{model}-batch-http", model, document)
            inside = [
                rpc(model, (1,), 57, True),
                rpc(model, (1, 2), 57, batch=2, name="n"),
                rpc(model, (1,), 57, end=True),
            ]
            yield row(f"{model}-batch-inside", *inside, view=levelled)
    # The shape may differ from request to request.
    shapes = [
        rpc("direct", (1,), 58, True),
        rpc("direct", (1, 2, 3), 58),
        rpc("direct", (1,), 58, end=True),
    ]
    yield row("shapes", *shapes, view=levelled)
    bad = tensor("X", "INT32", (1, 1), int_contents=[1])
    wrong = request("direct", [bad], (), parameters=parameters(59, True, None))
    yield row("invalid-start", Rpc("ModelInfer", wrong), rpc("direct", (1,), 59), view=levelled)
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
        yield row(f"http-{name}", http_infer("direct", 1, **{"id": 60, "end": True, **value}))
    for name, given in {
        "start-text": {"sequence_start": parameter(string_param="true")},
        "start-number": {"sequence_start": parameter(int64_param=1)},
        "id-bool": {"sequence_id": parameter(bool_param=True)},
        "id-double": {"sequence_id": parameter(double_param=1)},
        "id-unsigned": {"sequence_id": parameter(uint64_param=61)},
    }.items():
        message = message_of("direct", (1,), 61, True, True)
        for key, each in given.items():
            message.parameters[key].CopyFrom(each)
        yield row(f"grpc-{name}", Rpc("ModelInfer", message), view=levelled)


def _errors() -> Iterator[Row]:
    """A sequence continues behind a request that fails."""
    for model in ("direct", "oldest"):
        inside = [rpc(model, (1,), 53, True), rpc(model, (-1,), 53)]
        yield row(model, *inside, rpc(model, (2,), 53, end=True), view=levelled)
        first = [rpc(model, (-1,), 54, True), rpc(model, (2,), 54, end=True)]
        yield row(f"{model}-first", *first, view=levelled)
        last = [rpc(model, (1,), 55, True), rpc(model, (-2,), 55, end=True)]
        yield row(f"{model}-last", *last, rpc(model, (1,), 55), view=levelled)


def _ids() -> Iterator[Row]:
    numbers = {"-1": -1, "least": -(1 << 63), "2^31": 1 << 31, "2^32+5": (1 << 32) + 5}
    numbers["2^63-1"] = (1 << 63) - 1
    for model in (*INTEGER_MODELS, "one_direct", "through_direct"):
        for name, which in numbers.items():
            yield row(f"{model}-{name}", rpc(model, (1,), which, True, True), view=levelled)
    for name, which in {**numbers, "2^63": 1 << 63, "2^64-1": _UINT64, "2^64": 1 << 64}.items():
        whole = http_infer("direct", 1, id=which, start=True, end=True)
        yield row(f"http-{name}", whole, view=levelled)
    # -1 is the same sequence as 2^64-1.
    same = (rpc("direct", (1,), -1, True), http_infer("direct", 2, id=_UINT64, end=True))
    yield row("same", *same, view=levelled)
    unknown = (rpc("direct", (1,), -1), http_infer("direct", 1, id=_UINT64))
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
        yield row(f"text-{name}", rpc("texts", (1,), text, True, True), view=levelled)
        http = http_infer("texts", 1, id=text, start=True, end=True)
        yield row(f"text-{name}-http", http, view=levelled)
        yield row(f"text-{name}-no-start", rpc("texts", (1,), text, name="n"))
    # A model without a control tensor for it takes any.
    yield row("text-on-one_oldest", rpc("one_oldest", (1,), "abc", True, True), view=levelled)
    # A text and a number are two sequences.
    two = (
        *(rpc("one_oldest", (1,), "5", True), rpc("one_oldest", (1,), 5)),
        rpc("one_oldest", (1,), "5", end=True),
    )
    yield row("text-and-number", *two, view=levelled)


def _timeouts() -> Iterator[Row]:
    """Timeouts of requests whose sequence has a slot."""
    for name, timeout in {"1": 1, "-1": -1, "0": 0, "2^63-1": (1 << 63) - 1}.items():
        for model in ("direct", "oldest"):
            whole = rpc(model, (1,), 70, True, True, timeout=timeout)
            yield row(f"{model}-{name}", whole, view=levelled)
    values: dict[str, Any] = {"1": 1, "-1": -1, "2^63": 1 << 63, "2^64": 1 << 64}
    for name, value in {**values, "1.5": 1.5, "text": "1"}.items():
        http = http_infer("direct", 1, id=71, start=True, end=True, timeout=value)
        yield row(f"http-{name}", http, view=levelled)
    message = message_of("direct", (1,), 72, True, True)
    message.parameters["timeout"].CopyFrom(parameter(uint64_param=1 << 63))
    yield row("unsigned", Rpc("ModelInfer", message), view=levelled)


def _backlog() -> Iterator[Row]:
    """Models of one slot."""
    # A sequence gives its slot up when it is idle.
    waits = (
        message_of("short_direct", (1,), 81, True, name="a"),
        message_of("short_direct", (2,), 82, True, True, name="b"),
    )
    yield row("idle", Stream(waits), rpc("short_direct", (1,), 81), view=levelled)
    # A START in the backlog goes on in its sequence, unless that has had its END.
    for name, ends in {"again": False, "two": True}.items():
        messages = [
            message_of("short_direct", (1,), 94, True, name="a"),
            message_of("short_direct", (2,), 95, True, ends, name="b1"),
            message_of("short_direct", (3,), 95, True, None, name="b2"),
            message_of("short_direct", (4,), 95, None, True, name="b3"),
        ]
        yield row(name, Stream(tuple(messages)), view=sorted_by_id)
    for model in ("one_direct", "one_oldest"):
        # The whole sequence expires with its first request that does.
        expires = [
            message_of(model, (1,), 83, True, name="a"),
            message_of(model, (2,), 84, True, name="b1", timeout=50_000),
            message_of(model, (3,), 84, None, True, name="b2"),
        ]
        yield row(f"{model}-expires", Stream(tuple(expires)), view=sorted_by_id)
        yield row(
            f"{model}-expired",
            rpc(model, (1,), 84),
            rpc(model, (1,), 83, end=True),
            view=levelled,
        )
        second = [
            message_of(model, (1,), 85, True, name="a"),
            message_of(model, (2,), 86, True, name="b1"),
            message_of(model, (3,), 86, None, True, name="b2", timeout=50_000),
        ]
        yield row(
            f"{model}-second-expires",
            Stream(tuple(second)),
            rpc(model, (1,), 85, end=True),
            view=sorted_by_id,
        )
        http = http_infer(model, 1, id=88, start=True, timeout=50_000)
        around = [rpc(model, (1,), 87, start, not start) for start in (True, False)]
        yield row(f"{model}-http-expires", around[0], http, around[1], view=levelled)
        # All at once: each waits for the one before to end.
        many = [
            message_of(model, (each,), which, each == 0, each == 2, name=f"{which}-{each}")
            for each in range(3)
            for which in (91, 92, 93)
        ]
        yield row(f"{model}-many", Stream(tuple(many)), view=sorted_by_id)


def _batches() -> Iterator[Row]:
    """Which requests are executed together: the log names all of a batch."""
    for model in ("half_direct", "two_oldest"):
        both = tuple(message_of(model, (each,), each, True, name=str(each)) for each in (1, 2))
        yield row(f"{model}-both", Stream(both), view=sorted_by_id)
        yield row(
            f"{model}-one", *(rpc(model, (1,), each, end=True) for each in (2, 1)), view=levelled
        )
