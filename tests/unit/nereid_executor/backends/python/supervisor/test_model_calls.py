"""Workers' calls to the mesh: the requests made for them, and the responses that they get."""

from __future__ import annotations

import json
import select
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nereid.core.errors import NereidError, NotFound, Unavailable
from nereid.core.permitted_models import NamePatterns
from nereid.core.wire.messages import DECOUPLED, ErrorStatus, InferRequest, InferResponse
from nereid.pb import kserve_pb2
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import SegmentPool
from nereid_executor.backends.python.sandbox.policy import Confinement
from nereid_executor.backends.python.supervisor.model_calls import ModelCalls
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire

# ---- calls


class MeshRequest:
    """A request in the hands of the mesh."""

    def __init__(self, request: InferRequest, on_response: Callable[[InferResponse], None]) -> None:
        self.request = request
        self.on_response = on_response
        self.controls: list[str] = []

    def send_control(self, kind: str) -> None:
        self.controls.append(kind)


class Mesh:
    """Notes what is asked."""

    memory: tuple[int, float] | None = None

    def __init__(self) -> None:
        self.released: list[str] = []
        self.requests: list[MeshRequest] = []
        self.called: list[tuple[str, bytes, Callable[[bytes | NereidError], None]]] = []

    def infer(
        self, request: InferRequest, on_response: Callable[[InferResponse], None]
    ) -> MeshRequest:
        self.requests.append(MeshRequest(request, on_response))
        return self.requests[-1]

    def release_segment(self, segment_name: str) -> None:
        self.released.append(segment_name)

    def call_scheduler(
        self, method: str, message: bytes, on_reply: Callable[[bytes | NereidError], None]
    ) -> None:
        self.called.append((method, message, on_reply))


@pytest.fixture
def mesh() -> Mesh:
    return Mesh()


@pytest.fixture
def calls(mesh: Mesh) -> Iterator[ModelCalls]:
    calls = ModelCalls(mesh, 42)
    calls.worker_pid = 1
    yield calls
    calls.close()


def infer(**more: Any) -> dict[str, Any]:
    return {
        "what": "infer",
        "model": "other",
        "version": -1,
        "id": "q",
        "inputs": [["X", "UINT8", [2]]],
        "outputs": ["Y"],
        "parameters": {"a": 1},
        "correlation_id": 0,
        "flags": 0,
        "timeout_us": 9,
        "trace": "",
        **more,
    }


def call(about: Any, *tensors: bytes | wire.Range, number: int = 1) -> wire.Call:
    meta = about if isinstance(about, bytes) else json.dumps(about).encode()
    return wire.Call(number, 0, meta, tensors)


def fetched(calls: ModelCalls) -> list[tuple[int, int, Any]]:
    """Responses by number, flags, and metadata."""
    poll = select.poll()
    poll.register(calls.fileno(), select.POLLIN)
    assert poll.poll(0)
    responses = calls.collect_responses()
    assert not poll.poll(0)
    return [(each.number, each.flags, json.loads(each.meta or b"null")) for each in responses]


def test_a_call_becomes_a_request_as_a_gateways(calls: ModelCalls, mesh: Mesh) -> None:
    calls.deadline = 77.0
    trace = f"00-{'ab' * 16}-{'cd' * 8}-01"
    about = infer(
        version=3, correlation_id="s", flags=1, trace=trace, tracestate="a=1", decoupled=True
    )
    calls.start_call(call(about, b"ab"))
    (made,) = mesh.requests
    request = made.request
    head = kserve_pb2.ModelInferRequest.FromString(request.head)
    assert (head.model_name, head.model_version, head.id) == ("other", "3", "")
    assert [each.name for each in head.outputs] == ["Y"]
    assert request.payloads == [b"ab"]
    assert request.request_id == "q"
    assert request.parameters == {
        "a": 1,
        "sequence_id": "s",
        "sequence_start": True,
        "sequence_end": False,
    }
    assert (request.timeout_us, request.deadline, request.caller) == (9, 77.0, 42)
    assert request.trace_context == b"\0" + b"\xab" * 16 + b"\xcd" * 8 + b"\1a=1"
    assert request.accepts_many


def test_responses_come_back_one_by_one(calls: ModelCalls, mesh: Mesh) -> None:
    calls.start_call(call(infer(), b"ab", number=7))
    (made,) = mesh.requests
    head = kserve_pb2.ModelInferResponse(model_name="other")
    head.outputs.add(name="Y", datatype="UINT8", shape=[1])
    head.parameters["p"].int64_param = 5
    made.on_response(InferResponse(1, head.SerializeToString(), [b"y"], more=True))
    made.on_response(
        InferResponse(1, error=ErrorStatus(NotFound.code, "no", accepted=True), more=True)
    )
    made.on_response(InferResponse(1))
    assert fetched(calls) == [
        (7, wire.MORE, {"outputs": [["Y", "UINT8", [1]]], "parameters": {"p": 5}}),
        (7, wire.MORE | wire.ERROR, ["NOT_FOUND", "no"]),
        (7, wire.EMPTY, None),
    ]


