"""An ensemble's version with fake instances, on an executor that responds in shared memory."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from nereid.core.errors import Unavailable
from nereid.core.tensors.classification import (
    Classification,
    request_classification,
    requested_classifications,
)
from nereid.core.wire.codecs import write_parameters, write_response
from nereid.core.wire.messages import ErrorStatus, InferRequest, InferResponse, Parameter
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.shm.reference import SharedMemory
from nereid.timeline.recorder import Recorder
from nereid.timeline.records import EndedRequest
from nereid.timeline.wire import file_part, read_timeline
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.core.measurements.timeline import SchedulerTimeline
from nereid_scheduler.core.requests.segment_owners import SegmentOwners
from nereid_scheduler.versions.caching.cache_client import CacheClient
from nereid_scheduler.versions.caching.response_cache import ResponseCache
from nereid_scheduler.versions.ensembles.ensemble_dispatcher import EnsembleDispatcher
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.queue_limits import QueueLimits
from nereid_scheduler.versions.steps import Steps
from nereid_scheduler.versions.version_context import VersionContext
from tests.support.scheduler.cache_site import SECRETS, FakeLink
from tests.support.scheduler.ensemble_configs import Step, ensemble_config
from tests.support.scheduler.samples import model_of
from tests.support.scheduler.world import LendingExecutor, VersionWorld, turn

TENSORS = """
input { name: "I" data_type: TYPE_UINT8 dims: -1 }
input { name: "J" data_type: TYPE_UINT8 dims: -1 optional: true }
output { name: "O" data_type: TYPE_UINT8 dims: -1 }
"""
CHAIN: list[Step] = [("a", {"I": "x"}, {"O": "m"}), ("b", {"I": "m"}, {"O": "y"})]
# m is taken by two steps; the outputs are of different steps.
FORK: list[Step] = [
    ("a", {"I": "x"}, {"O": "m"}),
    ("b", {"I": "m"}, {"O": "y"}),
    ("c", {"I": "m"}, {"O": "z"}),
]


class Model(VersionWorld):
    """One step's model, with an instance that responds when the test says so."""

    def __init__(
        self, name: str, executor: LendingExecutor, segment_owners: SegmentOwners, steps: Steps
    ) -> None:
        context = VersionContext(segment_owners=segment_owners, steps=steps)
        super().__init__(name=name, tensors=TENSORS, context=context)
        self.executor = executor
        self.runner, self.stream = self.instance(name)

    def asked(self) -> dict[str, Classification]:
        """The classes that the current batch requests."""
        (member,) = self.stream.sent[-1].members
        return requested_classifications(
            kserve_pb2.ModelInferRequest.FromString(member.head).outputs
        )

    def response_both(self, content: bytes, classes: bytes, datatype: str = "BYTES") -> str:
        """Respond with a tensor and its classes, or another tensor of the same name."""
        batch = self.stream.sent[-1]
        reply = pb.Executed(id=batch.id)
        response = self.executor.response(0, content + classes)
        (whole,) = response.payloads
        assert isinstance(whole, SharedMemory)
        size = len(content)
        response.payloads = [
            SharedMemory(whole.segment_name, whole.offset, size),
            SharedMemory(whole.segment_name, whole.offset + size, len(classes)),
        ]
        head = kserve_pb2.ModelInferResponse(model_name=self.model.name)
        head.outputs.add(name="O", datatype="UINT8", shape=[size])
        head.outputs.add(name="O", datatype=datatype, shape=[1])
        response.head = head.SerializeToString()
        write_response(response, reply.responses.add())
        self.model.pool.on_reply(self.runner, reply.SerializeToString())
        return response.segment_name

    def response(
        self,
        content: bytes = b"",
        error_status: ErrorStatus | None = None,
        *,
        lent: bool = True,
        lost: bool = False,
        parameters: dict[str, Parameter] | None = None,
        infer_ns: int = 0,
    ) -> str:
        """Respond to the current batch; returns the segment that the response lies in."""
        batch = self.stream.sent[-1]
        reply = pb.Executed(id=batch.id, compute_infer_ns=infer_ns)
        head = kserve_pb2.ModelInferResponse(model_name=self.model.name)
        head.outputs.add(name="O", datatype="UINT8", shape=[len(content)])
        write_parameters(parameters or {}, head.parameters)
        response = (
            self.executor.response(0, content)
            if lent and error_status is None
            else InferResponse(0)
        )
        response.head, response.error = head.SerializeToString(), error_status
        if not response.segment_name:
            response.payloads = [content]
        if lost:
            self.executor.segments.discard(response.segment_name)
        write_response(response, reply.responses.add())
        self.model.pool.on_reply(self.runner, reply.SerializeToString())
        return response.segment_name


