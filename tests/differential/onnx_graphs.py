"""ONNX graphs as exporters and optimisers make them, and as nobody would on purpose."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from tests.differential.case import Arrays, Case, DirectCallError, tensor_text
from tests.support.models.onnx_models import value, write

DTYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BF16": ml_dtypes.bfloat16,
    "BYTES": np.object_,
}
node = helper.make_node
Tensors = list[tuple[str, str, list[Any] | None]]


def cases(seed: int) -> list[Case]:
    """Return the graphs, with requests of this seed."""
    return [make(seed) for make in _MAKERS]


class Graph:
    """Builds the files, and calls the first of them without any optimisation."""

    def __init__(self, build: Callable[[Path], object], *, batching: bool) -> None:
        self._build, self._batching = build, batching
        self._session: ort.InferenceSession | None = None

    def build(self, directory: Path) -> None:
        self._build(directory)
        if self._session is None:
            options = ort.SessionOptions()
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.log_severity_level = 4
            # Kept: a later build has the same bytes.
            self._session = ort.InferenceSession(
                directory / "model.onnx", options, providers=["CPUExecutionProvider"]
            )

    def call(self, arrays: Arrays) -> Arrays:
        assert self._session is not None
        names = [output.name for output in self._session.get_outputs()]
        feeds = {name: _as_fed(array) for name, array in arrays.items()}
        try:
            if any("bfloat16" in each.type for each in _described(self._session)):
                values = {name: _ort_value(array) for name, array in feeds.items()}
                found = self._session.run_with_ort_values(names, values)
                made = [_from_ort_value(value) for value in found]
            else:
                made = self._session.run(names, feeds)
        except Exception as error:
            raise DirectCallError(str(error)) from error
        # A scalar of a batch of one has the dimension that its batch has.
        return {
            name: np.asarray(array).reshape(1) if self._batching and not np.ndim(array) else array
            for name, array in zip(names, made, strict=True)
        }


def _described(session: ort.InferenceSession) -> Iterator[Any]:
    yield from session.get_inputs()
    yield from session.get_outputs()


def _ort_value(array: np.ndarray[Any, np.dtype[Any]]) -> ort.OrtValue:
    if array.dtype != ml_dtypes.bfloat16:
        return ort.OrtValue.ortvalue_from_numpy(array)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
        array.view(np.uint16), TensorProto.BFLOAT16
    )


def _from_ort_value(value: ort.OrtValue) -> np.ndarray[Any, np.dtype[Any]]:
    if value.data_type() != "tensor(bfloat16)":
        array: np.ndarray[Any, np.dtype[Any]] = value.numpy()
        return array
    shape = tuple(value.shape())
    raw = ctypes.string_at(value.data_ptr(), 2 * int(np.prod(shape)))
    return np.frombuffer(raw, ml_dtypes.bfloat16).reshape(shape)


def _as_fed(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a copy with text as the runtime takes it."""
    if array.dtype != np.object_:
        return array.copy()
    return np.array([text.decode() for text in array.flat], np.object_).reshape(array.shape)


