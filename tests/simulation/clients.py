"""The clients of a simulated mesh: they send bursts of requests to its gateways, and note what
comes of each. Whether that may be so is the campaign's checker's to say.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from nereid.rpc import Status
from tests.simulation.models import MODELS, request_payload, result_of
from tests.torment.history import Outcome, Request, Result, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.wire.messages import InferResponse
    from tests.simulation.gateways import Gateway, GatewayHost
    from tests.simulation.models import SimulatedModel
    from tests.simulation.surroundings import Surroundings

    OnEnd = Callable[[Request], None]

_MAX_BURST = 24
# One burst in so many is of all that fits.
_FLOOD = 80
_MAX_FLOOD = 400
_MAX_OPEN = 600
_BACK_OFF_S = (0.05, 0.2)
_MAX_VALUES = 1 << 20


class OpenRequest:
    """One that has been sent."""

    def __init__(self, request: Request, gateway: Gateway | None, on_end: OnEnd) -> None:
        """gateway: None: it could not be reached."""
        self.request = request
        self.gateway = gateway
        self.on_end = on_end
        self.results: list[Result] = []


class Clients:
    """Of all gateways. mean_pause_s: between two bursts."""

    def __init__(
        self, where: Surroundings, gateways: Sequence[GatewayHost], mean_pause_s: float
    ) -> None:
        self._where = where
        self._gateways = gateways
        self._mean_pause_s = mean_pause_s
        self._heads = {model.name: model.request_head() for model in MODELS}
        self._single = [each for each in MODELS if not (each.contract.is_sequence or each.is_step)]
        self._weights = [each.weight for each in self._single]
        self._stateful = [each for each in MODELS if each.contract.is_sequence]
        self._sequences = 0
        self._ended = False
        self.sent = 0
        self.open: dict[int, OpenRequest] = {}
        self.most_open = 0
        self.ends: Counter[str] = Counter()

    def start(self) -> None:
        self._where.loop.call_later(
            self._where.random.expovariate(1 / self._mean_pause_s), self._burst
        )

    def end(self) -> None:
        """Send nothing more."""
        self._ended = True

    def send_last(self) -> None:
        """One request to each model by each gateway; some must succeed."""
        for model in self._single:
            for host in self._gateways:
                self._send(self._request(model), model, host, _ignore)
        for model in self._stateful:
            self._begin_sequence(model)

    def _burst(self) -> None:
        if self._ended:
            return
        choices = self._where.random
        largest = _MAX_BURST if choices.randrange(_FLOOD) else _MAX_FLOOD
        count = min(choices.randint(1, largest), _MAX_OPEN - len(self.open))
        if count > 0:
            host = choices.choice(self._gateways)
            for model in choices.choices(self._single, weights=self._weights, k=count):
                self._ask(model, host)
            self.most_open = max(self.most_open, len(self.open))
        if self._stateful and choices.random() < 0.2:
            self._begin_sequence(choices.choice(self._stateful))
        self.start()

    # ---- single requests

    def _request(self, model: SimulatedModel) -> Request:
        self.sent += 1
        number, choices = self.sent, self._where.random
        values = model.contract.values
        value = choices.randrange(values) if values else choices.randrange(_MAX_VALUES)
        request = Request(number, f"0.{number % 97}", model.name, value, 0.0)
        if model.decoupled:
            request.count = choices.randrange(6)
        return request

    def _ask(self, model: SimulatedModel, host: GatewayHost, retry_of: int | None = None) -> None:
        choices = self._where.random
        request = self._request(model)
        request.retry_of = retry_of
        if choices.random() < 0.1:
            request.deadline_s = choices.uniform(0.002, 0.4)
        elif choices.random() < 0.05:
            request.cancel_s = choices.uniform(0.0, 0.05)

        def on_end(ended: Request) -> None:
            failed = ended.outcome in {Outcome.ERROR, Outcome.DISCONNECTED}
            if failed and retry_of is None and not self._ended and choices.random() < 0.3:
                elsewhere = choices.choice(self._gateways)
                self._where.later(_BACK_OFF_S, self._ask, model, elsewhere, ended.id)

        self._send(request, model, host, on_end)

    # ---- sequences

    def _begin_sequence(self, model: SimulatedModel) -> None:
        self._sequences += 1
        length = self._where.random.randint(2, 8)
        self._continue(model, Step(self._sequences, 0, 0, length))

    def _continue(self, model: SimulatedModel, step: Step) -> None:
        choices = self._where.random
        request = self._request(model)
        request.step = step

        def on_end(ended: Request) -> None:
            last = step.number == step.length - 1
            if ended.outcome is Outcome.OK and not last:
                following = Step(step.sequence, step.attempt, step.number + 1, step.length)
                self._where.later((0.0, 0.1), self._continue, model, following)
            elif ended.outcome is not Outcome.OK and not self._ended:
                again = Step(step.sequence, step.attempt + 1, 0, step.length)
                self._where.later(_BACK_OFF_S, self._continue, model, again)

        self._send(request, model, choices.choice(self._gateways), on_end)

    # ---- each request

    def _send(
        self, request: Request, model: SimulatedModel, host: GatewayHost, on_end: OnEnd
    ) -> None:
        number, gateway, loop = request.id, host.gateway, self._where.loop
        self._where.history.begin(request)
        self.open[number] = OpenRequest(request, gateway, on_end)
        if gateway is None:
            self._end(number, Outcome.DISCONNECTED, text=f"{host.name} is not there")
            return
        deadline = None
        if request.deadline_s is not None:
            deadline = loop.time() + request.deadline_s
            loop.call_at(deadline, self._on_deadline, number)
        if request.cancel_s is not None:
            loop.call_later(request.cancel_s, self._cancel, number, Outcome.CANCELLED)
        parameters: dict[str, bool | int | float | str] = {}
        if (step := request.step) is not None:
            parameters["sequence_id"] = step.sequence
            parameters["sequence_start"] = step.number == 0
            parameters["sequence_end"] = step.number == step.length - 1
        # Those of a cached model are the same if their values are.
        shown = 0 if model.is_cached else number
        message = self._where.bugs.request_type(
            0,
            self._heads[model.name],
            [request_payload(request.value, shown, request.count)],
            parameters=parameters,
            deadline=deadline,
            accepts_many=model.decoupled,
        )
        gateway.infer(
            number,
            message,
            lambda response: self._on_response(number, response),
            lambda: self._end(number, Outcome.DISCONNECTED, text="the connection broke"),
        )

    def _on_deadline(self, number: int) -> None:
        self._cancel(number, Outcome.ERROR, Status.DEADLINE_EXCEEDED.name)

    def _cancel(self, number: int, outcome: Outcome, status: str = "") -> None:
        opened = self.open.get(number)
        if opened is not None:
            if opened.gateway is not None:
                opened.gateway.cancel(number)
            self._end(number, outcome, status)

    def _on_response(self, number: int, response: InferResponse) -> None:
        opened = self.open.get(number)
        if opened is None:
            self._where.history.violate("a response to a request that has ended", [number])
            return
        for payload in response.payloads:
            assert isinstance(payload, bytes), "nothing is shared"
            opened.results.append(Result(*result_of(payload)))
        if response.more:
            return
        error = response.error
        if error is None:
            self._end(number, Outcome.OK)
        else:
            self._end(number, Outcome.ERROR, Status(error.code).name, error.message)

    def _end(self, number: int, outcome: Outcome, status: str = "", text: str = "") -> None:
        opened = self.open.pop(number, None)
        if opened is None:
            return
        request = opened.request
        request.outcome, request.status, request.text = outcome, status, text
        request.results = tuple(opened.results)
        self._where.history.end(request)
        self.ends[f"{outcome.value} {status}".strip()] += 1
        opened.on_end(request)


def _ignore(_request: Request) -> None:
    pass