class World:
    def __init__(
        self,
        steps: list[Step],
        outputs: str = "y",
        labels: dict[str, tuple[str, ...]] | None = None,
        max_entries: int = 1024,
        more: str = "",
        max_inflight: int = 0,
    ) -> None:
        segment_owners, self.executor = SegmentOwners("here"), LendingExecutor()
        segment_owners.add_owner(self.executor)
        loop = Steps()
        self.models = {name: Model(name, self.executor, segment_owners, loop) for name in "abc"}
        tensors = [f"{name} UINT8 -1" for name in outputs.split()]
        text = ensemble_config(["x UINT8 -1"], tensors, steps, more).replace(
            "ensemble_scheduling {", f"ensemble_scheduling {{ max_inflight_requests: {max_inflight}"
        )
        config = model_of(text, name="e", backend="")
        limits = QueueLimits(max_retries=1)
        self.recorder = Recorder("scheduler", "s", 30)
        timeline = SchedulerTimeline(self.recorder)
        context = VersionContext(
            limits, segment_owners=segment_owners, steps=loop, timeline=timeline
        )
        self.ensemble = ModelVersion(
            config,
            1,
            context,
            partial(
                EnsembleDispatcher,
                find_model=lambda step: self.models[step.model].model,
                labels=labels,
                max_steps=max_entries,
                max_heads=max_entries,
            ),
        )
        self.responses: list[InferResponse] = []

    async def ask(
        self,
        outputs: str = "",
        parameters: dict[str, Parameter] | None = None,
        *,
        wants_timings: bool = False,
        caller: int = 0,
        **classes: Classification,
    ) -> None:
        head = kserve_pb2.ModelInferRequest(model_name="e")
        head.inputs.add(name="x", datatype="UINT8", shape=[1])
        for name in outputs.split():
            output = head.outputs.add(name=name)
            if name in classes:
                request_classification(output, classes[name])
        request = InferRequest(1, head.SerializeToString(), [b"x"], parameters=parameters)
        request.wants_timings = wants_timings
        request.caller = caller
        self.entry = self.ensemble.submit(request, self.responses.append)
        await turn()

    async def response(self, model: str, content: bytes = b"", **how: object) -> str:
        segment_name = self.models[model].response(content, **how)  # type: ignore[arg-type]
        await turn()
        return segment_name

    @property
    def released(self) -> list[tuple[list[str], bool]]:
        """The segments that the executor got back, and whether it has to discard them."""
        return self.executor.releases

    async def close(self) -> None:
        for each in (self.ensemble, *(model.model for model in self.models.values())):
            each.fail_all(Unavailable("over"))
        await turn()
        for each in (self.ensemble, *(model.model for model in self.models.values())):
            each.close()


async def test_a_segment_is_released_after_its_step_and_the_last_by_the_gateway() -> None:
    it = World(CHAIN)
    await it.ask()
    first = await it.response("a", b"m")
    (member,) = it.models["b"].stream.sent[-1].members
    assert member.payloads[0].shared_memory.segment_name == first
    assert it.released == []
    second = await it.response("b", b"y")
    assert it.released == [([first], False)]
    (response,) = it.responses
    assert response.segment_name == second
    assert isinstance(response.payloads[0], SharedMemory)
    await it.close()
    assert len(it.released) == 1


async def test_the_next_step_starts_with_the_response_of_the_one_before() -> None:
    it = World(CHAIN)
    await it.ask()
    it.models["a"].response(b"m")
    assert len(it.models["b"].stream.sent) == 1
    await it.response("b", b"y")
    assert len(it.responses) == 1
    await it.close()


async def test_timelines_show_the_request_of_an_ensemble() -> None:
    it = World(CHAIN)
    await it.ask()
    await it.response("a", b"m")
    await it.response("b", b"y")
    frames = b"".join(map(file_part, it.recorder.frames(30_000_000_000)))
    [ended] = read_timeline(frames).services[0].records
    assert isinstance(ended, EndedRequest)
    assert (ended.model, ended.outcome, ended.status) == ("e", "ensemble", 0)


async def test_an_output_that_a_step_needs_as_well_is_held_for_both() -> None:
    it = World(CHAIN, "m y")
    await it.ask()
    first = await it.response("a", b"m")
    await it.response("b", b"y", lent=False)
    assert it.responses[0].payloads == [b"y", b"m"]
    assert it.released == [([first], False)]