def random_array(
    rng: np.random.Generator, datatype: str, shape: tuple[int, ...]
) -> np.ndarray[Any, np.dtype[Any]]:
    """Return values over the datatype's range, with zeros, infinities and odd bytes among them."""
    dtype = np.dtype(DTYPES[datatype])
    if datatype == "BYTES":
        texts = [b"", b"a", "größe".encode(), b"x" * 300, b'\x01 "quoted"']
        flat = [texts[rng.integers(len(texts))] for _ in range(int(np.prod(shape)))]
        array = np.empty(len(flat), np.object_)
        array[:] = flat
        return array.reshape(shape)
    if datatype == "BOOL":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        info: np.iinfo[Any] = np.iinfo(dtype)
        return rng.integers(info.min // 2, info.max // 2, shape).astype(dtype)
    array = (rng.standard_normal(shape) * 100).astype(dtype)
    return np.where(rng.integers(0, 5, shape) == 0, dtype.type(-0.0), array).astype(dtype)


def write_passing(directory: Path, case: Case) -> None:
    """Write a graph that passes the outputs of a case on, of any rank."""
    write(
        directory,
        [node("Identity", [name], [f"{name}_passed"]) for name, _, _ in case.outputs],
        [value(name, datatype, None) for name, datatype, _ in case.outputs],
        [value(f"{name}_passed", datatype, None) for name, datatype, _ in case.outputs],
    )


def passing_text(case: Case) -> str:
    """Return the configuration of the graph that passes the outputs of a case on."""
    lines = [
        'backend: "onnxruntime"',
        f"max_batch_size: {8 if case.batching else 0}",
        *(tensor_text("input", *each) for each in case.outputs),
        *(
            tensor_text("output", f"{name}_passed", datatype, dims)
            for name, datatype, dims in case.outputs
        ),
    ]
    return "\n".join(lines)


def _case(
    name: str,
    nodes: list[onnx.NodeProto],
    inputs: Tensors,
    outputs: Tensors,
    *,
    request: Callable[[np.random.Generator, int], dict[str, Any]] | None = None,
    batching: bool = False,
    initializers: list[onnx.TensorProto] | None = None,
    declared: dict[str, tuple[int, ...]] | None = None,
    fits_json: bool = True,
    shares_batches: bool = True,
    optional: frozenset[str] = frozenset(),
) -> Callable[[int], Case]:
    """declared: an output's dims in config.pbtxt, where they are not those of the graph."""

    def make(seed: int) -> Case:
        def dims_of(tensor: str, dims: list[Any] | None) -> tuple[int, ...]:
            given = (declared or {}).get(tensor)
            if given is not None:
                return given
            rest = (dims or [])[1 if batching else 0 :]
            return tuple(dim if isinstance(dim, int) else -1 for dim in rest)

        def default(rng: np.random.Generator, number: int) -> dict[str, Any]:
            sizes: dict[Any, int] = {}
            rows = 1 + number % 3 if batching else 0
            arrays = {}
            for tensor, datatype, dims in inputs:
                shape = tuple(
                    rows
                    if batching and place == 0
                    else dim
                    if isinstance(dim, int)
                    else sizes.setdefault(dim, 4)
                    for place, dim in enumerate(dims or [])
                )
                arrays[tensor] = random_array(rng, datatype, shape)
            return arrays

        def make_request(number: int) -> Arrays:
            rng = np.random.default_rng([seed, number])
            return (request or default)(rng, number)

        graph = Graph(
            lambda directory: write(
                directory,
                nodes,
                [value(*tensor) for tensor in inputs],
                [value(*tensor) for tensor in outputs],
                initializers,
            ),
            batching=batching,
        )
        return Case(
            name,
            "onnxruntime",
            batching,
            graph.build,
            tuple((t, datatype, dims_of(t, dims)) for t, datatype, dims in inputs),
            tuple((t, datatype, dims_of(t, dims)) for t, datatype, dims in outputs),
            make_request,
            graph.call,
            fits_json=fits_json,
            shares_batches=shares_batches,
            optional=optional,
        )

    return make


def _constant(name: str, array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def _input_is_output(datatype: str, other: onnx.NodeProto) -> Callable[[int], Case]:
    dims = ["n", 4]
    return _case(
        f"input_is_output_{datatype.lower()}",
        [other],
        [("X", datatype, dims)],
        [("X", datatype, dims), ("Y", datatype, dims)],
        batching=True,
    )


def _if(then_passes: bool) -> Callable[[int], Case]:
    """A branch that only passes a value of the outer graph on, beside one that computes."""

    def branch(name: str, passes: bool) -> onnx.GraphProto:
        made = node("Identity", ["X"], [name]) if passes else node("Neg", ["X"], [name])
        return helper.make_graph([made], name, [], [value(name, "FP32", ["n", 4])])

    return _case(
        f"if_{'then' if then_passes else 'else'}_passes",
        [
            node(
                "If",
                ["C"],
                ["Y"],
                then_branch=branch("then_out", then_passes),
                else_branch=branch("else_out", not then_passes),
            )
        ],
        [("C", "BOOL", [1]), ("X", "FP32", ["n", 4])],
        [("Y", "FP32", ["n", 4])],
        request=lambda rng, number: {
            "C": np.array([number % 2 == 0]),
            "X": random_array(rng, "FP32", (2, 4)),
        },
    )


def _loop() -> Callable[[int], Case]:
    """Doubles X as often as T says: no iteration gives X itself, each one more a new array."""
    body = helper.make_graph(
        [node("Add", ["v", "v"], ["v_out"]), node("Identity", ["c"], ["c_out"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            value("v", "FP32", ["n"]),
        ],
        [
            helper.make_tensor_value_info("c_out", TensorProto.BOOL, []),
            value("v_out", "FP32", ["n"]),
        ],
    )
    return _case(
        "loop",
        [node("Squeeze", ["T"], ["t"]), node("Loop", ["t", "", "X"], ["Y"], body=body)],
        [("T", "INT64", [1]), ("X", "FP32", ["n"])],
        [("Y", "FP32", ["m"])],
        request=lambda rng, number: {
            "T": np.array([number % 3]),
            "X": random_array(rng, "FP32", (5,)),
        },
    )


def _int4() -> Callable[[int], Case]:
    weights = helper.make_tensor(
        "W", TensorProto.INT4, [4], np.array([0x21, 0xF3], np.uint8).tobytes(), raw=True
    )
    return _case(
        "int4_weights",
        [node("DequantizeLinear", ["W", "S"], ["w"]), node("Add", ["X", "w"], ["Y"])],
        [("X", "FP32", ["n", 4])],
        [("Y", "FP32", ["n", 4])],
        initializers=[weights, _constant("S", np.float32(0.5))],
        batching=True,
    )


def _x(name: str, nodes: list[onnx.NodeProto], outputs: Tensors, **more: Any) -> Any:
    """Return a case with an input X[n, 4] of FP32."""
    inputs: Tensors = [("X", "FP32", ["n", 4]), *more.pop("more_inputs", ())]
    return _case(name, nodes, inputs, outputs, **more)


def _numbers(shape: tuple[int, ...], rng: np.random.Generator, number: int) -> dict[str, Any]:
    # Each second request has other counts of zeros, so data decide the shapes of outputs.
    array = random_array(rng, "FP32", shape)
    return {"X": np.where(rng.integers(0, 2 + number % 3, shape) == 0, np.float32(0), array)}


_Y: Tensors = [("Y", "FP32", ["n", 4])]
_MAKERS: tuple[Callable[[int], Case], ...] = (
    _input_is_output("FP32", node("Add", ["X", "X"], ["Y"])),
    _input_is_output("FP16", node("Add", ["X", "X"], ["Y"])),
    _input_is_output("INT64", node("Add", ["X", "X"], ["Y"])),
    _input_is_output("UINT8", node("Add", ["X", "X"], ["Y"])),
    _input_is_output("BOOL", node("Not", ["X"], ["Y"])),
    _input_is_output("BYTES", node("Identity", ["X"], ["Y"])),
    _input_is_output("BF16", node("Identity", ["X"], ["Y"])),
    _case(
        "bf16_beside_fp32",
        [
            node("Cast", ["X"], ["x"], to=TensorProto.FLOAT),
            node("Add", ["x", "C"], ["Y"]),
            node("Cast", ["Y"], ["Z"], to=TensorProto.BFLOAT16),
        ],
        [("X", "BF16", ["n", 3])],
        [("Y", "FP32", ["n", 3]), ("Z", "BF16", ["n", 3])],
        initializers=[_constant("C", np.float32(0.5))],
        batching=True,
    ),
    _x(
        "optional_initializer",
        [node("Add", ["X", "C"], ["Y"])],
        [*_Y, ("C", "FP32", [4])],
        more_inputs=[("C", "FP32", [4])],
        initializers=[_constant("C", np.arange(4, dtype=np.float32))],
        request=lambda rng, number: {
            name: random_array(rng, "FP32", shape)
            for name, shape in (("X", (2, 4)), ("C", (4,)))
            if name == "X" or number % 3
        },
        optional=frozenset("C"),
    ),
    _case(
        "optional_that_the_graph_needs",
        [node("Add", ["X", "C"], ["Y"])],
        [("X", "INT32", ["n"]), ("C", "INT32", [1])],
        [("Y", "INT32", ["n"])],
        request=lambda rng, number: {
            name: random_array(rng, "INT32", (1,)) for name in ("X", "C")[: 1 + number % 3]
        },
        optional=frozenset("C"),
    ),
    _case(
        "only_the_input",
        [node("Identity", ["X"], ["unused"])],
        [("X", "INT64", ["n", 2])],
        [("X", "INT64", ["n", 2])],
        batching=True,
    ),
    _x(
        "initializer_is_output",
        [node("Add", ["X", "C"], ["Y"])],
        [*_Y, ("C", "FP32", [4])],
        initializers=[_constant("C", np.arange(4, dtype=np.float32))],
    ),
    _x(
        "one_value_by_three_names",
        [
            node("Add", ["X", "X"], ["Y"]),
            node("Identity", ["Y"], ["Z"]),
            node("Dropout", ["Z"], ["W"]),
        ],
        [*_Y, ("Z", "FP32", ["n", 4]), ("W", "FP32", ["n", 4])],
        batching=True,
    ),
    _x(
        "views_of_the_input",
        [
            node("Identity", ["X"], ["Y"]),
            node("Flatten", ["X"], ["Z"]),
            node("Cast", ["X"], ["W"], to=TensorProto.FLOAT),
            node("Transpose", ["X"], ["T"], perm=[0, 1]),
        ],
        [*_Y, *((name, "FP32", ["n", 4]) for name in "ZWT")],
        batching=True,
    ),
    _x(
        "slices",
        [
            node("Slice", ["X", "B", "E", "A"], ["Y"]),
            node("Split", ["X"], ["Z", "W"], axis=1, num_outputs=2),
        ],
        [("Y", "FP32", ["n", 2]), ("Z", "FP32", ["n", 2]), ("W", "FP32", ["n", 2])],
        initializers=[_constant("B", [1]), _constant("E", [3]), _constant("A", [1])],
        batching=True,
    ),
    _x(
        "transposed",
        [node("Transpose", ["X"], ["Y"], perm=[1, 0])],
        [("Y", "FP32", [4, "n"])],
        request=lambda rng, _: {"X": random_array(rng, "FP32", (3, 4))},
    ),
    _if(then_passes=True),
    _if(then_passes=False),
    _loop(),
    _x(
        "sequence",
        [node("SequenceConstruct", ["X", "X"], ["s"]), node("SequenceAt", ["s", "I"], ["Y"])],
        _Y,
        initializers=[_constant("I", np.int64(1))],
        batching=True,
    ),
    _x(
        "scalar_of_a_batch",
        [node("ReduceSum", ["X"], ["Y"], keepdims=0)],
        [("Y", "FP32", None)],
        request=lambda rng, _: {"X": random_array(rng, "FP32", (1, 4))},
        declared={"Y": (1,)},
        batching=True,
        shares_batches=False,
    ),
    _case(
        "empty",
        [node("Identity", ["X"], ["Y"]), node("Shape", ["X"], ["S"])],
        [("X", "FP32", ["n", "m"])],
        [("Y", "FP32", ["n", "m"]), ("S", "INT64", [2])],
        request=lambda rng, number: {"X": random_array(rng, "FP32", (number % 2, number % 3))},
    ),
    _case(
        "text",
        [node("Identity", ["X"], ["Y"]), node("Concat", ["X", "X"], ["Z"], axis=1)],
        [("X", "BYTES", ["n", 2])],
        [("Y", "BYTES", ["n", 2]), ("Z", "BYTES", ["n", 4])],
        batching=True,
    ),
    _int4(),
    _x(
        "non_zero",
        [node("NonZero", ["X"], ["Y"])],
        [("Y", "INT64", [2, "k"])],
        request=partial(_numbers, (3, 4)),
    ),
    _case(
        "compress",
        [node("Compress", ["X", "C"], ["Y"], axis=0)],
        [("X", "FP32", ["n", 2]), ("C", "BOOL", ["n"])],
        [("Y", "FP32", ["k", 2])],
        request=lambda rng, _: {
            "X": random_array(rng, "FP32", (5, 2)),
            "C": rng.integers(0, 2, 5).astype(np.bool_),
        },
    ),
    _case(
        "unique",
        [node("Unique", ["X"], ["Y", "", "I"])],
        [("X", "INT64", ["n"])],
        [("Y", "INT64", ["k"]), ("I", "INT64", ["n"])],
        request=lambda rng, _: {"X": rng.integers(0, 4, 7)},
    ),
    _case(
        "boxes_declared_by_an_example",
        [node("Reshape", ["X", "S"], ["Y"])],
        [("X", "FP32", [1, 1, "h", "w"])],
        [("Y", "FP32", [8, 2])],
        initializers=[_constant("S", [-1, 2])],
        request=lambda rng, number: {"X": random_array(rng, "FP32", (1, 1, 4 + number % 2 * 4, 4))},
        declared={"Y": (-1, 2)},
    ),
    _case(
        "output_of_an_unknown_shape",
        [node("Reshape", ["X", "S"], ["Y"])],
        [("X", "FP32", ["n"]), ("S", "INT64", ["r"])],
        [("Y", "FP32", None)],
        request=lambda rng, number: {
            "X": random_array(rng, "FP32", (12,)),
            "S": np.array([[12], [3, 4], [2, 3, 2]][number % 3]),
        },
        declared={"Y": (-1,)},
    ),
    _x(
        "constant_of_shape",
        [
            node("Shape", ["X"], ["s"]),
            node("ConstantOfShape", ["s"], ["Y"], value=_constant("", np.array([7], np.float32))),
        ],
        _Y,
        batching=True,
    ),
    _case(
        "index_that_may_be_out_of_range",
        [node("Gather", ["X", "I"], ["Y"])],
        [("X", "FP32", ["n"]), ("I", "INT64", ["k"])],
        [("Y", "FP32", ["k"])],
        request=lambda rng, number: {
            "X": random_array(rng, "FP32", (4,)),
            "I": np.array([0, 9 if number % 4 == 3 else -1]),
        },
    ),
    _x(
        "nothing_but_nan",
        [node("Sqrt", ["N"], ["q"]), node("Add", ["X", "q"], ["Y"])],
        _Y,
        initializers=[_constant("N", np.full((1, 4), -1, np.float32))],
        batching=True,
        # It has one NaN, without a sign or a payload.
        fits_json=False,
    ),
    _case(
        "large",
        [node("Identity", ["X"], ["Y"]), node("Neg", ["X"], ["Z"])],
        [("X", "FP32", ["n", 20_000])],
        [("Y", "FP32", ["n", 20_000]), ("Z", "FP32", ["n", 20_000])],
        batching=True,
    ),
)
