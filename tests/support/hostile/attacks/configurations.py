"""Load requests whose configuration, of a few hundred bytes, asks for memory and time."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.support.hostile.attack import REFUSED, SERVED, Attack
from tests.support.hostile.sending import http_body

# Nobody else's: any attack may leave it loaded.
_MODEL = "partial"
_CONFIG = {
    "backend": "identity",
    "max_batch_size": 8,
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
}


def _load(name: str, fields: dict[str, Any], *, served: bool = False) -> Attack:
    return _request(name, {"config": json.dumps(_CONFIG | fields)}, served=served)


def _request(name: str, parameters: dict[str, Any], *, served: bool = False) -> Attack:
    body = json.dumps({"parameters": parameters}).encode()
    client = http_body(lambda: body, f"/v2/repository/models/{_MODEL}/load")
    return Attack(name, client, SERVED if served else REFUSED)


def _warmup(batch_size: int, elements: int = 1, count: int = 1) -> dict[str, Any]:
    tensor = {"data_type": "TYPE_FP32", "dims": [elements], "random_data": True}
    sample = {"name": "s", "batch_size": batch_size, "count": count, "inputs": {"INPUT0": tensor}}
    return {"model_warmup": [sample]}


def _instances(count: int) -> dict[str, Any]:
    return {"instance_group": [{"count": count}]}


def _candidates(number: int) -> dict[str, Any]:
    return {"sequence_batching": {"oldest": {"max_candidate_sequences": number}}}


def _state(elements: int) -> dict[str, Any]:
    state = {
        "input_name": "a",
        "output_name": "b",
        "data_type": "TYPE_FP32",
        "dims": [elements],
    }
    return {"sequence_batching": {"direct": {}, "state": [state]}}


def _padding(size: int) -> dict[str, Any]:
    text = f"INPUT0[0] -> OUTPUT0[0]: 8 {size}"
    return {"parameters": {"padding": {"string_value": text}}}


def _files(depth: int, count: int) -> dict[str, Any]:
    folders = "a/" * depth
    files = {f"file:{folders}{index}": base64.b64encode(b"x").decode() for index in range(count)}
    return {"config": json.dumps(_CONFIG), "file:1/model": "", **files}


# Each with its harmless twin.
ATTACKS = (
    _load("a warm-up of 400 million requests", _warmup(400_000_000)),
    _load("a warm-up of 4 TB", _warmup(1, 1 << 40)),
    _load("a warm-up without an end", _warmup(1, 1, (1 << 32) - 1)),
    _load("a warm-up of 1.2 TB, 120 MB at a time", _warmup(1, 30_000_000, 10_000)),
    _load("a warm-up of 1.2 GB, 120 MB at a time", _warmup(1, 30_000_000, 10), served=True),
    _load("256 instances that warm up with 120 MB", _warmup(1, 30_000_000) | _instances(256)),
    _load("a warm-up of 64 requests", _warmup(64, 1024, 10), served=True),
    _load("two billion candidate sequences", _candidates(2_000_000_000), served=True),
    _load(
        "a billion slots",
        {"max_batch_size": 10**9, "sequence_batching": {"direct": {}}},
        served=True,
    ),
    _load("states of 4 TB", _state(1 << 40)),
    _load("padding of 4 TB", _padding(1 << 40)),
    _load("padding of 1 KB", _padding(256), served=True),
    _load("a thousand instances", _instances(1000)),
    _load("eight instances", _instances(8), served=True),
    _request("files 1,800 folders deep", _files(1800, 1)),
    _request("10,000 files", _files(1, 10_000)),
    _request("a file two folders deep", _files(2, 1), served=True),
)