async def test_an_output_that_was_not_requested_is_released_at_once() -> None:
    it = World([("a", {"I": "x"}, {"O": "m"}), ("b", {"I": "x", "J": "m"}, {"O": "y"})])
    await it.ask()
    model = it.models["a"]
    reply = pb.Executed(id=model.stream.sent[-1].id)
    response = it.executor.response(0)
    head = kserve_pb2.ModelInferResponse(model_name="a")
    head.outputs.add(name="P", datatype="UINT8", shape=[3])
    response.head = head.SerializeToString()
    write_response(response, reply.responses.add())
    model.model.pool.on_reply(model.runner, reply.SerializeToString())
    assert it.released == [([response.segment_name], False)]
    await turn()
    # The step behind it goes without.
    (member,) = it.models["b"].stream.sent[-1].members
    assert len(member.payloads) == 1
    await it.close()


@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_segments_that_steps_may_still_read_are_discarded(end: str) -> None:
    it = World(FORK, "y z")
    await it.ask()
    first = await it.response("a", b"m")
    if end == "failed":
        await it.response("b", error_status=ErrorStatus(13, "no", accepted=True))
        assert it.responses[0].error == ErrorStatus(13, "in ensemble 'e', no", accepted=True)
    else:
        it.ensemble.cancel(it.entry)
        await turn()
    assert it.released == [([first], True)]
    # A response that comes later is dropped.
    dropped = await it.response("c", b"z")
    assert it.released[1:] == [([dropped], False)]


@pytest.mark.parametrize("outputs", ["y", "m y"])
async def test_segments_that_a_lost_instance_may_still_read_are_discarded(outputs: str) -> None:
    it = World(CHAIN, outputs)
    await it.ask()
    first = await it.response("a", b"m")
    model = it.models["b"]
    model.model.pool.lose_instance(model.runner, "it stands still")
    model.runner = RemoteInstance(2, "b", "executor", model.stream)
    model.model.pool.roster.add(model.runner)
    await turn()
    await it.response("b", b"y", lent=False)
    assert it.released == [([first], True)]
    # The ensemble's own inputs may be among those of the step.
    assert [(each.error, each.inputs_in_use) for each in it.responses] == [(None, True)]


async def test_tensors_lost_with_an_executor_are_made_again_within_the_retry_limit() -> None:
    it = World(CHAIN)
    await it.ask()
    lost = ErrorStatus(Unavailable.code, "the data of the request is gone", accepted=True)
    for attempt in (1, 2):
        segment_name = await it.response("a", b"m")
        it.executor.segments.discard(segment_name)
        await it.response("b", error_status=lost)
        assert len(it.models["a"].stream.sent) == min(attempt + 1, 2)
    assert it.responses[0].error is not None
    assert it.responses[0].error.message == f"in ensemble 'e', {lost.message}"
    assert it.ensemble.statistics.retries == 1


async def test_a_lost_response_is_made_again_within_the_retry_limit() -> None:
    it = World(FORK, "y z")
    await it.ask()
    for _ in range(2):
        await it.response("a", b"m")
        lost = await it.response("b", b"y")
        it.executor.segments.discard(lost)
        await it.response("c", b"z")
    assert it.responses[0].error is not None
    assert it.responses[0].error.code == Unavailable.code


async def test_classes_are_requested_of_the_step_that_makes_the_output() -> None:
    it = World(CHAIN, "m y", labels={"m": ("a", "b")})
    await it.ask("y", y=Classification(3))
    assert it.models["a"].asked() == {}
    await it.response("a", b"m", lent=False)
    assert it.models["b"].asked() == {"O": Classification(3)}
    await it.response("b", b"y", lent=False)
    assert it.responses.pop().error is None
    # By the ensemble's labels, unless the request has some.
    for labels, expected in ((None, ("a", "b")), (("c",), ("c",))):
        await it.ask("m", m=Classification(2, labels))
        assert it.models["a"].asked() == {"O": Classification(2, expected)}
        await it.response("a", b"m", lent=False)
        assert it.responses.pop().error is None