REFUSED = "Model other - Error when running inference: "


@pytest.mark.parametrize(
    ("error_status", "code", "text"),
    [
        (ErrorStatus(4, "late", accepted=True), "UNAVAILABLE", "late"),
        (ErrorStatus(99, "odd", accepted=True), "INTERNAL", "odd"),
        (ErrorStatus(3, "no"), "INVALID_ARG", f"{REFUSED}no"),
        (ErrorStatus(12, DECOUPLED), "UNSUPPORTED", f"{REFUSED}Model other is using the decoupled"),
    ],
)
def test_error_codes_and_messages_for_models(
    calls: ModelCalls, mesh: Mesh, error_status: ErrorStatus, code: str, text: str
) -> None:
    calls.start_call(call(infer(), b"ab"))
    mesh.requests[0].on_response(InferResponse(1, error=error_status))
    ((_, flags, said),) = fetched(calls)
    assert (flags, said[0]) == (wire.ERROR, code)
    assert said[1].startswith(text)


def test_controls_are_passed_on(calls: ModelCalls, mesh: Mesh) -> None:
    calls.start_call(call(infer(), b"ab", number=1))
    for number, what in enumerate(("pause", "resume", "cancel"), 2):
        calls.start_call(call({"what": what, "call": 1}, number=number))
    calls.start_call(call({"what": "cancel", "call": 99}, number=9))
    assert mesh.requests[0].controls == ["pause", "resume", "cancel"]
    assert [each[:2] for each in fetched(calls)] == [(n, wire.EMPTY) for n in (2, 3, 4, 9)]


def test_the_calls_of_a_worker_that_ended_are_cancelled(mesh: Mesh) -> None:
    calls = ModelCalls(mesh, 1)
    calls.start_call(call(infer(), b"ab"))
    calls.close()
    assert mesh.requests[0].controls == ["cancel"]
    # A response that was in flight is dropped.
    mesh.requests[0].on_response(InferResponse(1))


def test_tensors_in_shared_memory_are_passed_by_reference(calls: ModelCalls, mesh: Mesh) -> None:
    calls.start_call(call(infer(), wire.Range("1.2.3", 64, 2)))
    (made,) = mesh.requests
    assert made.request.payloads == [SharedMemory("1.2.3", 64, 2)]
    head = kserve_pb2.ModelInferResponse(model_name="m").SerializeToString()
    made.on_response(
        InferResponse(1, head, [SharedMemory("4.5.6", 0, 70_000)], segment_name="4.5.6")
    )
    (response,) = calls.collect_responses()
    assert response.tensors == [wire.Range("4.5.6", 0, 70_000)]
    assert not mesh.released
    # Once, and only segments of responses.
    for segment_name in ("1.2.3", "4.5.6", "4.5.6"):
        calls.start_call(call({"what": "release", "segment_names": [segment_name]}))
    assert mesh.released == ["4.5.6"]


def test_a_request_takes_the_release_of_earlier_responses_along(
    calls: ModelCalls, mesh: Mesh
) -> None:
    calls.start_call(call(infer()))
    head = kserve_pb2.ModelInferResponse(model_name="m").SerializeToString()
    mesh.requests[0].on_response(
        InferResponse(1, head, [SharedMemory("4.5.6", 0, 70_000)], segment_name="4.5.6")
    )
    calls.start_call(call(infer(released=["4.5.6", "1.2.3"])))
    assert mesh.released == ["4.5.6"]
    assert len(mesh.requests) == 2


def test_responses_are_sent_at_once_unless_others_wait(calls: ModelCalls, mesh: Mesh) -> None:
    """A model gets a request's responses in their order."""
    sent: list[bytes] = []
    waits = False

    def try_send(response: wire.Call) -> bool:
        if not waits:
            sent.append(response.meta)
        return not waits

    calls.try_send = try_send
    calls.start_call(call(infer(decoupled=True)))
    (made,) = mesh.requests
    heads = [
        kserve_pb2.ModelInferResponse(outputs=[{"name": name}]).SerializeToString()
        for name in "abcd"
    ]
    metas = [
        json.dumps({"outputs": [[name, "", []]], "parameters": {}}).encode() for name in "abcd"
    ]
    made.on_response(InferResponse(1, heads[0], more=True))
    waits = True
    made.on_response(InferResponse(1, heads[1], more=True))
    waits = False
    made.on_response(InferResponse(1, heads[2], more=True))
    assert sent == metas[:1]
    assert [each.meta for each in calls.collect_responses()] == metas[1:3]
    calls.note_sent()
    calls.note_sent()
    made.on_response(InferResponse(1, heads[3]))
    assert sent == [metas[0], metas[3]]
    assert not calls.collect_responses()
    assert not calls.collect_responses()


