"""gRPC: ModelInfer."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from tests.conformance.grpc_infer import TWO, infer, output, parameter, tensor
from tests.conformance.row import Row, grouped, without_texts

_CONTENTS: Final[dict[str, tuple[str, Any]]] = {
    "BOOL": ("bool_contents", [True, False]),
    "UINT8": ("uint_contents", [1, 255]),
    "UINT16": ("uint_contents", [1, 65535]),
    "UINT32": ("uint_contents", [1, 4294967295]),
    "UINT64": ("uint64_contents", [1, (1 << 64) - 1]),
    "INT8": ("int_contents", [-128, 127]),
    "INT16": ("int_contents", [-32768, 32767]),
    "INT32": ("int_contents", [-(1 << 31), 7]),
    "INT64": ("int64_contents", [-(1 << 63), 7]),
    "FP32": ("fp32_contents", [0.1, -1.5]),
    "FP64": ("fp64_contents", [0.1, 1e300]),
    "BYTES": ("bytes_contents", [b"a", "é".encode()]),
}


def _inputs() -> Iterator[Row]:
    four = struct.pack("<4i", 1, 2, 3, 4)
    left, right = tensor(shape=(1, 4)), tensor("INPUT1", shape=(1, 4))
    for name, inputs in {
        "both": [left, right], "swapped": [right, left], "first": [left], "second": [right], "none": [], "twice": [left, left],
        "thrice": [left, right, left], "other": [left, tensor("OTHER", shape=(1, 4))], "empty-name": [left, tensor("", shape=(1, 4))],
        "other-type": [left, tensor("INPUT1", "FP32", (1, 4))], "unknown-type": [left, tensor("INPUT1", "INT33", (1, 4))],
        "no-type": [left, tensor("INPUT1", "", (1, 4))], "lower-type": [left, tensor("INPUT1", "int32", (1, 4))],
        "type-prefix": [left, tensor("INPUT1", "TYPE_INT32", (1, 4))], "string-type": [left, tensor("INPUT1", "STRING", (1, 4))],
    }.items():  # fmt: skip
        yield infer(name, "add_sub", inputs, [four] * len(inputs))
    for name in ("a", "é", "x" * 300, "a\0b", 'a"b\n'):
        yield infer(f"id-{name[:9]}", id=name)
        yield infer(f"id-{name[:9]}-bad", raw=(b"x",), id=name)
    bad = [b"\xff\xfe", b"a", "\U0010fe80".encode(), b"\xc3"]
    raw = b"".join(struct.pack("<I", len(each)) + each for each in bad)
    strings = tensor(datatype="BYTES", shape=(1, 4))
    yield infer("not-utf8", "identity_bytes", [strings], (raw,))
    contents = tensor(datatype="BYTES", shape=(1, 4), bytes_contents=bad)
    yield infer("not-utf8-contents", "identity_bytes", [contents], ())
    yield infer(
        "fails",
        "fail",
        [tensor(datatype="INT64", shape=(1,))],
        (struct.pack("<q", 5000),),
        view=without_texts,
    )
    yield infer("works", "fail", [tensor(datatype="INT64", shape=(1,))], (struct.pack("<q", 5),))


def _contents() -> Iterator[Row]:
    for datatype, (field, values) in _CONTENTS.items():
        model = f"identity_{datatype.lower()}"
        yield infer(f"{datatype}", model, [tensor(datatype=datatype, **{field: values})], ())
        yield infer(
            f"{datatype}-few", model, [tensor(datatype=datatype, **{field: values[:1]})], ()
        )
        yield infer(
            f"{datatype}-many", model, [tensor(datatype=datatype, **{field: values * 2})], ()
        )
        yield infer(f"{datatype}-none", model, [tensor(datatype=datatype)], ())
        yield infer(f"{datatype}-zero", model, [tensor(datatype=datatype, shape=(1, 0))], ())
        other, others = _CONTENTS["FP64" if datatype == "FP32" else "FP32"]
        yield infer(
            f"{datatype}-other-field", model, [tensor(datatype=datatype, **{other: others})], ()
        )
        yield infer(
            f"{datatype}-two-fields",
            model,
            [tensor(datatype=datatype, **{field: values, other: others})],
            (),
        )
    for datatype in ("FP16", "BF16", "INT33", ""):
        model = f"identity_{datatype.lower()}" if datatype.endswith("16") else "identity_int32"
        yield infer(
            f"{datatype}-typed", model, [tensor(datatype=datatype, fp32_contents=[1, 2])], ()
        )
    for datatype, low, high in (
        ("INT8", -129, 128),
        ("INT16", -32769, 32768),
        ("UINT8", 0, 256),
        ("UINT16", 0, 65536),
    ):
        contents: dict[str, Any] = {_CONTENTS[datatype][0]: [low, high]}
        yield infer(
            f"{datatype}-out-of-range",
            f"identity_{datatype.lower()}",
            [tensor(datatype=datatype, **contents)],
            (),
        )
    yield infer(
        "BYTES-empty", "identity_bytes", [tensor(datatype="BYTES", bytes_contents=[b"", b"\0"])], ()
    )
    mixed = [tensor("A", shape=(2,), int_contents=[1, 2]), tensor("B", "BYTES", (1,), bytes_contents=[b"x"]),
             tensor("C", "FP64", (2,), fp64_contents=[1, 2])]  # fmt: skip
    yield infer("several", "several", mixed, ())
    yield infer("both-kinds", raw=(TWO,), inputs=[tensor(int_contents=[1, 2])])
    yield infer("raw-and-typed-apart", "several", mixed, (TWO,))


def _raw() -> Iterator[Row]:
    for name, raw in {
        "none": (), "empty": (b"",), "short": (TWO[:7],), "long": (TWO + b"x",), "double": (TWO * 2,), "surplus": (TWO, TWO),
        "surplus-empty": (TWO, b""),
    }.items():  # fmt: skip
        yield infer(name, raw=raw)
    texts = b"\1\0\0\0a\3\0\0\0bcd"
    for name, content in {
        "good": texts, "cut": texts[:-1], "cut-length": texts[:6], "longer": texts + b"x", "third": texts + bytes(4), "one": texts[:5],
        "empty": b"", "length-too-large": b"\xff\xff\xff\xff" + texts[4:], "zeros": bytes(8),
    }.items():  # fmt: skip
        yield infer(f"bytes-{name}", "identity_bytes", [tensor(datatype="BYTES")], (content,))
    for datatype, content in (
        ("FP16", b"\0\x3c\0\xc0"),
        ("BF16", b"\x80\x3f\0\xc0"),
        ("BOOL", b"\1\0"),
        ("BOOL", b"\2\xff"),
        ("UINT64", b"\xff" * 16),
    ):
        yield infer(
            f"{datatype}-{content.hex()}",
            f"identity_{datatype.lower()}",
            [tensor(datatype=datatype)],
            (content,),
        )
    several = [tensor("C", "FP64", (2,)), tensor("A", shape=(2,)), tensor("B", "BYTES", (2,))]
    contents = (struct.pack("<2d", 1, 2), TWO, texts)
    yield infer("several", "several", several, contents)
    yield infer("several-too-few", "several", several, contents[:2])
    yield infer("several-swapped", "several", several, contents[::-1])


def _shapes() -> Iterator[Row]:
    content = struct.pack("<6i", *range(6))
    for shape in (
        (1, 6),
        (6, 1),
        (2, 3),
        (6,),
        (),
        (1, 1, 6),
        (0, 6),
        (1, 0),
        (1, -1),
        (-1, 6),
        (9, 1),
        (1, 7),
        (-1, -6),
        (1, -(1 << 63)),
    ):
        yield infer(f"batched-{shape}", inputs=[tensor(shape=shape)], raw=(content,))
        yield infer(
            f"plain-{shape}", "matrix_fp32", [tensor(datatype="FP32", shape=shape)], (content,)
        )
        yield infer(f"fixed-{shape}", "fixed", [tensor(datatype="FP32", shape=shape)], (content,))
        yield infer(
            f"bytes-{shape}",
            "matrix_bytes",
            [tensor(datatype="BYTES", shape=shape)],
            (b"\1\0\0\0x" * 6,),
        )
    for shape in ((1, 0), (0, 1), (0, 0)):
        yield infer(
            f"empty-plain-{shape}", "matrix_fp32", [tensor(datatype="FP32", shape=shape)], (b"",)
        )
        yield infer(
            f"empty-bytes-{shape}", "matrix_bytes", [tensor(datatype="BYTES", shape=shape)], (b"",)
        )
    for shape in ((1, 0), (0, 1)):
        yield infer(f"empty-batched-{shape}", inputs=[tensor(shape=shape)], raw=(b"",))
    yield infer("batch-largest", inputs=[tensor(shape=(8, 1))], raw=(bytes(32),))
    yield infer("batch-too-large", inputs=[tensor(shape=(9, 1))], raw=(bytes(36),))


def _outputs() -> Iterator[Row]:
    inputs = [tensor(shape=(1, 4)), tensor("INPUT1", shape=(1, 4))]
    four = struct.pack("<4i", 1, 2, 3, 4)
    for name, outputs in {
        "one": ["OUTPUT1"], "swapped": ["OUTPUT1", "OUTPUT0"], "twice": ["OUTPUT0", "OUTPUT0"], "unknown": ["OUTPUT7"],
        "known-and-unknown": ["OUTPUT0", "X"], "empty": [""], "input-name": ["INPUT0"],
        "class": [output("OUTPUT0", classification=parameter(int64_param=2))],
        "class-zero": [output("OUTPUT0", classification=parameter(int64_param=0))],
        "class-negative": [output("OUTPUT0", classification=parameter(int64_param=-1))],
        "class-many": [output("OUTPUT0", classification=parameter(int64_param=99))],
        "class-string": [output("OUTPUT0", classification=parameter(string_param="2"))],
        "class-uint": [output("OUTPUT0", classification=parameter(uint64_param=2))],
        "class-and-plain": [output("OUTPUT0", classification=parameter(int64_param=2)), "OUTPUT1"],
        "class-then-plain": [output("OUTPUT0", classification=parameter(int64_param=2)), "OUTPUT0"],
        "plain-then-class": ["OUTPUT0", output("OUTPUT0", classification=parameter(int64_param=2))],
        "class-then-class": [output("OUTPUT0", classification=parameter(int64_param=each)) for each in (1, 2)],
        "binary": [output("OUTPUT0", binary_data=parameter(bool_param=False))],
        "unknown-parameter": [output("OUTPUT0", x=parameter(int64_param=2))],
    }.items():  # fmt: skip
        yield infer(name, "add_sub", inputs, (four, four), outputs=outputs)
    labelled = [tensor(datatype="FP32", shape=(1, 4))]
    wanted = [output("OUTPUT0", classification=parameter(int64_param=4))]
    yield infer(
        "labels", "labelled", labelled, (struct.pack("<4f", 0.5, 3, -1, 2),), outputs=wanted
    )
    for datatype in ("BOOL", "FP16", "BF16"):
        size = 2 if datatype == "BOOL" else 4
        yield infer(
            f"class-{datatype}",
            f"identity_{datatype.lower()}",
            [tensor(datatype=datatype)],
            (b"\0" * size,),
            outputs=wanted,
        )


def _parameters() -> Iterator[Row]:
    values = {
        "bool": parameter(bool_param=True), "int": parameter(int64_param=1), "zero": parameter(int64_param=0), "negative": parameter(int64_param=-1),
        "uint": parameter(uint64_param=1), "string": parameter(string_param="a"), "double": parameter(double_param=1.5), "unset": parameter(),
        "huge": parameter(uint64_param=(1 << 64) - 1), "empty": parameter(string_param=""),
    }  # fmt: skip
    for key in (
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "other",
        "binary_data_output",
    ):
        for name, value in values.items():
            if (key, name) != ("timeout", "int"):
                yield infer(f"{key}-{name}", parameters={key: value})
    for key in (
        "triton_x",
        "triton_enable_empty_final_response",
        "triton_final_response",
        "headers",
        "",
        "a b",
    ):
        yield infer(f"key-{key}", parameters={key: values["bool"]})
        yield infer(f"key-{key}-string", parameters={key: values["string"]})
    sequence = {
        "sequence_id": values["int"],
        "sequence_start": values["bool"],
        "sequence_end": values["bool"],
    }
    yield infer("sequence", parameters=sequence)
    yield infer("sequence-text", parameters={**sequence, "sequence_id": values["string"]})
    for name, value in values.items():
        yield infer(f"input-{name}", inputs=[tensor(parameters={"x": value})])
        yield infer(f"region-{name}", inputs=[tensor(parameters={"shared_memory_region": value})])
        yield infer(
            f"binary_data_size-{name}", inputs=[tensor(parameters={"binary_data_size": value})]
        )


def rows() -> Iterator[Row]:
    yield from grouped("grpc/inputs", _inputs())
    yield from grouped("grpc/contents", _contents())
    yield from grouped("grpc/raw", _raw())
    yield from grouped("grpc/shape", _shapes())
    yield from grouped("grpc/outputs", _outputs())
    yield from grouped("grpc/parameters", _parameters())