@pytest.mark.parametrize("both", [False, True])
async def test_an_output_is_returned_as_classes_and_passed_on_as_it_is(both: bool) -> None:
    it = World(CHAIN, "m y")
    await it.ask("m y", m=Classification(1, beside=both))
    assert it.models["a"].asked() == {"O": Classification(1, beside=True)}
    first = it.models["a"].response_both(b"mm", b"classes")
    await turn()
    (member,) = it.models["b"].stream.sent[-1].members
    taken = member.payloads[0].shared_memory
    assert (taken.segment_name, taken.size_bytes) == (first, 2)
    await it.response("b", b"y", lent=False)
    (response,) = it.responses
    head = kserve_pb2.ModelInferResponse.FromString(response.head)
    outputs = [(each.name, each.datatype, [*each.shape]) for each in head.outputs]
    classes = ("m", "BYTES", [1])
    if both:
        # As requested by an ensemble that this one is a step of.
        assert outputs == [("y", "UINT8", [1]), ("m", "UINT8", [2]), classes]
        assert response.payloads == [b"y", b"mm", b"classes"]
    else:
        assert outputs == [("y", "UINT8", [1]), classes]
        assert response.payloads == [b"y", b"classes"]
    assert it.released == [([first], False)]


@pytest.mark.parametrize("changed", ["", "hit", "executed"])
async def test_an_ensemble_is_cached_if_its_steps_ran_on_the_current_revisions(
    changed: str,
) -> None:
    it, link = World(CHAIN), FakeLink()
    client = CacheClient(link, SECRETS, 5)
    for version in (it.ensemble, *(it.models[name].model for name in "ab")):
        version.cache = ResponseCache(version, client, 0)
        version.set_revision(b"old")
    it.models["b"].runner.revision = b"old"
    await it.ask()
    link.send_results(None)
    await turn()
    if changed == "hit":
        it.models["a"].model.set_revision(b"new")
    head = kserve_pb2.ModelInferResponse(model_name="a")
    head.outputs.add(name="O", datatype="UINT8", shape=[1])
    cached = pb.CachedResponse(head=head.SerializeToString(), payloads=[b"m"])
    link.send_sealed(cached.SerializeToString())
    await turn()
    assert it.models["a"].stream.sent == []
    link.send_results(None)
    await turn()
    if changed == "executed":
        it.models["b"].model.set_revision(b"new")
    await it.response("b", b"y")
    assert it.responses[0].payloads == [b"y"]
    whole, _, step = (lookup.key for lookup in link.lookups())
    kept = [store.key for store in link.stores()]
    assert kept == ([step] if changed else [whole, step])
    await it.close()
    client.close()


async def test_an_input_that_is_an_output_has_no_classes() -> None:
    it = World([("a", {"I": "x"}, {"O": "m"})], "x m")
    await it.ask("x m", x=Classification(1))
    (response,) = it.responses
    assert response.error is not None
    assert "which is one of its inputs" in response.error.message


async def test_a_response_without_outputs_of_a_step_is_one_of_the_ensemble() -> None:
    it = World(CHAIN[:1], "m")
    await it.ask()
    model = it.models["a"]
    reply = pb.Executed(id=model.stream.sent[-1].id)
    nothing = kserve_pb2.ModelInferResponse(model_name="a").SerializeToString()
    write_response(InferResponse(0, nothing), reply.responses.add())
    model.model.pool.on_reply(model.runner, reply.SerializeToString())
    (response,) = it.responses
    assert response.error is None
    head = kserve_pb2.ModelInferResponse.FromString(response.head)
    assert (head.model_name, [*head.outputs], [*response.payloads]) == ("e", [], [])


async def test_a_step_that_ends_without_a_response_is_a_deadlock() -> None:
    it = World(CHAIN[:1], "m")
    await it.ask()
    model = it.models["a"]
    reply = pb.Executed(id=model.stream.sent[-1].id)
    write_response(InferResponse(0), reply.responses.add())
    model.model.pool.on_reply(model.runner, reply.SerializeToString())
    assert it.responses[0].error is not None
    text = "in ensemble 'e', [request id: <id_unknown>] unexpected deadlock, at least one output"
    assert it.responses[0].error.message.startswith(text)


async def test_a_bug_is_an_internal_error_without_details(caplog: pytest.LogCaptureFixture) -> None:
    it = World(CHAIN)
    model = it.models.pop("a")
    await it.ask()
    assert it.responses[0].error is not None
    assert "KeyError" not in it.responses[0].error.message
    assert "a step of 'e' version 1 cannot be submitted" in caplog.text
    it.models["a"] = model


