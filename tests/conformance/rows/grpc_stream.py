"""gRPC: ModelStreamInfer."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from tests.conformance.exchange import Stream
from tests.conformance.grpc_infer import parameter, request, tensor
from tests.conformance.row import Row, grouped, row


def _streams() -> Iterator[Row]:
    good, bad = request(id="1"), request(id="2", raw=(b"x",))
    unknown, version = request("nope", id="3"), request(id="4", version="x")
    final = parameter(bool_param=True)
    no_final = request(id="7", parameters={"triton_enable_empty_final_response": final})
    failing = request(
        "fail", [tensor(datatype="INT64", shape=(1,))], (struct.pack("<q", 5000),), id="8"
    )
    cases: dict[str, tuple[Any, ...]] = {
        "one": (good,), "three": (good, request(id="5"), request("versions", [tensor(shape=(2,))], id="6")), "none": (),
        "bad": (bad,), "good-bad-good": (good, bad, request(id="5")), "unknown": (unknown,), "version": (version,), "no-id-bad": (request(raw=(b"x",)),),
        "empty-final": (no_final,), "empty-final-false": (request(parameters={"triton_enable_empty_final_response": parameter(bool_param=False)}),),
        "empty-final-int": (request(parameters={"triton_enable_empty_final_response": parameter(int64_param=1)}),),
        "reserved": (request(parameters={"triton_x": final}),), "garbage": (b"\xff\xff",), "good-garbage": (good, b"\xff\xff"), "empty-message": (b"",),
        "typed": (request(inputs=[tensor(int_contents=[1, 2])], raw=()),), "output": (request("add_sub", [tensor(shape=(1, 2))]),),
        "other-field": (request(inputs=[tensor(fp32_contents=[1, 2])], raw=()),), "many": tuple(request(id=str(each)) for each in range(40)),
    }  # fmt: skip
    for name, messages in cases.items():
        yield row(name, Stream(messages))
        if name not in {"none", "three", "many"}:
            yield row(f"{name}-errors-end", Stream(messages, (("triton_grpc_error", "true"),)))
    yield row("fails", Stream((failing,)), view=_without_error)
    yield row("fails-then-good", Stream((failing, good)), view=_without_error)
    yield row(
        "fails-errors-end",
        Stream((failing,), (("triton_grpc_error", "true"),)),
        view=_without_error,
    )
    for said in ("false", "TRUE", "1", ""):
        yield row(f"bad-errors-end-{said}", Stream((bad,), (("triton_grpc_error", said),)))


def _without_error(response: Any) -> Any:
    """What a failing model says is its backend's own."""
    if isinstance(response, dict):
        for reply in response.get("replies", ()):
            if "error_message" in reply:
                reply["error_message"] = "some"
        response.pop("details", None)
    return response


def rows() -> Iterator[Row]:
    yield from grouped("grpc/stream", _streams())
