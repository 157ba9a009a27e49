"""Shared memory over both protocols."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, Final

from tritonclient.grpc import service_pb2 as pb

from tests.conformance.exchange import Clear, Http, Region, Rpc, Step
from tests.conformance.grpc_infer import output, parameter, request, tensor
from tests.conformance.row import Row, grouped, post, row

_CLEAR: Final = Clear()

_KEY: Final = "/nereid_protocol_rows"


def _register(name: str = "r", kind: str = "system", **document: Any) -> Http:
    return post(f"{kind}sharedmemory/region/{name}/register", document)


def _status(name: str = "", kind: str = "system") -> Http:
    middle = f"region/{name}/" if name else ""
    return Http("GET", f"/v2/{kind}sharedmemory/{middle}status")


def _shared_memory() -> Iterator[Row]:
    make, drop = Region(_KEY, 4096), Region(_KEY)
    value: Any
    good: dict[str, Any] = {"key": _KEY, "offset": 0, "byte_size": 64}
    for kind in ("system", "cuda"):
        yield row(f"{kind}-status", _status(kind=kind))
        yield row(f"{kind}-status-unknown", _status("r", kind))
        yield row(f"{kind}-unregister", post(f"{kind}sharedmemory/unregister"))
        yield row(f"{kind}-unregister-unknown", post(f"{kind}sharedmemory/region/r/unregister"))
        for body in (b"", b"{", b"[]", b"1", b"{}"):
            yield row(
                f"{kind}-register-{body.decode()}",
                post(f"{kind}sharedmemory/region/r/register", body=body),
            )
    yield row(
        "registered",
        make,
        _register(**good),
        _status(),
        _status("r"),
        post("systemsharedmemory/region/r/unregister"),
        _status(),
        drop,
    )
    yield row("twice", make, _register(**good), _register(**good), _status(), _CLEAR, drop)
    everything = post("systemsharedmemory/unregister")
    yield row("unregister-all", make, _register(**good), everything, _status(), drop)
    yield row("no-such-file", _register(**{**good, "key": "/nereid_no_such"}))
    for key in ("key", "offset", "byte_size"):
        yield row(
            f"no-{key}",
            make,
            _register(**{name: each for name, each in good.items() if name != key}),
            _CLEAR,
            drop,
        )
        for value in (None, -1, "x", "", 1.5, True, [], {}):
            yield row(
                f"{key}-{json.dumps(value)}", make, _register(**{**good, key: value}), _CLEAR, drop
            )
    yield row(
        "same-key",
        make,
        _register(**good),
        _register("s", **good),
        _status(),
        _CLEAR,
        drop,
    )
    for key in ("/", "/triton_python_backend_shm_region_1"):
        yield row(f"key-{key}", _register(key=key, offset=0, byte_size=64))
    for offset, size in (
        (0, 4096),
        (0, 4097),
        (0, 0),
        (1, 8),
        (8, 8),
        (4096, 1),
        (4096, 0),
        (8192, 8),
        (0, 1 << 62),
        (1 << 62, 8),
        (1 << 63, 8),
        (4088, 16),
    ):
        yield row(
            f"range-{offset}-{size}",
            make,
            _register(key=_KEY, offset=offset, byte_size=size),
            _status(),
            _CLEAR,
            drop,
        )
    handle: dict[str, Any] = {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 8}
    yield row("cuda-handle", _register("c", "cuda", **handle))
    for key in handle:
        yield row(
            f"cuda-no-{key}",
            _register("c", "cuda", **{name: each for name, each in handle.items() if name != key}),
        )
    for name in ("a%20b", "é", "x" * 200):
        yield row(f"name-{name[:5]}", make, _register(name, **good), _status(), _CLEAR, drop)
    for name in ("", "r"):
        yield row(
            f"grpc-status-{name}",
            Rpc("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name=name)),
        )
        yield row(
            f"grpc-cuda-status-{name}",
            Rpc("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest(name=name)),
        )
        yield row(
            f"grpc-unregister-{name}",
            Rpc("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name=name)),
        )
    register = pb.SystemSharedMemoryRegisterRequest(name="r", key=_KEY, byte_size=64)
    asked = Rpc("SystemSharedMemoryRegister", register)
    status = Rpc("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest())
    yield row("grpc-registered", make, asked, status, asked, _status(), _CLEAR, drop)
    yield row("grpc-no-file", asked)
    nameless = pb.SystemSharedMemoryRegisterRequest(key=_KEY, byte_size=64)
    yield row(
        "grpc-nameless", make, Rpc("SystemSharedMemoryRegister", nameless), status, _CLEAR, drop
    )
    cuda = pb.CudaSharedMemoryRegisterRequest(
        name="c", raw_handle=b"x" * 64, device_id=0, byte_size=8
    )
    yield row("grpc-cuda", Rpc("CudaSharedMemoryRegister", cuda))


def _shared_memory_infer() -> Iterator[Row]:
    make, drop = Region(_KEY, 4096), Region(_KEY)
    register = _register(key=_KEY, offset=0, byte_size=64)

    def script(step: Step) -> tuple[Step, ...]:
        return (make, register, step, _CLEAR, drop)

    def http(source: Any, target: Any = None, **more: Any) -> Http:
        document: dict[str, Any] = {
            "inputs": [
                {
                    "name": "INPUT0",
                    "shape": [1, 2],
                    "datatype": "INT32",
                    "parameters": source,
                    **more,
                }
            ]
        }
        if target is not None:
            document["outputs"] = [{"name": "OUTPUT0", "parameters": target}]
        return post("models/identity_int32/infer", document)

    plain = {"data": [5, 6]}
    cases: dict[str, dict[str, Any]] = {
        "good": {"shared_memory_region": "r", "shared_memory_byte_size": 8}, "offset": {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 8},
        "too-small": {"shared_memory_region": "r", "shared_memory_byte_size": 4}, "too-large": {"shared_memory_region": "r", "shared_memory_byte_size": 16},
        "past-the-end": {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 60}, "offset-past": {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 64},
        "no-size": {"shared_memory_region": "r"}, "no-region": {"shared_memory_byte_size": 8}, "unknown": {"shared_memory_region": "nope", "shared_memory_byte_size": 8},
        "size-negative": {"shared_memory_region": "r", "shared_memory_byte_size": -1}, "size-string": {"shared_memory_region": "r", "shared_memory_byte_size": "8"},
        "region-number": {"shared_memory_region": 1, "shared_memory_byte_size": 8}, "offset-huge": {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": (1 << 64) - 8},
        "and-binary": {"shared_memory_region": "r", "shared_memory_byte_size": 8, "binary_data": True, "binary_data_size": 8}, "and-class": {"shared_memory_region": "r", "shared_memory_byte_size": 8, "classification": 1},
    }  # fmt: skip
    for name, where in cases.items():
        yield row(f"http-in-{name}", *script(http(where)))
        yield row(f"http-out-{name}", *script(http({}, where, **plain)))
    yield row("http-both", *script(http(cases["good"], cases["offset"])))
    yield row("http-data-and-region", *script(http(cases["good"], None, **plain)))
    two = struct.pack("<2i", 5, 6)
    for name, where in cases.items():
        if name.startswith("and-"):
            continue
        values = {}
        for key, value in where.items():
            kind = (
                "string_param"
                if isinstance(value, str)
                else "int64_param"
                if value < 1 << 63
                else "uint64_param"
            )
            values[key] = parameter(**{kind: value})
        source = request(inputs=[tensor(parameters=values)], raw=())
        yield row(f"grpc-in-{name}", *script(Rpc("ModelInfer", source)))
        yield row(
            f"grpc-out-{name}",
            *script(Rpc("ModelInfer", request(raw=(two,), outputs=[output("OUTPUT0", **values)]))),
        )


def rows() -> Iterator[Row]:
    yield from grouped("shared-memory", _shared_memory())
    yield from grouped("shared-memory/infer", _shared_memory_infer())
