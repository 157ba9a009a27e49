"""The example that streams tokens, by the contract of a RequestModel alone."""

from __future__ import annotations

import importlib.util
import json
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from nereid.backends import (
    ControlKind,
    InstanceSpec,
    Request,
    RequestSpec,
    Response,
    capabilities_of,
)
from nereid.backends.request_arrays import RequestArrays
from nereid.core.errors import InvalidArgument, NotFound
from nereid.core.tensors.tensors import to_raw
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.shm.reference import SharedMemory

SOURCE = Path(__file__).parents[3] / "examples" / "token_backend" / "token_backend.py"
CONFIG = """
name: "m" backend: "tokens"
input { name: "prompt" data_type: TYPE_STRING dims: 1 }
input { name: "max_tokens" data_type: TYPE_INT32 dims: 1 optional: true }
output { name: "token" data_type: TYPE_STRING dims: 1 }
parameters { key: "milliseconds_per_token" value { string_value: "1" } }
"""
DECOUPLED = CONFIG + "model_transaction_policy { decoupled: true }"
PROMPT = ("prompt", "BYTES", (1,))
WAIT_MS = 20_000

Load = Callable[..., Any]


@pytest.fixture(scope="module")
def backend() -> Any:
    spec = importlib.util.spec_from_file_location("token_backend", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        # Data classes look their module up.
        patch.setitem(importlib.import_module("sys").modules, "token_backend", module)
        spec.loader.exec_module(module)
        yield module


def spec_of(tmp_path: Path, text: str = DECOUPLED) -> InstanceSpec:
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    return InstanceSpec(config=config, version=1, version_path=tmp_path, name="m_0")


@pytest.fixture
def model(backend: Any, tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "model.json").write_text(json.dumps({"a": "b", "b": "c", "tick": "tick"}))
    model = backend.load(spec_of(tmp_path))
    yield model
    model.close()


def request(prompt: str, tensor: bytes | SharedMemory | None = None) -> Request:
    raw = to_raw(np.array([prompt], np.object_)) if tensor is None else tensor
    return Request(RequestSpec((PROMPT,), ("token",)), [raw], "", {}, b"", 0, 0)


def collect(model: Any) -> list[Response]:
    (descriptor,) = model.file_descriptors()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(WAIT_MS)
    return [each for update in model.collect_updates({descriptor}) for each in update.responses]


def rest(model: Any) -> list[Response]:
    """All responses, to the first that is some request's last."""
    responses: list[Response] = []
    while not responses or responses[-1].more:
        responses += collect(model)
    return responses


def test_a_request_gets_its_tokens_and_an_end(model: Any) -> None:
    assert capabilities_of(model).executes_requests
    model.begin_batch(1, [request("once a")])
    *tokens, end = rest(model)
    heads = [kserve_pb2.ModelInferResponse.FromString(each.head) for each in tokens]
    assert [[*each.outputs[0].shape] for each in heads] == [[1], [1]]
    assert [each.tensors for each in tokens] == [[b"\1\0\0\0b"], [b"\1\0\0\0c"]]
    assert end == Response(0, more=False)


def test_a_request_that_is_cancelled_ends(model: Any) -> None:
    model.begin_batch(1, [request("tick")])
    model.control_request(1, 0, ControlKind.CANCEL)
    assert rest(model)[-1] == Response(0, more=False)
    model.control_request(1, 0, ControlKind.CANCEL)


def test_a_request_that_is_paused_waits_for_its_client(model: Any) -> None:
    model.begin_batch(1, [request("tick"), request("a")])
    model.control_request(1, 0, ControlKind.PAUSE)
    assert rest(model)[-1] == Response(1, more=False)
    model.control_request(1, 0, ControlKind.RESUME)
    assert {each.member for each in collect(model)} == {0}
    model.terminate()
    assert rest(model)[-1] == Response(0, more=False)


def test_a_request_without_its_data_fails_alone(model: Any) -> None:
    model.begin_batch(1, [request("", SharedMemory("gone", 0, 5)), request("", b"\5\0")])
    lost, malformed = (each.error_status for each in collect(model))
    assert lost is not None
    assert "the request's data in shared memory was lost" in lost.message
    assert malformed is not None


def test_what_the_base_class_gives_a_model_that_cannot_be_lost(model: Any) -> None:
    assert model.execution_timeout_s is None
    assert model.may_have_begun(1)
    assert not model.restart(Event())


def test_a_model_that_does_not_fit_is_refused(backend: Any, tmp_path: Path) -> None:
    assert not backend.uses_gpus()
    with pytest.raises(NotFound, match="unable to find"):
        backend.describe(spec_of(tmp_path).config, tmp_path)
    with pytest.raises(InvalidArgument, match="must be decoupled"):
        backend.load(spec_of(tmp_path, CONFIG))


def test_arrays_of_another_datatype_are_refused(tmp_path: Path) -> None:
    arrays = RequestArrays(spec_of(tmp_path))
    with pytest.raises(InvalidArgument, match="output 'token' of model 'm' is an array of int32"):
        arrays.make_response(request("a"), 0, {"token": np.zeros(1, "i4")}, more=True)
    assert arrays.make_response(request("a"), 0, {}, more=False).tensors == []


def test_controls_are_numbered_as_in_the_protocol() -> None:
    assert {each.name: each.value for each in ControlKind} == dict(pb.MemberControl.Kind.items())