async def test_a_damaged_response_fails_its_request_alone() -> None:
    it = World(CHAIN)
    await it.ask()
    model = it.models["a"]
    reply = pb.Executed(id=model.stream.sent[-1].id)
    reply.responses.add(head=b"\xff")
    model.model.pool.on_reply(model.runner, reply.SerializeToString())
    assert it.responses[0].error is not None
    text = "in ensemble 'e', the executor's response cannot be understood"
    assert it.responses[0].error.message == text
    await asyncio.wait_for(it.ensemble.idle(), 1)


async def test_requests_for_ever_new_outputs_are_remembered_within_bounds() -> None:
    it = World(CHAIN, max_entries=4)
    for count in range(1, 11):
        await it.ask("y", y=Classification(count))
        await it.response("a", b"m", lent=False)
        assert it.models["b"].asked()["O"].class_count == count
        await it.response("b", b"y", lent=False)
        assert len(it.responses) == count
    dispatcher: Any = it.ensemble.dispatcher
    assert len(dispatcher._steps) <= 4


def place_in(parameters: Mapping[str, kserve_pb2.InferParameter]) -> tuple[int, bool, bool]:
    """The place in a sequence that parameters state."""
    return (
        parameters["sequence_id"].int64_param,
        parameters["sequence_start"].bool_param,
        parameters["sequence_end"].bool_param,
    )


@pytest.mark.parametrize(
    ("stated", "place"),
    [
        ({}, (5, True, False)),
        ({"other": 1}, (5, True, False)),
        ({"sequence_id": 7}, (7, False, False)),
        ({"sequence_end": True}, (5, False, True)),
        ({"sequence_id": 5, "sequence_start": True}, (5, True, False)),
    ],
    ids=["nothing", "another parameter", "an id", "a flag", "its own"],
)
async def test_a_step_states_the_place_in_a_sequence_of_those_behind_it(
    stated: dict[str, Parameter], place: tuple[int, bool, bool]
) -> None:
    """Also of those further behind, and of the response."""
    it = World([*CHAIN[:1], ("b", {"I": "m"}, {"O": "n"}), ("c", {"I": "n"}, {"O": "y"})])
    await it.ask(parameters={"sequence_id": 5, "sequence_start": True, "mine": "x"})
    await it.response("a", b"m", parameters=stated)
    await it.response("b", b"n")
    for name, expected in (("a", (5, True, False)), ("b", place), ("c", place)):
        (member,) = it.models[name].stream.sent[-1].members
        assert place_in(member.parameters) == expected
        assert member.parameters["mine"].string_param == "x"
    await it.response("c", b"y")
    (response,) = it.responses
    assert place_in(kserve_pb2.ModelInferResponse.FromString(response.head).parameters) == place


async def test_a_step_that_states_an_impossible_place_fails_its_ensemble() -> None:
    it = World(CHAIN)
    await it.ask()
    await it.response("a", b"m", parameters={"sequence_id": 1.5})
    (response,) = it.responses
    assert response.error is not None
    assert response.error.message.startswith("in ensemble 'e', expected parameter 'sequence_id'")


@pytest.mark.parametrize(("last", "inference_ns"), [("b", 11), ("c", 101)])
async def test_timings_are_those_of_the_steps_that_the_response_waited_for(
    last: str, inference_ns: int
) -> None:
    it = World(FORK, "y z")
    await it.ask(wants_timings=True)
    await it.response("a", b"m", lent=False, infer_ns=1)
    for model in "cb" if last == "b" else "bc":
        await it.response(model, b"y", lent=False, infer_ns=10 if model == "b" else 100)
    timings = it.responses[0].timings
    assert timings is not None
    phases = dict(timings.phases)
    assert phases["inference"] == inference_ns
    assert list(phases) == ["queue", "input", "inference", "output"]
    assert (timings.attempt, timings.batch_size, timings.instance) == (1, 0, "")
    await it.close()


async def test_a_failed_ensembles_timings_are_those_until_then() -> None:
    it = World(CHAIN)
    await it.ask(wants_timings=True)
    await it.response("a", b"m", lent=False, infer_ns=1)
    await it.response("b", error_status=ErrorStatus(13, "broken", accepted=True), infer_ns=10)
    (response,) = it.responses
    assert response.error is not None
    assert response.timings is not None
    assert dict(response.timings.phases)["inference"] == 11
    await it.close()


async def test_an_ensemble_that_nobody_asks_has_no_timings() -> None:
    it = World(CHAIN)
    await it.ask()
    await it.response("a", b"m", lent=False)
    await it.response("b", b"y", lent=False)
    assert it.responses[0].timings is None
    await it.close()


