"""Iterative sequences: what models see in each iteration, and what clients get."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tritonclient.grpc import service_pb2 as pb

from tests.conformance.exchange import Rpc, Stream
from tests.conformance.grpc_infer import parameter, request, tensor
from tests.conformance.http_infer import infer, one
from tests.conformance.row import Row, grouped, row
from tests.conformance.rows.python_models import levelled

MODELS: Final = ("iterating", "iterating_oldest")
RAISE, RETURN, RETURN_ERROR, RESET, SET_FLAGS, KEEP = range(1, 7)


def rows() -> Iterator[Row]:
    yield from grouped("python/iterative", _single(), server="python")
    yield from grouped("python/iterative", _streams(), server="python")
    yield from grouped("python/iterative", _statistics(), server="python")


def _message(
    model: str, *numbers: float, flags: str = "", which: int | None = None, **more: Any
) -> pb.ModelInferRequest:
    parameters = more.pop("parameters", {})
    if which is not None:
        parameters["sequence_id"] = parameter(int64_param=which)
    if "s" in flags:
        parameters["sequence_start"] = parameter(bool_param=True)
    if "e" in flags:
        parameters["sequence_end"] = parameter(bool_param=True)
    inputs = [tensor("X", "FP32", (1, len(numbers)), fp32_contents=numbers)]
    return request(model, inputs, (), parameters=parameters, **more)


def _infer(model: str, *numbers: float, **more: Any) -> Rpc:
    return Rpc("ModelInfer", _message(model, *numbers, **more))


def _single() -> Iterator[Row]:
    for model in MODELS:
        for count in (1, 3):
            yield row(f"{model}-{count}", _infer(model, count), view=levelled)
    document = one([2.0], (1, 1), "FP32")
    document["inputs"][0]["name"] = "X"
    yield infer("http", "iterating", document, view=levelled)
    kinds: dict[str, dict[str, Any]] = {
        "id": {"which": 1000},
        "end-alone": {"flags": "e"},
        "start-alone": {"flags": "s"},
        "parameter": {"parameters": {"a": parameter(int64_param=5)}},
        "timeout": {"parameters": {"timeout": parameter(int64_param=1234567)}},
        "request-id": {"id": "mine"},
    }
    for name, more in kinds.items():
        yield row(name, _infer("iterating", 2, **more), view=levelled)
    yield row(
        "id-start-and-on",
        _infer("iterating", 2, which=1001, flags="s"),
        _infer("iterating", 1, which=1001),
        _infer("iterating", 1, which=1001, flags="e"),
        _infer("iterating", 1, which=1001, flags="se"),
        view=levelled,
    )
    modes = {
        "raises": RAISE,
        "returns-a-response": RETURN,
        "returns-an-error": RETURN_ERROR,
        "resets-the-flag": RESET,
        "sets-flags": SET_FLAGS,
    }
    for name, mode in modes.items():
        yield row(name, _infer("iterating", 3, mode), view=levelled)
        yield row(f"{name}-then", _infer("iterating", 1), view=levelled)
    two = [tensor("X", "FP32", (2, 1), fp32_contents=[1, 2])]
    yield row("batch-of-two", Rpc("ModelInfer", request("iterating", two, ())), view=levelled)
    config = Rpc("ModelConfig", pb.ModelConfigRequest(name="iterating"))
    yield row("config", config)


def _streams() -> Iterator[Row]:
    model = "iterating_stream"
    final = {"triton_enable_empty_final_response": parameter(bool_param=True)}
    for count in (1, 3):
        yield row(f"stream-{count}", Stream((_message(model, count, id="a"),)), view=levelled)
    yield row(
        "stream-empty-final",
        Stream((_message(model, 2, parameters=final),)),
        view=levelled,
    )
    yield row("stream-raises", Stream((_message(model, 3, RAISE, id="a"),)), view=levelled)
    yield row("stream-kept-sender", Stream((_message(model, 3, KEEP, id="a"),)), view=levelled)
    start = _message(model, 2, which=7, flags="s", id="a")
    yield row("stream-id", Stream((start,)), view=levelled)
    yield row("stream-by-unary", _infer(model, 2), view=levelled)


def _statistics() -> Iterator[Row]:
    for model in ("iterating_oldest", "iterating_stream"):
        yield row(
            f"statistics-{model}",
            Rpc("ModelStatistics", pb.ModelStatisticsRequest(name=model)),
            view=_counts,
        )


def _counts(response: Any) -> Any:
    """Successes: failures differ, as the real server counts one for the end of each sequence."""
    (stats,) = response["reply"]["model_stats"]
    return [
        stats["inference_count"],
        stats["execution_count"],
        {
            kind: stats["inference_stats"][kind].get("count", "0")
            for kind in ("success", "queue", "compute_infer")
        },
    ]
