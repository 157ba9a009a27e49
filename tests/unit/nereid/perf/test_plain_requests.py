"""Zero and random tensors by metadata."""

import json

import numpy as np
import pytest

from nereid.pb import kserve_pb2 as pb
from nereid.perf.plain_requests import SameSource, UnknownShapeError, plain_requests

_METADATA = {
    "name": "m",
    "inputs": [
        {"name": "A", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "B", "datatype": "BYTES", "shape": [-1, 3]},
    ],
    "outputs": [{"name": "C", "datatype": "FP32", "shape": [-1, 1]}],
}


def test_over_grpc() -> None:
    requests = plain_requests(
        _METADATA, "grpc", version="2", batch_size=4, batches=True, shapes={}, string_length=5
    )
    message = pb.ModelInferRequest.FromString(requests[0].message)
    assert (message.model_name, message.model_version) == ("m", "2")
    assert [list(each.shape) for each in message.inputs] == [[4, 2], [4, 3]]
    numbers, texts = message.raw_input_contents
    assert len(np.frombuffer(numbers, np.float32)) == 8
    assert len(texts) == 12 * (4 + 5)
    assert len({each.message for each in requests}) == len(requests) > 1


def test_zeros_over_http() -> None:
    (request,) = plain_requests(_METADATA, "http", batches=True, shapes={"B": (1,)}, zero=True)
    document = json.loads(request.message[: request.json_bytes])
    assert [each["shape"] for each in document["inputs"]] == [[1, 2], [1, 1]]
    assert request.message[request.json_bytes :] == bytes(2 * 4 + 4)
    assert document["outputs"][0]["name"] == "C"


def test_the_same_seed_makes_the_same_requests() -> None:
    def made(seed: int) -> list[bytes]:
        requests = plain_requests(_METADATA, "http", batches=True, shapes={}, seed=seed)
        return [each.message for each in requests]

    assert made(1) == made(1) != made(2)


def test_an_unknown_shape_is_named() -> None:
    with pytest.raises(UnknownShapeError, match=r"input 'A' .* --shape A:"):
        plain_requests(_METADATA, "http", shapes={})


def test_a_source_goes_round_until_it_drains() -> None:
    requests = plain_requests(_METADATA, "http", batches=True, shapes={})
    source = SameSource(requests)(0, 1)
    sent = [source.next_request() for _ in range(len(requests) + 1)]
    assert sent == [*requests, requests[0]]
    source.set_draining(draining=True)
    assert source.next_request() is None
