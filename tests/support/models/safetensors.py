"""Files of safetensors, as sentence-transformers writes them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

_DTYPES = {"float16": "F16", "float32": "F32", "float64": "F64", "uint16": "BF16"}


def encoded(**tensors: np.ndarray[Any, Any]) -> bytes:
    """A file of tensors; `__` stands for a dot, and uint16 for bfloat16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        raw = tensor.tobytes()
        header[name.replace("__", ".")] = {
            "dtype": _DTYPES[str(tensor.dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    written = json.dumps(header).encode()
    return len(written).to_bytes(8, "little") + written + data
