"""Part of the process that compares copies, and sends those for other servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from nereid.comparison.raw_contents import raw_contents
from nereid.comparison.rules import Rules
from nereid.comparison.shadow import Shadow, parse_shadow
from nereid.comparison.tally import Redaction, Tally, TallyOptions
from nereid.core.wire.codecs import write_parameters
from nereid.pb import kserve_pb2
from nereid.rpc import RpcError, SocketChannel
from nereid.rpc.grpc.channel import ChannelOptions
from nereid_gateway.extras.shadows.exchanges import (
    CopiedExchange,
    CopyToServer,
    CountsQuestion,
    ModelCounts,
    ModelQuestion,
    NotCompared,
    RawResponse,
    Reply,
    SetShadows,
    exchange_of,
)

if TYPE_CHECKING:
    from nereid.comparison.shadow import Shadow
    from nereid_gateway.extras.shadows.exchanges import CopiedRequest

# Copies for one other server in flight. Further ones are dropped.
_MAX_COPIES: Final = 16
_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
# The other server may be anybody's. Its responses are as large as those of the model at most.
_OPTIONS: Final = ChannelOptions(max_message_bytes=16 << 20, trusts_peer=False)
_REDACTION: Final = {"all": Redaction.NONE, "digest": Redaction.DIGEST, "none": Redaction.OMIT}
BUSY, TIMEOUT, NO_RESPONSE, DAMAGED = (
    "the shadow was busy",
    "the copy timed out",
    "the other server did not respond",
    "a response could not be read",
)


class _Model:
    """Counts of one model's shadow, and the connection to another server."""

    def __init__(self, name: str, text: str) -> None:
        self.text = text
        self.shadow: Shadow = parse_shadow(text)
        rules = Rules((("*", self.shadow.tensor_rules()),))
        options = TallyOptions(redaction=_REDACTION[self.shadow.keep_inputs])
        self.tally = Tally(rules, options)
        self.kinds: Counter[str] = Counter()
        self.not_compared: Counter[str] = Counter()
        self.in_flight = 0
        address, self.model_name = self.shadow.server
        self.channel = SocketChannel(address, _OPTIONS) if address else None
        self._name = name

    def add(self, request: CopiedRequest, old: Reply, new: Reply) -> None:
        """Compare an exchange."""
        try:
            differences = self.tally.add(exchange_of(request, old, new))
        except (ValueError, DecodeError):
            self.add_not_compared(DAMAGED)
            return
        self.kinds.update(str(difference.kind) for difference in differences)

    def add_not_compared(self, reason: str, number: int = 1) -> None:
        """Count copies without a response."""
        self.not_compared[reason] += number
        self.tally.add_not_compared(self._name, reason, number)

    def counts(self) -> ModelCounts:
        """Return the counts."""
        compared, differing = self.tally.totals(self._name)
        return ModelCounts(compared, differing, dict(self.kinds), dict(self.not_compared))

    async def send(self, request: CopiedRequest, old: Reply) -> None:
        """Send a copy to the other server, and compare its response."""
        assert self.channel is not None
        begin = perf_counter()
        try:
            message = await self.channel.unary(
                _INFER, _message_of(request, self.model_name), timeout_s=self.shadow.timeout_s
            )
            response = kserve_pb2.ModelInferResponse.FromString(message)
            payloads = raw_contents(response.outputs, response.raw_output_contents)
        except RpcError as error:
            if error.status.name in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}:
                timed_out = error.status.name == "DEADLINE_EXCEEDED"
                self.add_not_compared(TIMEOUT if timed_out else NO_RESPONSE)
                return
            raw = RawResponse(b"", (), (int(error.status), error.message))
        except (DecodeError, ValueError):
            self.add_not_compared(DAMAGED)
            return
        else:
            response.ClearField("raw_output_contents")
            raw = RawResponse(response.SerializeToString(), payloads)
        self.add(request, old, Reply((raw,), perf_counter() - begin))


class ShadowReporter:
    """Shadows of all models, as a Reporter. Each model has a tally of its own."""

    def __init__(self, _: object = None) -> None:
        self.tally = Tally(Rules())
        self._models: dict[str, _Model] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def set(self, shadows: dict[str, str]) -> None:
        """Set the shadows; keep the counts of those that are the same."""
        for name, known in list(self._models.items()):
            if shadows.get(name) != known.text:
                del self._models[name]
                if known.channel is not None:
                    self._spawn(known.channel.close())
        for name, text in shadows.items():
            if name not in self._models:
                self._models[name] = _Model(name, text)

    async def on_message(self, message: object) -> object | None:
        """Handle a message; return the reply to a question."""
        match message:
            case CountsQuestion():
                return {name: model.counts() for name, model in self._models.items()}
            case ModelQuestion(name):
                known = self._models.get(name)
                return {} if known is None else known.tally.document()
            case SetShadows(shadows):
                self.set(shadows)
            case CopiedExchange(request, old, new):
                if (model := self._models.get(request.model)) is not None:
                    model.add(request, old, new)
            case CopyToServer(request, old):
                self._send(request, old)
            case NotCompared(name, reason, number):
                if (model := self._models.get(name)) is not None:
                    model.add_not_compared(reason, number)
        return None

    async def close(self) -> None:
        """Close the connections to other servers."""
        self.set({})
        await asyncio.gather(*self._tasks)

    def _send(self, request: CopiedRequest, old: Reply) -> None:
        model = self._models.get(request.model)
        if model is None or model.channel is None:
            return
        if model.in_flight >= _MAX_COPIES:
            model.add_not_compared(BUSY)
            return
        model.in_flight += 1

        async def send() -> None:
            try:
                await model.send(request, old)
            finally:
                model.in_flight -= 1

        self._spawn(send())

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _message_of(request: CopiedRequest, model: str) -> bytes:
    message = kserve_pb2.ModelInferRequest.FromString(request.head)
    message.model_name, message.model_version = model, ""
    message.id = request.request_id
    write_parameters(request.parameters, message.parameters)
    message.raw_input_contents.extend(request.payloads)
    return message.SerializeToString()
