"""Whatever happens, in whatever order: each request gets its last response once, is with one
scheduler at a time, and is marked as resent exactly if it may have begun to run.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereid.core.errors import Unavailable
from nereid.core.wire.messages import Cancel, InferRequest, Ownership
from tests.support.mesh.router_on_fakes import LIMIT_S, RouterOnFakes

ADDRESSES = ("a", "b", "c")
MODELS = ("k", "l", "m", "unknown")


class CheckedMesh(RouterOnFakes):
    """Schedulers that behave, and a model of what they know of each request."""

    def __init__(self) -> None:
        super().__init__(*ADDRESSES)
        self.live: set[str] = set()
        self.announced: dict[str, Ownership] = {}
        self.epoch = 0
        # Which scheduler has a request now, and which ones may have begun it.
        self.placed: dict[int, str] = {}
        self.begun: set[int] = set()
        self.cancelled: set[int] = set()
        self.sizes: dict[int, int] = {}
        self.models: dict[int, str] = {}
        self.arrived: dict[int, float] = {}

    def check(self) -> None:
        """Take in what was sent, and compare."""
        for address in ADDRESSES:
            link = self.schedulers.links[address]
            sent, link.sent = link.sent, []
            for item in sent:
                if isinstance(item, InferRequest):
                    assert address in self.live, "sent over a broken link"
                    assert item.id not in self.placed, "with two schedulers at once"
                    assert item.id not in self.cancelled, "sent after it was cancelled"
                    assert item.resent == (item.id in self.begun)
                    self.placed[item.id] = address
                elif isinstance(item, Cancel):
                    assert self.placed.pop(item.id) == address
        for number, responses in self.responses.items():
            finals = [each for each in responses if not each.more]
            assert len(finals) <= 1, "two last responses"
            assert not finals or not responses[-1].more, "a response after the last one"
            assert number not in self.cancelled or not finals
            assert (
                bool(finals) == (number not in self.router.pending.requests)
                or number in self.cancelled
            )
        pending = self.router.pending.requests
        assert set(self.placed) <= set(pending)
        assert self.router.pending.pending_bytes == sum(self.sizes[each] for each in pending)
        now = self.clock.time()
        for number in pending:
            if number not in self.placed and not self.live:
                assert now - self.arrived[number] <= LIMIT_S
        for number in set(pending) - set(self.placed):
            owners = [each for each in self.live if self.names(each, self.models[number])]
            # Only one that returned it, and has announced nothing since, is not tried.
            assert len(owners) <= 1 or number in self.router._returns

    def names(self, address: str, model: str) -> bool:
        owned = self.announced.get(address)
        return owned is not None and not owned.leaving and model in owned.models

    def placed_at(self, address: str) -> list[int]:
        return [number for number, where in self.placed.items() if where == address]

    # --- events; those that are impossible now do nothing

    def on_request(self, _: str, model: str, number: int) -> None:
        pending = self.infer(model, number)
        request_id = pending.request.id
        self.sizes[request_id], self.models[request_id] = number, model
        self.arrived[request_id] = self.clock.time()

    def on_link_up(self, address: str, model: str, _: int) -> None:
        if address not in self.live:
            self.live.add(address)
            self.epoch += 1
            self.announced[address] = Ownership(address, self.epoch, (model,))
            self.connect(address, model, epoch=self.epoch)

    def on_link_down(self, address: str, _model: str, _number: int) -> None:
        if address in self.live:
            self.live.remove(address)
            self.announced.pop(address, None)
            for number in self.placed_at(address):
                del self.placed[number]
                self.begun.add(number)
                self.arrived[number] = self.clock.time()
            self.disconnect(address)

    def on_announcement(self, address: str, model: str, number: int) -> None:
        if address in self.live:
            self.epoch += number % 3
            models = tuple({model, MODELS[number % 3]})
            owned = Ownership(address, self.epoch, models, leaving=number % 7 == 0)
            self.announced[address] = owned
            self.on_items(address, owned)

    def on_response_sent(self, address: str, _: str, number: int) -> None:
        placed = self.placed_at(address)
        if placed:
            request_id = placed[number % len(placed)]
            more = number % 3 == 0
            if not more:
                del self.placed[request_id]
            self.respond(address, request_id, more=more)

    def on_return(self, address: str, _: str, number: int) -> None:
        """It returns some of what has not begun."""
        fresh = [each for each in self.placed_at(address) if not self.responses[each]]
        returned = fresh[: 1 + number % 3]
        for each in returned:
            del self.placed[each]
            self.arrived[each] = self.clock.time()
        self.move(address, *returned)

    def on_cancel(self, _: str, __: str, number: int) -> None:
        pending = list(self.router.pending.requests.values())
        if pending:
            each = pending[number % len(pending)]
            self.cancelled.add(each.request.id)
            each.cancel()

    def on_time(self, _: str, __: str, number: int) -> None:
        self.clock.advance(number * LIMIT_S / 20)


EVENTS = {
    name: getattr(CheckedMesh, name)
    for name in (
        "on_request",
        "on_link_up",
        "on_link_down",
        "on_announcement",
        "on_response_sent",
        "on_return",
        "on_cancel",
        "on_time",
    )
}
# Requests and responses are most of what happens.
KINDS = ["on_request"] * 4 + ["on_response_sent"] * 2 + list(EVENTS)
events = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.sampled_from(ADDRESSES),
        st.sampled_from(MODELS),
        st.integers(0, 20),
    ),
    min_size=10,
    max_size=80,
)


def play(happens: list[tuple[str, str, str, int]]) -> CheckedMesh:
    mesh = CheckedMesh()
    for name, address, model, number in happens:
        EVENTS[name](mesh, address, model, number)
        mesh.check()
    return mesh


@settings(max_examples=150)
@given(events)
def test_each_request_gets_its_last_response_once(
    happens: list[tuple[str, str, str, int]],
) -> None:
    mesh = play(happens)
    # The links break for good: whatever is pending fails by the limit.
    for address in ADDRESSES:
        mesh.on_link_down(address, "", 0)
        mesh.check()
    mesh.clock.advance(2 * LIMIT_S)
    mesh.check()
    assert not mesh.router.pending.requests
    finals: defaultdict[int, int] = defaultdict(int)
    for number, responses in mesh.responses.items():
        finals[number] += sum(not each.more for each in responses)
    assert all(finals[number] == (number not in mesh.cancelled) for number in mesh.sizes)


@settings(max_examples=50)
@given(events)
def test_closing_fails_what_is_pending_whatever_came_before(
    happens: list[tuple[str, str, str, int]],
) -> None:
    mesh = play(happens)
    pending = list(mesh.router.pending.requests)
    mesh.router.close(Unavailable("the server is shutting down"))
    for number in pending:
        error = mesh.responses[number][-1].error
        assert error is not None
        assert error.message == "the server is shutting down"
    mesh.clock.advance(3 * LIMIT_S)
    assert not mesh.router.pending.requests
    assert all(sum(not r.more for r in mesh.responses[each]) == 1 for each in pending)


@pytest.mark.parametrize("model", MODELS)
def test_once_every_scheduler_is_settled_nothing_is_held(model: str) -> None:
    mesh = play([("on_request", "a", model, 1)] * 3)
    mesh.on_link_up("a", "k", 0)
    mesh.on_link_up("b", "l", 0)
    mesh.on_link_up("c", "m", 0)
    mesh.check()
    assert len(mesh.placed) == 3
