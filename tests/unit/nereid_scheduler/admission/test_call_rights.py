"""Rights of the requests that models make for their clients."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from nereid.core.callable_models import ALL_CALLABLE, may_call, write_callable_models
from nereid.core.errors import Internal, PermissionDenied
from nereid.core.permitted_models import NamePatterns
from nereid.core.wire.messages import InferRequest
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.admission.call_rights import CallRights
from nereid_scheduler.core.instances.instance_batches import SentBatch
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.core.requests.entry import Batch, Entry, ValidHead
from nereid_scheduler.placement.executors.sessions import PlacedInstance
from tests.support.scheduler.samples import NoOwner

VALID = ValidHead(1, (), (), ())
A = write_callable_models(NamePatterns(("a_*", "shared")))
B = write_callable_models(NamePatterns(("b_*", "shared")))
CONFINED, FREE, UNKNOWN = 1, 2, 3


class Site:
    """A confined and a free instance, and the requests that they execute."""

    def __init__(self, *, has_access_control: bool = True) -> None:
        self.placed: dict[int, PlacedInstance] = {}
        for number in (CONFINED, FREE):
            instance = RemoteInstance(number, f"m_{number}", "executor", stream=SimpleNamespace())
            nothing: Any = None
            self.placed[number] = PlacedInstance(instance, nothing, nothing, nothing)
        self.rights = CallRights(self.placed)
        if has_access_control:
            self.rights.enable()

    def execute(self, *clients: bytes, instance: int = CONFINED) -> SentBatch:
        """Let an instance execute a batch of requests with these clients' callable models."""
        owner = NoOwner()
        entries = [
            Entry(InferRequest(0, b"", [], callable_models=client), VALID, lambda _: None, owner, 0)
            for client in clients
        ]
        batches = self.placed[instance].instance.batches
        sent = SentBatch(batches.last_id + 1, Batch(entries, len(entries), "single"), 0)
        batches.add_batch(sent)
        return sent

    def call(self, model: str, instance: int = CONFINED, **more: Any) -> InferRequest:
        """A call of the confined model, which may be for any of the instance's requests."""
        head = kserve_pb2.ModelInferRequest(model_name=model).SerializeToString()
        request = InferRequest(9, head, [], caller=instance, confined_caller=instance, **more)
        self.rights.apply(request)
        return request

    def may_call(self, model: str) -> bool:
        try:
            self.call(model)
        except PermissionDenied:
            return False
        return True


@pytest.mark.parametrize(
    ("clients", "callable_names"),
    [
        ([b""], ["a_1", "b_1", "shared", "c"]),
        ([A], ["a_1", "shared"]),
        ([B, B], ["b_1", "shared"]),
        ([A, B], ["shared"]),
        ([A, b""], ["a_1", "shared"]),
    ],
)
def test_a_confined_model_calls_what_each_client_of_its_batch_may_use(
    clients: list[bytes], callable_names: list[str]
) -> None:
    site = Site()
    site.execute(*clients)
    assert [name for name in ("a_1", "b_1", "shared", "c") if site.may_call(name)] == callable_names


def test_requests_that_await_responses_count_until_their_last_one() -> None:
    site = Site()
    sent = site.execute(A, B)
    sent.track_members(1)
    site.placed[CONFINED].instance.batches.end_first(1)
    assert not site.may_call("b_1")
    sent.end_member(sent.open_member(0), 1)
    assert site.may_call("b_1")
    # The next batch's requests count beside them.
    site.execute(A)
    assert not site.may_call("b_1")


def test_without_a_request_a_confined_model_has_no_right() -> None:
    site = Site()
    with pytest.raises(PermissionDenied, match="executes no request of a client"):
        site.call("shared")


def test_clients_that_another_scheduler_knows_give_no_right() -> None:
    site = Site()
    with pytest.raises(PermissionDenied, match="at another scheduler"):
        site.call("shared", UNKNOWN)
    call = InferRequest(9, b"", [], caller=UNKNOWN)
    site.rights.apply(call)
    assert not may_call(call.callable_models, "shared")
    # A model's own right does not need to be known there.
    call = InferRequest(9, b"", [], caller=UNKNOWN, callable_models=A)
    site.rights.apply(call)
    assert call.callable_models == A