def test_the_responses_of_a_worker_that_ended_are_released(mesh: Mesh) -> None:
    calls = ModelCalls(mesh, 1)
    for number, segment_name in enumerate(("a", "b", "c"), 1):
        calls.start_call(call(infer(), b"ab", number=number))
        if segment_name != "c":
            mesh.requests[-1].on_response(
                InferResponse(
                    number, b"", [SharedMemory(segment_name, 0, 1)], segment_name=segment_name
                )
            )
    calls.start_call(call({"what": "release", "segment_names": ["a"]}))
    calls.close()
    assert sorted(mesh.released) == ["a", "b"]
    # Later ones are released at once.
    mesh.requests[-1].on_response(
        InferResponse(3, b"", [SharedMemory("c", 0, 1)], segment_name="c")
    )
    assert sorted(mesh.released) == ["a", "b", "c"]


def test_loads_unloads_and_readiness(calls: ModelCalls, mesh: Mesh) -> None:
    load = {"what": "load", "model": "m", "config": "{}", "files": ["file:1/model.py"]}
    calls.start_call(call(load, b"pass", number=1))
    calls.start_call(call({"what": "unload", "model": "m", "dependents": True}, number=2))
    calls.start_call(call({"what": "ready", "model": "m", "version": "2"}, number=3))
    methods = [method for method, _, _ in mesh.called]
    assert methods == ["RepositoryModelLoad", "RepositoryModelUnload", "ModelReady"]
    loading = kserve_pb2.RepositoryModelLoadRequest.FromString(mesh.called[0][1])
    assert loading.parameters["config"].string_param == "{}"
    assert loading.parameters["file:1/model.py"].bytes_param == b"pass"
    unloading = kserve_pb2.RepositoryModelUnloadRequest.FromString(mesh.called[1][1])
    assert unloading.parameters["unload_dependents"].bool_param
    readiness = kserve_pb2.ModelReadyRequest.FromString(mesh.called[2][1])
    assert (readiness.name, readiness.version) == ("m", "2")
    ready = kserve_pb2.ModelReadyResponse(ready=True).SerializeToString()
    replies: list[bytes | NereidError] = [b"", Unavailable("no"), ready]
    for (_, _, on_reply), reply in zip(mesh.called, replies, strict=True):
        on_reply(reply)
    assert fetched(calls) == [
        (1, 0, None),
        (2, wire.ERROR, ["UNAVAILABLE", "no"]),
        (3, 0, True),
    ]


@pytest.mark.parametrize(
    "about",
    [
        b"\xff",
        b"7",
        {},
        {"what": "fly"},
        {"what": "infer"},
        infer(trace="00-zz-yy-01"),
        infer(trace="00-ab-cd-01"),
        infer(inputs=[["X"]]),
        {"what": "load", "model": "m", "config": "", "files": ["a"]},
        {"what": "ready", "model": 5, "version": ""},
    ],
)
def test_malformed_calls_get_an_error(calls: ModelCalls, mesh: Mesh, about: Any) -> None:
    calls.start_call(call(about, number=4))
    ((number, flags, said),) = fetched(calls)
    assert (number, flags, said[0]) == (4, wire.ERROR, "INVALID_ARG")
    assert not mesh.requests
    assert not mesh.called


def test_without_a_mesh() -> None:
    calls = ModelCalls(None, 0)
    calls.start_call(call(infer(), b"ab"))
    assert fetched(calls)[0][2] == ["INVALID_ARG", "the model cannot make requests to the mesh"]
    calls.close()


# ---- what a worker cannot send


def failure(calls: ModelCalls) -> tuple[str, str]:
    (response,) = calls.collect_responses()
    name, message = json.loads(response.meta)
    return name, message


@pytest.mark.parametrize("segment_name", ["2.2.3", "11.2.3", "", "x"])
def test_tensors_in_another_process_are_refused(
    calls: ModelCalls, mesh: Mesh, segment_name: str
) -> None:
    """The other process's data would come back with the response."""
    calls.start_call(call(infer(), wire.Range(segment_name, 64, 2)))
    assert failure(calls) == (
        "INVALID_ARG",
        "a tensor of the request is in another process's memory",
    )
    assert not mesh.requests


