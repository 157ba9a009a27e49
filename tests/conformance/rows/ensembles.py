"""Ensembles of Python models: what goes through them, what goes wrong in them, what is reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tests.conformance.exchange import Http, Rpc, Stream
from tests.conformance.grpc_infer import output, parameter, request, tensor
from tests.conformance.http_infer import infer, one
from tests.conformance.python_repository import BROKEN_ENSEMBLES, ENSEMBLES
from tests.conformance.python_scripts import SEEN
from tests.conformance.row import Row, grouped, post, row
from tests.conformance.rows.python_models import levelled, run


def rows() -> Iterator[Row]:
    for group in (
        _infer,
        _unset,
        _shapes,
        _classes,
        _reported,
        _decoupled,
        _kept,
        _control,
        _statistics,
        _broken,
    ):
        yield from grouped(f"ensemble/{group.__name__[1:]}", group(), server="python")


def tidied(response: Any) -> Any:
    """As levelled; without elements there are no parameters."""
    response = levelled(response)
    outputs = response.get("reply", {}).get("outputs")
    if outputs is not None and all(not each.get("raw") for each in outputs):
        response["reply"].pop("parameters", None)
    return response


def _x(*numbers: float, shape: Any = None, name: str = "X") -> Any:
    return tensor(name, "FP32", shape or (len(numbers),), fp32_contents=numbers)


def _without_parameters(response: Any) -> Any:
    """The real server's cache forgets a reply's parameters."""
    response = tidied(response)
    response["reply"].pop("parameters", None)
    return response


def _infer() -> Iterator[Row]:
    flat = ("chain_flat", "diamond", "two_ends", "maybe", "nested")
    for model in flat:
        for numbers in ((1.0, 2.0), (), (-1.0,)):
            message = request(model, [_x(*numbers)], ())
            yield row(f"{model}-{numbers}", Rpc("ModelInfer", message), view=tidied)
        document = one([1, 2], (2,), "FP32")
        document["inputs"][0]["name"] = "X"
        yield infer(f"{model}-http", model, {**document, "id": "7"}, view=tidied)
        named = {**document, "parameters": {"binary_data_output": True}}
        yield infer(f"{model}-http-binary", model, named, view=tidied)
        wanted = {**document, "outputs": [{"name": "Y"}]}
        yield infer(f"{model}-http-output", model, wanted, view=tidied)
        unknown = {**document, "outputs": [{"name": "NOPE"}]}
        yield infer(f"{model}-http-unknown", model, unknown, view=tidied)
    everything = ("zeta", "o3", "alpha", "o1", "O4", "o2")
    for wanted_outputs in ((), everything, everything[::-1], ("o3", "o1"), ("alpha", "zeta")):
        message = request("several_outputs", [_x(1)], (), outputs=wanted_outputs)
        yield row(f"several_outputs-{wanted_outputs}", Rpc("ModelInfer", message))
        document = one([1], (1,), "FP32", outputs=[{"name": each} for each in wanted_outputs])
        document["inputs"][0]["name"] = "X"
        yield infer(f"several_outputs-http-{wanted_outputs}", "several_outputs", document)
    for shape in ((1, 2), (4, 1), (5, 1), (2,), (1, 1, 1)):
        count = shape[0] * shape[-1] if len(shape) == 2 else shape[0]
        message = request("chain", [_x(*[1.0] * count, shape=shape)], ())
        yield row(f"chain-{shape}", Rpc("ModelInfer", message), view=tidied)
    for name, inputs in {
        "both": [_x(1), _x(2, name="W")],
        "other": [_x(1, name="W")],
        "none": [],
        "unknown": [_x(1), _x(1, name="NOPE")],
    }.items():
        yield row(f"maybe-of-{name}", Rpc("ModelInfer", request("maybe", inputs, ())))
    wrong = tensor("X", "INT32", (1,), int_contents=[1])
    yield row("wrong-type", Rpc("ModelInfer", request("chain_flat", [wrong], ())))
    yield row("version", Rpc("ModelInfer", request("chain_flat", [_x(1)], (), version="1")))
    yield row("no-version", Rpc("ModelInfer", request("chain_flat", [_x(1)], (), version="2")))
    inputs = [_x(1), _x(1, 2, name="W")]
    yield row("step-fails", Rpc("ModelInfer", request("maybe", inputs, ())), view=levelled)


def _classes() -> Iterator[Row]:
    """Classes of an output that further steps take, by the labels of who has some."""
    for model in ("named_step", "named_own", "named_below"):
        for name, wanted in {"of-one": {"Y": 2}, "of-both": {"Y": 1, "Z": 3}, "of-other": {"Z": 9}}.items():  # fmt: skip
            outputs = [
                output(each, classification=parameter(int64_param=wanted[each]))
                if each in wanted
                else each
                for each in ("Y", "Z")
            ]
            message = request(model, [_x(1, 4, 2, 3)], (), outputs=outputs)
            yield row(f"{model}-{name}", Rpc("ModelInfer", message), view=tidied)
        document = one([1, 4, 2], (3,), "FP32")
        document["inputs"][0]["name"] = "X"
        outputs = [{"name": "Y", "parameters": {"classification": 3}}, {"name": "Z"}]
        yield infer(f"{model}-http", model, {**document, "outputs": outputs}, view=tidied)


def _unset() -> Iterator[Row]:
    """Outputs that a step does not give, and inputs that a request omits."""
    codes = {
        "both": "response = answer(texts('a'), numbers(1))",
        "out": "response = answer(texts('a'))",
        "y": "response = answer(numbers(1))",
    }
    for name, code in codes.items():
        script = tensor("CODE", "BYTES", (1,), bytes_contents=[code.encode()])
        message = request("partly", [script], ())
        yield row(f"partly-{name}", Rpc("ModelInfer", message), view=levelled)
        message = request("unset", [script, _x(5)], ())
        yield row(f"unset-{name}", Rpc("ModelInfer", message), view=levelled)
    for model in ("optional_twice", "optional_passed", "optional_nested"):
        for name, inputs in {"both": [_x(1), _x(2, name="W")], "one": [_x(1)]}.items():
            message = request(model, inputs, ())
            yield row(f"{model}-{name}", Rpc("ModelInfer", message), view=levelled)


def _shapes() -> Iterator[Row]:
    """Shapes that models give, as configured or not."""
    models = {
        **dict.fromkeys(("scripts", "batches", "batches_of_flat", "batches_twice"), (1, 1)),
        **dict.fromkeys(("batches_then_flat", "flat_then_batches"), (1, 1)),
        **dict.fromkeys(("script", "flat_of_batches", "flat_twice"), (1,)),
    }
    # Where a shape means a batch of two that is to be flat, or a scalar, Triton sends nonsense or
    # crashes.
    for shape in ((2,), (1, 2), (1, 1, 2), (1,)):
        code = f"response = answer(pb_utils.Tensor('Y', np.ones({shape}, np.float32)))"
        for model, given in models.items():
            script = tensor("CODE", "BYTES", given, bytes_contents=[code.encode()])
            message = request(model, [script], ())
            yield row(f"{model}-{shape}", Rpc("ModelInfer", message), view=levelled)


def _reported() -> Iterator[Row]:
    """What the step's model sees of the client's request."""
    cases: dict[str, dict[str, Any]] = {
        "nothing": {},
        "id": {"id": "7"},
        "timeout": {"parameters": {"timeout": parameter(int64_param=1000000)}},
        "correlation": {"parameters": {"sequence_id": parameter(int64_param=9)}},
        "correlation-text": {"parameters": {"sequence_id": parameter(string_param="nine")}},
        "correlation-negative": {"parameters": {"sequence_id": parameter(int64_param=-1)}},
        "start": {"parameters": {"sequence_start": parameter(bool_param=True)}},
        "parameter": {"parameters": {"a": parameter(string_param="b")}},
        "error": {"code": "response = failure('no')"},
        "raise": {"code": "PASS\nraise ValueError('no')"},
        "nothing-answered": {"code": "response = answer()"},
        "other-output": {"code": "response = answer(numbers(1))"},
    }
    for name, more in cases.items():
        code = str(more.pop("code", SEEN))
        inputs = [tensor("CODE", "BYTES", (1,), bytes_contents=[code.encode()])]
        message = request("told", inputs, (), **more)
        yield row(name, Rpc("ModelInfer", message), view=levelled)
        if name in {"error", "raise", "nothing-answered"}:
            document = one([code], (1,), "BYTES")
            document["inputs"][0]["name"] = "CODE"
            yield infer(f"{name}-http", "told", document, view=levelled)


def _decoupled() -> Iterator[Row]:
    for name, numbers in {"none": (), "one": (1.0,), "three": (1.0, 2.0, 3.0), "error": (-1.0,)}.items():  # fmt: skip
        message = request("repeats", [_x(*numbers)], (), id="7")
        yield row(f"{name}", Stream((message,)), view=_unmarked)
    codes = {
        "empty": "sender.send(answer(), flags=FINAL)",
        "two-empty": "sender.send(answer())\nsender.send(answer())\nsender.send(flags=FINAL)",
        "empty-and-one": "sender.send(answer())\nsender.send(answer(numbers(1)), flags=FINAL)",
        "final-alone": "sender.send(flags=FINAL)",
    }
    for name, code in codes.items():
        script = tensor("CODE", "BYTES", (1,), bytes_contents=[code.encode()])
        message = request("told_stream", [script], (), id="7")
        yield row(f"{name}", Stream((message,)), view=_unmarked)
    message = request("repeats", [_x(1)], ())
    yield row("infer", Rpc("ModelInfer", message))
    document = one([1], (1,), "FP32")
    document["inputs"][0]["name"] = "X"
    yield infer("http", "repeats", document)
    for model in ("chain_flat", "maybe"):
        yield row(f"stream-{model}", Stream((request(model, [_x(1)], ()),)), view=levelled)
        yield row(f"generate-{model}", post(f"models/{model}/generate", {"X": [1]}), view=levelled)


def _unmarked(response: Any) -> Any:
    """Without the mark of the last response: earlier steps may end only after it."""
    response = levelled(response)
    for reply in response["replies"]:
        reply.get("infer_response", {}).get("parameters", {}).pop("triton_final_response", None)
    return response


def _kept() -> Iterator[Row]:
    """Answers from the response cache, whoever asks: a client, a step, a model."""
    asked = [
        Rpc("ModelInfer", request(model, [_x(7)], ()))
        for model in ("kept", "kept", "kept_step", "kept_whole", "kept_whole")
    ]
    code = "found = sorted(told(ask('{}', [numbers(7, name='X')], ('N', 'Y')).exec()))"
    asked += [run("script", code.format(model)) for model in ("kept", "kept_step", "kept_whole")]
    # Now a step or a model is the first to ask.
    for number, model in enumerate(("kept_step", "kept_whole", "kept")):
        again = request(model, [_x(number)], ())
        asked += [Rpc("ModelInfer", again), Rpc("ModelInfer", request("kept", [_x(number)], ()))]
    asked.append(run("script", code.format("kept").replace("7", "8")))
    asked.append(Rpc("ModelInfer", request("kept", [_x(8)], ())))
    reported = [
        Rpc("ModelStatistics", pb.ModelStatisticsRequest(name=name))
        for name in ("kept", "kept_step", "kept_whole")
    ]
    yield row("shared", *asked, *reported, view=_without_parameters)


def _control() -> Iterator[Row]:
    for name in ENSEMBLES:
        yield row(f"{name}-metadata", Http(target=f"/v2/models/{name}"))
        yield row(f"{name}-config", Http(target=f"/v2/models/{name}/config"))
        yield row(f"{name}-ready", Http(target=f"/v2/models/{name}/ready"))
        message = pb.ModelConfigRequest(name=name)
        yield row(f"{name}-config-grpc", Rpc("ModelConfig", message))


def _broken() -> Iterator[Row]:
    for name in BROKEN_ENSEMBLES:
        yield row(f"{name}", post(f"repository/models/{name}/load"), view=levelled)
    yield row(
        "index",
        Http("POST", "/v2/repository/index"),
        view=lambda response: [
            each for each in response["json"] if each["name"].startswith("wrong_")
        ],
    )


def _statistics() -> Iterator[Row]:
    for name in ("chain", "chain_flat", "nested", "told"):
        ask = Rpc("ModelStatistics", pb.ModelStatisticsRequest(name=name))
        yield row(name, ask, view=levelled)