@pytest.mark.parametrize(
    ("clients", "instance", "own", "rights"),
    [
        ([A], CONFINED, b"", A),
        ([B, A], CONFINED, b"", None),
        ([b""], CONFINED, b"", ALL_CALLABLE),
        ([], CONFINED, b"", None),
        # The model has a right of its own, or is not confined: both may call anything here.
        ([B], FREE, A, B),
        ([], FREE, A, A),
        ([], FREE, b"", ALL_CALLABLE),
        ([], UNKNOWN, b"", None),
    ],
)
def test_executors_get_the_rights_for_calls_to_other_schedulers(
    clients: list[bytes], instance: int, own: bytes, rights: bytes | None
) -> None:
    site = Site()
    if clients:
        site.execute(*clients, instance=instance)
    head = kserve_pb2.ModelInferRequest(model_name="a_1").SerializeToString()
    confined = 0 if instance == FREE else instance
    query = pb.CallQuery(
        number=5, head=head, caller=instance, confined_caller=confined, callable_models=own
    )
    found = site.rights.rights_for(query)
    assert (found.number, found.callable_models) == (5, rights or b"")
    assert found.error.code == (0 if rights else PermissionDenied.code)


def test_access_control_is_announced_once() -> None:
    announced: list[bool] = []
    rights = CallRights({}, lambda: announced.append(rights.has_access_control))
    rights.enable()
    rights.enable()
    assert announced == [True]


def test_nothing_changes_without_access_control() -> None:
    site = Site(has_access_control=False)
    for instance in (CONFINED, UNKNOWN):
        assert site.call("other", instance).callable_models == b""
    site.execute(b"")
    assert site.call("other").callable_models == b""


def test_a_call_for_which_no_request_is_known_counts_as_for_each() -> None:
    """A confined worker says itself for which request a call is."""
    site = Site()
    site.execute(A)
    head = kserve_pb2.ModelInferRequest(model_name="b_1").SerializeToString()
    with pytest.raises(PermissionDenied):
        site.rights.apply(InferRequest(9, head, [], caller=0, confined_caller=CONFINED))
    # An instance that is not its own, in a forged frame, gives it no other client's rights.
    site.execute(b"", instance=FREE)
    with pytest.raises(PermissionDenied):
        site.rights.apply(InferRequest(9, head, [], caller=FREE, confined_caller=CONFINED))


def test_calls_carry_their_clients_rights_on() -> None:
    site = Site()
    site.execute(A, instance=FREE)
    # The free model may call anything.
    call = InferRequest(9, b"", [], caller=FREE)
    site.rights.apply(call)
    assert call.callable_models == A
    # The one that it calls may call what the first client may, and it alone.
    site.execute(call.callable_models)
    assert site.may_call("a_1")
    assert not site.may_call("b_1")


def test_a_models_own_right_gives_way_to_its_clients() -> None:
    site = Site()
    own = write_callable_models(NamePatterns(("b_*",)))
    call = InferRequest(9, b"", [], caller=FREE, callable_models=own)
    site.rights.apply(call)
    assert call.callable_models == own
    site.execute(A, instance=FREE)
    site.rights.apply(call)
    assert call.callable_models == A


def test_a_mixed_batchs_call_carries_the_rights_of_all() -> None:
    site = Site()
    site.execute(A, B)
    joined = site.call("shared").callable_models
    assert [name for name in ("a_1", "b_1", "shared") if may_call(joined, name)] == ["shared"]


def test_refusals_name_the_model_and_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    site.execute(A)
    text = (
        "the confined model may not call model 'b_1': the client of a request has no right to use"
        r" the API 'inference' with it \(--sandbox-call\)"
    )
    with caplog.at_level(logging.WARNING):
        for name in ("b_1", "b_2", "x" * 4000):
            match = text if name == "b_1" else "the confined model may not call model"
            with pytest.raises(PermissionDenied, match=match) as refused:
                site.call(name)
            assert len(refused.value.message) < 400
    (record,) = caplog.records
    assert "instance=m_1 model=b_1" in record.getMessage()


def test_a_damaged_head_is_refused() -> None:
    site = Site()
    site.execute(A)
    with pytest.raises(Internal, match="damaged"):
        site.rights.apply(InferRequest(9, b"\xff", [], confined_caller=CONFINED))