# `b` runs if the tensor of `a` is 1; c takes the tensor in any case.
CONDITION = """
parameters { key: "condition.b" value { string_value: "m == 1" } }
parameters { key: "default.n" value { string_value: "[9]" } }
"""
CONDITIONAL: list[Step] = [
    ("a", {"I": "x"}, {"O": "m"}),
    ("b", {"I": "m"}, {"O": "n"}),
    ("c", {"I": "n"}, {"O": "y"}),
]


async def test_a_skipped_step_leaves_its_default_and_releases_its_inputs() -> None:
    it = World(CONDITIONAL, more=CONDITION)
    await it.ask()
    first = await it.response("a", b"\0")
    assert not it.models["b"].stream.sent
    assert it.released == [([first], False)]
    (member,) = it.models["c"].stream.sent[-1].members
    assert [payload.inline for payload in member.payloads] == [b"\x09"]
    await it.response("c", b"y")
    assert it.responses[0].error is None
    dispatcher = it.ensemble.dispatcher
    assert isinstance(dispatcher, EnsembleDispatcher)
    assert dispatcher.skipped_steps() == {1: 1}
    await it.close()


async def test_a_condition_keeps_no_segment_that_a_step_has_read() -> None:
    it = World(CONDITIONAL, more=CONDITION)
    await it.ask()
    first = await it.response("a", b"\1")
    assert it.released == []
    await it.response("b", b"n")
    assert it.released == [([first], False)]
    await it.close()


@pytest.mark.parametrize("content", [b"", b"\1\1"])
async def test_a_condition_on_more_or_less_than_one_value_fails_the_request(
    content: bytes,
) -> None:
    it = World(CONDITIONAL, more=CONDITION)
    await it.ask()
    first = await it.response("a", content)
    (response,) = it.responses
    assert response.error is not None
    assert response.error.message == (
        "in ensemble 'e', tensor 'm' of a condition must have one element but has the shape"
        f" [{len(content)}]"
    )
    assert it.released == [([first], False)]
    await it.close()


async def test_a_condition_whose_tensor_is_lost_makes_it_again() -> None:
    it = World(CONDITIONAL, more=CONDITION)
    await it.ask()
    batch = it.models["a"].stream.sent[-1]
    await it.response("a", b"\1", lost=True)
    assert it.responses == []
    assert it.models["a"].stream.sent[-1] is not batch
    await it.response("a", b"\0")
    assert len(it.models["c"].stream.sent) == 1


def _sent(model: Model) -> int:
    return len(model.stream.sent)


async def test_calls_of_a_step_are_limited_over_all_requests() -> None:
    it = World(CHAIN, max_inflight=1)
    for _ in range(3):
        await it.ask()
    # The first step of the others waits until the first one's has ended, that of `b` does not.
    for sent in range(1, 4):
        assert _sent(it.models["a"]) == sent
        await it.response("a", b"m")
    assert _sent(it.models["b"]) == 1
    for responded in range(1, 4):
        await it.response("b", b"y")
        assert len(it.responses) == responded
    assert all(response.error is None for response in it.responses)


@pytest.mark.parametrize("which", ["open", "waiting"])
async def test_a_request_that_ends_leaves_its_place_to_those_that_wait(which: str) -> None:
    it = World(CHAIN, max_inflight=1)
    await it.ask()
    first = it.entry
    await it.ask()
    second = it.entry
    await it.ask()
    it.ensemble.cancel(first if which == "open" else second)
    await turn()
    await turn()
    if which == "waiting":
        await it.response("a", b"m")
        await it.response("b", b"y")
    else:
        # The instance still works on the cancelled request.
        await it.response("a", b"n")
    for _ in range(2 if which == "open" else 1):
        await it.response("a", b"m")
        await it.response("b", b"y")
    assert len(it.responses) == 2
    assert all(response.error is None for response in it.responses)


async def test_a_step_that_fails_leaves_its_place_to_those_that_wait() -> None:
    it = World(CHAIN, max_inflight=1)
    await it.ask()
    await it.ask()
    await it.response("a", error_status=ErrorStatus(13, "no", accepted=True))
    await it.response("a", b"m")
    await it.response("b", b"y")
    assert [response.error is None for response in it.responses] == [False, True]


async def test_requests_of_models_wait_for_no_place() -> None:
    it = World(CHAIN, max_inflight=1)
    await it.ask()
    await it.ask(caller=7)
    assert len(it.models["a"].model.requests) == 2
    await it.close()
