"""The clients behind one gateway of a simulated mesh, and a check of each response."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nereid.core.errors import Aborted, DeadlineExceeded, Internal, Unavailable
from nereid.core.messages import Cancel, InferRequest
from tests.simulation.models import MODELS

if TYPE_CHECKING:
    from nereid.core.messages import InferResponse, ToScheduler
    from nereid.services.scheduler.requests.gateway_session import GatewaySession
    from tests.simulation.models import SimulatedModel
    from tests.simulation.surroundings import Surroundings

_MEAN_PAUSE_S = 0.02
_LARGEST_BURST = 24
_MOST_OPEN = 600
# A deadline crosses links in microseconds.
_ROUNDING_S = 2e-6


@dataclass
class OpenRequest:
    """must_succeed: it was sent when all faults were over."""

    number: int
    model: SimulatedModel
    deadline_s: float | None
    must_succeed: bool
    values: list[int] = field(default_factory=list)


class Clients:
    """The gateway's end of its link."""

    def __init__(self, where: Surroundings, session: GatewaySession) -> None:
        self._where = where
        self._session = session
        self._heads = {model.name: model.request_head() for model in MODELS}
        self.open: dict[int, OpenRequest] = {}
        self.sent = 0
        self.ends: Counter[str] = Counter()
        self._ended = False
        session.link = self

    def start(self) -> None:
        self._where.loop.call_later(self._where.random.expovariate(1 / _MEAN_PAUSE_S), self._burst)

    def end(self) -> None:
        """Send nothing more."""
        self._ended = True

    def _burst(self) -> None:
        if self._ended:
            return
        choices = self._where.random
        if len(self.open) < _MOST_OPEN:
            count = choices.randint(1, _LARGEST_BURST)
            models = choices.choices(MODELS, weights=(6, 2, 2), k=count)
            self._session.on_items([self._request(model) for model in models])
        self.start()

    def send_last(self) -> None:
        """One request to each model, which must succeed."""
        self._session.on_items([self._request(model, must_succeed=True) for model in MODELS])

    def _request(self, model: SimulatedModel, *, must_succeed: bool = False) -> ToScheduler:
        choices = self._where.random
        self.sent += 1
        number = self.sent
        deadline_s = None
        if not must_succeed and choices.random() < 0.1:
            deadline_s = self._where.loop.time() + choices.uniform(0.002, 0.4)
        if not must_succeed and choices.random() < 0.05:
            self._where.later((0.0, 0.05), self._cancel, number)
        self.open[number] = OpenRequest(number, model, deadline_s, must_succeed)
        self._where.history.add("sent", model.name, [number])
        return InferRequest(
            number,
            self._heads[model.name],
            [number.to_bytes(8, "little")],
            deadline=deadline_s,
            accepts_many=model.decoupled,
        )

    def _cancel(self, number: int) -> None:
        if self.open.pop(number, None) is not None:
            self._where.history.add("cancelled", "", [number])
            self.ends["cancelled"] += 1
            self._session.on_items([Cancel(number)])

    # ---- responses

    def send(self, item: InferResponse) -> None:
        """A response of the scheduler."""
        request = self.open.get(item.id)
        history = self._where.history
        if request is None:
            history.violate("a response to a request that has ended", [item.id])
            return
        for payload in item.payloads:
            assert isinstance(payload, bytes), "nothing is shared"
            request.values.append(int.from_bytes(payload, "little"))
        if item.more:
            return
        del self.open[item.id]
        end = "success" if item.error is None else f"error {item.error.code}"
        self.ends[end] += 1
        history.add("ended", end, [item.id])
        problem = self._problem(request, item)
        if problem:
            history.violate(f"model '{request.model.name}': {problem}", [item.id])

    send_now = send

    def _problem(self, request: OpenRequest, last: InferResponse) -> str:
        """What is wrong with the responses to a request; empty: nothing."""
        values = request.model.values(request.number)
        error = last.error
        if error is None:
            if request.values != values:
                return f"{request.values} in place of {values}"
            return ""
        if request.values != values[: len(request.values)]:
            return f"{request.values} before an error, in place of {values}"
        runs = self._where.runs
        permitted = {
            DeadlineExceeded.code: request.deadline_s is not None
            and self._where.loop.time() >= request.deadline_s - _ROUNDING_S,
            Aborted.code: request.model.once,
            Unavailable.code: runs.has_begun(request.number),
            Internal.code: request.number in runs.crashed,
        }
        if request.must_succeed or not permitted.get(error.code, False):
            return f"an error without a reason: {error}"
        return ""