@pytest.mark.parametrize("what", ["load", "unload"])
def test_a_confined_model_needs_the_right_to_load_models(mesh: Mesh, what: str) -> None:
    message = {"what": what, "model": "m", "config": "", "files": [], "dependents": False}
    for allows, count in ((frozenset[str](), 0), (frozenset({"model-control"}), 1)):
        confinement = Confinement(allows, (), frozenset(), 1 << 20, 1, 1)
        calls = ModelCalls(mesh, 1, confinement)
        calls.start_call(call(message))
        assert len(mesh.called) == count
        if not count:
            assert "sandbox_allow: model-control" in failure(calls)[1]
        calls.close()


@pytest.mark.parametrize("what", ["infer", "ready", "load", "unload"])
def test_a_confined_model_calls_the_models_that_it_may(mesh: Mesh, what: str) -> None:
    rights = frozenset({"model-control"})
    confinement = Confinement(
        rights, (), frozenset(), 1 << 20, 1, 1, calls=NamePatterns(("its_*",))
    )
    calls = ModelCalls(mesh, 1, confinement)
    more: dict[str, Any] = {"config": "", "files": [], "dependents": False}
    if what != "infer":
        more["version"] = ""
    tensors = (b"ab",) if what == "infer" else ()
    for number, model in enumerate(("its_own", "other", 7)):
        calls.start_call(call(infer(what=what, model=model, **more), *tensors, number=number))
    refused, malformed = fetched(calls)
    assert refused[2][1] == "the confined model may not call model 'other' (--sandbox-call)"
    assert "malformed" in malformed[2][1]
    assert len(mesh.requests) + len(mesh.called) == 1
    calls.close()


@pytest.mark.parametrize("known", [{}, {"deadline_ns": 0, "caller_known": False}])
def test_a_confined_models_request_is_made_by_its_clients_right_or_its_own(
    mesh: Mesh, known: dict[str, Any]
) -> None:
    """A worker that says to make it for no request does not get rid of its clients."""
    for rules, expected in ((None, (42, b"")), (NamePatterns(("o*",)), (0, b'[["o*"]]'))):
        calls = ModelCalls(
            mesh, 42, Confinement(frozenset(), (), frozenset(), 1 << 20, 1, 1, calls=rules)
        )
        # What the worker adds to the frame does not count.
        forged = {"confined_caller": 0, "caller": 7, "callable_models": "", **known}
        calls.start_call(call(infer(**forged)))
        made = mesh.requests[-1].request
        assert (made.confined_caller, made.callable_models) == expected
        assert made.caller == (0 if known else 42)
        calls.close()


def test_a_confined_model_has_no_more_bytes_in_pending_calls_than_memory(mesh: Mesh) -> None:
    calls = ModelCalls(mesh, 1, Confinement(frozenset(), (), frozenset(), 10, 1, 1))
    for number in range(3):
        calls.start_call(call(infer(), b"abcd", number=number))
    name, message = failure(calls)
    assert (name, len(mesh.requests)) == ("UNAVAILABLE", 2)
    assert "more bytes than its memory (--sandbox-memory-bytes)" in message
    # A call that has its response, and a cancelled one, count no more.
    mesh.requests[0].on_response(InferResponse(1, more=True))
    calls.start_call(call(infer(), b"abcd", number=3))
    assert len(mesh.requests) == 2
    mesh.requests[0].on_response(InferResponse(1))
    calls.start_call(call(infer(), b"abcd", number=4))
    calls.start_call(call({"what": "cancel", "call": 1}, number=5))
    calls.start_call(call(infer(), b"abcd", number=6))
    calls.start_call(call(infer(), b"abcd", number=7))
    assert len(mesh.requests) == 4
    calls.close()


def test_a_confined_model_gets_responses_inline(mesh: Mesh) -> None:
    segments = SegmentPool(1 << 20)
    segment = segments.acquire_segment(70_000)
    assert segment is not None
    segment.view[:3] = b"abc"
    calls = ModelCalls(mesh, 1, Confinement(frozenset(), (), frozenset(), 1 << 20, 1, 1))
    calls.start_call(call(infer()))
    head = kserve_pb2.ModelInferResponse(model_name="m").SerializeToString()
    mesh.requests[0].on_response(
        InferResponse(1, head, [segment.range(0, 3)], segment_name=segment.name)
    )
    (response,) = calls.collect_responses()
    assert response.tensors == [b"abc"]
    assert mesh.released == [segment.name]
    calls.close()
    segments.discard(segment.name)
