"""Reads the safetensors format: an 8-byte length, a JSON header, then the tensors' bytes.

The `safetensors` package does the same; the format is small enough that one dependency less is
worth these lines. Knows nothing of the model whose weights it reads.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LENGTH_BYTES = 8

DTYPES = {
    "BOOL": np.dtype("?"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}


class SafetensorsError(ValueError):
    """The bytes are not a safetensors file, or one with a datatype that NumPy lacks."""


def load(path: Path) -> dict[str, NDArray[Any]]:
    return parse(path.read_bytes())


def parse(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the file's tensors by name, as read-only views of `content`."""
    data_start = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    if len(content) < LENGTH_BYTES or data_start > len(content):
        raise SafetensorsError(f"header ends at byte {data_start} of {len(content)}")
    try:
        header = json.loads(content[LENGTH_BYTES:data_start])
    except ValueError as error:
        raise SafetensorsError(f"header is not JSON: {error}") from error
    data = memoryview(content)[data_start:]
    return {
        name: _tensor(name, entry, data) for name, entry in header.items() if name != "__metadata__"
    }


def _tensor(name: str, entry: dict[str, Any], data: memoryview) -> NDArray[Any]:
    dtype = DTYPES.get(entry["dtype"])
    if dtype is None:
        raise SafetensorsError(f"tensor '{name}' has unsupported datatype {entry['dtype']}")
    start, end = entry["data_offsets"]
    expected_bytes = dtype.itemsize * int(np.prod(entry["shape"], dtype=np.int64))
    if not 0 <= start <= end <= len(data) or end - start != expected_bytes:
        raise SafetensorsError(
            f"tensor '{name}' needs {expected_bytes} bytes, has offsets {start} to {end} "
            f"of {len(data)}"
        )
    return np.frombuffer(data[start:end], dtype).reshape(entry["shape"])
