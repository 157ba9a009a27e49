"""By which ways sequences come: streams, generate, ensembles, models; and what is reported then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from tritonclient.grpc import service_pb2 as pb

from tests.conformance.exchange import Http, Rpc, Stream
from tests.conformance.grpc_infer import request, tensor
from tests.conformance.row import Row, grouped, post, row
from tests.conformance.rows.python_models import levelled
from tests.conformance.sequence_requests import (
    INTEGER_MODELS,
    http_infer,
    message_of,
    parameters,
    rpc,
    sorted_by_id,
)

_UINT64: Final = (1 << 64) - 1


def rows() -> Iterator[Row]:
    """Behind those of sequences.py: statistics count both."""
    ways = (_streams, _generate, _ensembles, _bls)
    for group in (*ways, _described, _statistics, _seen, _kinds):
        yield from grouped(f"sequence/{group.__name__[1:]}", group(), server="sequences")


def _streams() -> Iterator[Row]:
    for model in INTEGER_MODELS:
        messages = [
            message_of(model, (each,), 5, each == 0, each == 4, name=str(each)) for each in range(5)
        ]
        yield row(model, Stream(tuple(messages)), view=levelled)
        wrong = (
            message_of(model, (1,), 6, name="n"),
            message_of(model, (1,), 0, name="m"),
            messages[0],
        )
        yield row(
            f"{model}-refused", Stream(wrong), rpc(model, (1,), 5, end=True), view=sorted_by_id
        )
        ends = (("triton_grpc_error", "true"),)
        yield row(f"{model}-refused-end", Stream(wrong[:1], ends), view=levelled)
    texts = [message_of("texts", (each,), "abc", each == 0, each == 2) for each in range(3)]
    yield row("texts", Stream(tuple(texts)), view=levelled)
    decoupled = [
        message_of("stream", tuple(range(1, each + 2)), 5, each == 0, each == 2, name=str(each))
        for each in range(3)
    ]
    for each in decoupled:
        each.parameters["triton_enable_empty_final_response"].bool_param = True
    yield row("decoupled", *(Stream((each,)) for each in decoupled), view=levelled)
    yield row(
        "decoupled-refused", Stream((message_of("stream", (1,), 5, name="n"),)), view=levelled
    )
    failing = (message_of("stream", (1, -1), 6, True, name="n"),)
    after = (message_of("stream", (3,), 6, None, True, name="m"),)
    yield row("decoupled-error", Stream(failing), Stream(after), view=levelled)
    yield row("decoupled-infer", rpc("stream", (1,), 7, True, True), http_infer("stream", 1, id=7, start=True, end=True), view=levelled)  # fmt: skip
    ensemble = tuple(
        message_of("through_stream", (each, 1), 8, each == 1, each == 3) for each in (1, 2, 3)
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
            rpc(model, (1,), 5, True, name="n"),
            rpc(model, (2,), 5),
            rpc(model, (3,), 5, None, True),
            rpc(model, (1,), 5, name="n"),
        ]
        yield row(model, *steps, view=levelled)
        http = [http_infer(model, 1, id=6, start=True), http_infer(model, 2, id=6, end=True)]
        yield row(f"{model}-http", *http, http_infer(model, 1, id=6), view=levelled)
        yield row(f"{model}-none", rpc(model, (1,), None), view=levelled)
        if not model.endswith("flat"):
            yield row(f"{model}-batch", rpc(model, (1, 2), 7, True, batch=2), view=levelled)
            failing = [rpc(model, (-1,), 8, True), rpc(model, (1,), 8, None, True)]
            yield row(f"{model}-error", *failing, view=levelled)
    texts = [
        rpc("through_texts", (1,), "abc", True),
        rpc("through_texts", (2,), "abc", None, True),
    ]
    yield row("through_texts", *texts, view=levelled)
    long = rpc("through_texts", (1,), "x" * 129, True)
    yield row("through_texts-long", long, view=levelled)


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
        message = request("script", [code_input], (), parameters=parameters(which, start, end))
        yield row(name, Rpc("ModelInfer", message), view=levelled)
    long = request("script", [code_input], (), parameters=parameters("x" * 129, None, None))
    yield row("long", Rpc("ModelInfer", long))


def _kinds() -> Iterator[Row]:
    """Correlation ids that their control tensor cannot hold."""
    for model in ("direct", "oldest", "flat"):
        yield row(f"text-{model}", rpc(model, (1,), "abc", True, True), view=levelled)
    yield row("number-texts", rpc("texts", (1,), 7, True, True), view=levelled)
