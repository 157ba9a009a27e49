"""A process of clients: each sends one request after the other and notes what becomes of it.

Its argument is a Plan as JSON. It ends when it reads a line, or its input ends, after the requests
in flight; each second it prints how many requests have ended, by model when the last one began that
ended well, and how many seconds of CPU it had.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import grpc.aio
import numpy as np
import tritonclient.grpc.aio as grpcclient
import tritonclient.http.aio as httpclient
from tritonclient.utils import InferenceServerException

from tests.torment.contract import MODELS
from tests.torment.history import HistoryWriter, Outcome, Request, Result, Step
from tests.torment.repository import LARGE_ELEMENTS
from tests.torment.shapes import CLIENTS, Phase, Timeline, phases

# A client that hears nothing for so long counts the request as lost. The mesh's own limits are 30 s
# for a scheduler, and as much for an executor.
PATIENCE_S: Final = 150.0
# What a client that had an error waits before it tries again.
_BACK_OFF_S: Final = 0.1
_CORE_ERROR: Final = "Internal error from Core"
_CALL_CANCELLED: Final = "cancelled"
# What of a gRPC error's text says that it was made by the client's own side.
_LOCAL: Final = (
    "failed to connect",
    "Socket closed",
    "onnection reset",
    "onnection refused",
    "Broken pipe",
    "GOAWAY",
    "Stream removed",
    "recvmsg",
    "sendmsg",
    "Transport closed",
    "keepalive",
    "RST_STREAM",
    "No route to host",
    "Connect Failed",
    "End of TCP stream",
    _CORE_ERROR,
)
_STATUSES: Final = {
    "400": "INVALID_ARGUMENT",
    "404": "NOT_FOUND",
    "409": "ABORTED",
    "429": "RESOURCE_EXHAUSTED",
    "499": "CANCELLED",
    "500": "INTERNAL",
    "503": "UNAVAILABLE",
    "504": "DEADLINE_EXCEEDED",
}
_CHANNEL: Final = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    # For how long one attempt may last: gateways at saturation take their time.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # As the client has it by itself.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]
# Clients on one connection to a gateway.
_CLIENTS_PER_CHANNEL: Final = 64
_REPORT_S: Final = 1.0
# Values of sequences, whose sums are INT32.
_SUMMAND: Final = 10_000_000


@dataclass(frozen=True)
class Plan:
    """What the clients of one process do."""

    process: int
    seed: int
    # When the campaign began, by the monotonic clock.
    origin_s: float
    http: list[str]
    grpc: list[str]
    history: str
    # In this process, with the steady pace, and how long one thinks between two requests then, on
    # average.
    clients: int
    pause_s: float
    models: list[str] = field(default_factory=lambda: list(MODELS))
    # Of the load, which begins at a time of the campaign's.
    shapes: list[str] = field(default_factory=list)
    begin_s: float = 0.0
    processes: int = 1

    @property
    def most_clients(self) -> int:
        """In this process, in any phase."""
        return max(self.clients, max(CLIENTS) // self.processes if self.shapes else 0)

    def clients_of(self, phase: Phase) -> int:
        return phase.clients // self.processes or self.clients

    def model_of(self, client: int) -> str:
        return self.models[(client + self.process) % len(self.models)]

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Process:
    """All clients of a process and what they share."""

    def __init__(self, plan: Plan, writer: HistoryWriter) -> None:
        self.plan, self.writer = plan, writer
        self.ending = asyncio.Event()
        self.ended = 0
        # When the last one began that ended well, by model.
        self.right_s: dict[str, float] = {}
        # For how long its event loop stood still, at most.
        self.stalled_s = 0.0
        self._number = 0
        self._timeline = Timeline(phases(plan.seed, plan.shapes, plan.models))
        most = plan.most_clients
        self.http = [
            httpclient.InferenceServerClient(each, conn_limit=most, conn_timeout=PATIENCE_S)
            for each in plan.http
        ]
        # By channel, and by gateway.
        self.grpc = [
            [grpcclient.InferenceServerClient(each, channel_args=_CHANNEL) for each in plan.grpc]
            for _ in range(0, most, _CLIENTS_PER_CHANNEL)
        ]

    def new_id(self) -> int:
        self._number += 1
        return (self.plan.process << 32) + self._number

    def now_s(self) -> float:
        return time.monotonic() - self.plan.origin_s

    def phase(self) -> Phase:
        return self._timeline.at(self.now_s() - self.plan.begin_s)

    async def sleep_until(self, since_s: float) -> None:
        """A time since the begin of the load, or the campaign's end if that is earlier."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(since_s + self.plan.begin_s - self.now_s()):
                await self.ending.wait()

    def report(self) -> None:
        state = self.ended, self.right_s, time.process_time(), self.stalled_s
        print(json.dumps(state), flush=True)

    async def close(self) -> None:
        for each in (*self.http, *itertools.chain(*self.grpc)):
            await each.close()


class Client:
    """Sends one request after the other to its model: one that fails delays no other's clients.

    In a mix of models it asks one after the other, and a slow one delays all clients.
    """

    def __init__(self, process: Process, number: int) -> None:
        self._process = process
        self._number = number
        self._name = f"{process.plan.process}.{number}"
        self._chance = random.Random(f"client {self._name} of {process.plan.seed}")
        self._model = process.plan.model_of(number)
        self._is_http = self._chance.random() < 0.4
        self._gateway = self._chance.randrange(len(process.plan.grpc))
        self._grpc = process.grpc[number // _CLIENTS_PER_CHANNEL]
        self._retries = self._chance.random() < 0.5
        self._sequences = 0
        # Correlation ids are INT32 in the model.
        self._first_sequence = (process.plan.process * 1000 + number) * 10_000

    async def run(self) -> None:
        process = self._process
        while not process.ending.is_set():
            phase = process.phase()
            if self._number >= process.plan.clients_of(phase):
                await process.sleep_until(phase.end_s)
                continue
            await self._pause(phase)
            name = self._model
            if phase.weights:
                (name,) = self._chance.choices([*phase.weights], [*phase.weights.values()])
            if MODELS[name].is_sequence:
                await self._play_sequence(name)
            else:
                await self._ask(name)

    async def _pause(self, phase: Phase) -> None:
        if phase.pace == "bursts":
            now_s = self._process.now_s() - self._process.plan.begin_s
            await self._process.sleep_until(min(phase.next_burst_s(now_s), phase.end_s))
        elif phase.pace == "steady":
            await asyncio.sleep(self._chance.uniform(0, 2) * self._process.plan.pause_s)

    async def _ask(self, name: str) -> None:
        model = MODELS[name]
        request = self._request(name)
        if model.values:
            request.value = self._chance.randrange(model.values)
        if name == "decoupled":
            request.count = self._chance.randrange(6)
        await self.send(request)
        if request.outcome is Outcome.OK:
            return
        self._go_on()
        if self._retries:
            again = self._request(name)
            again.retry_of, again.count = request.id, request.count
            again.elements = request.elements
            if model.values:
                again.value = request.value
            await self.send(again)

    async def _play_sequence(self, name: str) -> None:
        """A sequence to its end, begun anew with the same id after an error.

        Who ends a request early cannot know where it is. What is sent on the same connection comes
        behind it; elsewhere another sequence begins.
        """
        self._sequences += 1
        sequence, length = self._first_sequence + self._sequences, self._chance.randint(2, 8)
        for attempt in itertools.count():
            for number in range(length):
                request = self._request(name)
                request.value = self._chance.randrange(_SUMMAND)
                request.step = Step(sequence, attempt, number, length)
                await self.send(request)
                if request.outcome is not Outcome.OK:
                    if not _ended_early(request):
                        self._go_on()
                    elif self._is_http:
                        return
                    break
                # By turns, until there is an error: one may be down.
                if not attempt:
                    self._go_on()
                await self._pause(self._process.phase())
            else:
                return
            if self._process.ending.is_set():
                return

    def _go_on(self) -> None:
        """Another gateway may be well."""
        self._gateway = (self._gateway + 1) % len(self._process.plan.grpc)

    def _request(self, name: str) -> Request:
        identity = self._process.new_id()
        request = Request(identity, self._name, name, identity, 0.0)
        phase, chance = self._process.phase(), self._chance
        if name == "large":
            request.elements = phase.elements(chance, LARGE_ELEMENTS)
        deadline_s, cancel_s = phase.limits(chance, in_sequence=MODELS[name].is_sequence)
        # HTTP has no deadlines: its clients hang up.
        if self._is_http and name != "decoupled":
            deadline_s, cancel_s = None, cancel_s or deadline_s
        request.deadline_s, request.cancel_s = deadline_s, cancel_s
        return request

    async def send(self, request: Request) -> None:
        """Send it, and note when, and what comes of it."""
        request.began_s = self._process.now_s()
        self._process.writer.begin(request)
        results: list[Result] = []
        try:
            async with asyncio.timeout(request.cancel_s or PATIENCE_S):
                if request.model == "decoupled":
                    await self._stream(request, results)
                else:
                    results.append(await self._infer(request))
            request.outcome = Outcome.OK
        except (TimeoutError, aiohttp.ServerTimeoutError):
            request.outcome = Outcome.CANCELLED if request.cancel_s else Outcome.TIMEOUT
        except InferenceServerException as error:
            _note_error(request, error.status(), error.message())
        except grpc.aio.AioRpcError as error:
            _note_error(request, error.code().name, error.details())
        except asyncio.CancelledError:
            # Of a call that has ended, not of this task.
            request.outcome, request.text = Outcome.DISCONNECTED, _CALL_CANCELLED
        except (aiohttp.ClientError, OSError) as error:
            request.outcome, request.text = Outcome.DISCONNECTED, repr(error)
        request.results = tuple(results)
        request.ended_s = self._process.now_s()
        if request.text in {_CORE_ERROR, _CALL_CANCELLED}:
            # So grpc says it of a stream that ends while it is opened or written: its deadline has
            # passed, or its connection is gone.
            if request.deadline_s and request.ended_s - request.began_s >= request.deadline_s:
                request.outcome, request.status = Outcome.ERROR, "DEADLINE_EXCEEDED"
            else:
                request.outcome = Outcome.DISCONNECTED
        self._process.writer.end(request)
        self._process.ended += 1
        if request.outcome is Outcome.OK:
            self._process.right_s[request.model] = request.began_s
        elif not _ended_early(request):
            await asyncio.sleep(_BACK_OFF_S)

    async def _infer(self, request: Request) -> Result:
        is_sequence = MODELS[request.model].is_sequence
        # Requests of Python models have ids: the model notes them.
        options: dict[str, Any] = {"request_id": str(request.id)}
        if request.step:
            options["sequence_id"] = request.step.sequence
            options["sequence_start"] = request.step.number == 0
            options["sequence_end"] = request.step.number == request.step.length - 1
        module = httpclient if self._is_http else grpcclient
        clients = self._process.http if self._is_http else self._grpc
        if request.deadline_s:
            options["client_timeout"] = request.deadline_s
        tensor = _tensor(module, request)
        response = await clients[self._gateway].infer(request.model, [tensor], **options)
        if is_sequence:
            return Result(int(response.as_numpy("OUTPUT").ravel()[0]), 0)
        return _result(response, request)

    async def _stream(self, request: Request, results: list[Result]) -> None:
        """One request of a stream: its responses in order, to the end."""

        async def inputs() -> AsyncIterator[dict[str, Any]]:
            yield {
                "model_name": request.model,
                "inputs": [_tensor(grpcclient, request)],
                "request_id": str(request.id),
                "parameters": {"count": request.count},
            }

        # The client's end of the stream has ended with its request: the mesh's ends with the last
        # response.
        stream = self._grpc[self._gateway].stream_infer(inputs(), request.deadline_s)
        async for response, error in stream:
            if error is not None:
                raise error
            if response.get_response().id == str(request.id):
                results.append(_result(response, request))
            else:
                # Another's: as wrong as a value can be.
                results.append(Result(-1, -1))


def _ended_early(request: Request) -> bool:
    """Its client did not wait for its end: it may be anywhere."""
    return request.outcome is Outcome.CANCELLED or request.status == "DEADLINE_EXCEEDED"


def _note_error(request: Request, status: str | None, text: str | None) -> None:
    status = (status or "").removeprefix("StatusCode.")
    request.status, request.text = _STATUSES.get(status, status), text or ""
    is_local = status != "DEADLINE_EXCEEDED" and any(each in request.text for each in _LOCAL)
    request.outcome = Outcome.DISCONNECTED if is_local else Outcome.ERROR


def _tensor(module: Any, request: Request) -> Any:
    if MODELS[request.model].is_sequence:
        made = module.InferInput("INPUT", [1, 1], "INT32")
        made.set_data_from_numpy(np.full((1, 1), request.value, np.int32))
        return made
    size = request.elements
    shape = (size,) if MODELS[request.model].is_python else (1, size)
    made = module.InferInput("VALUE", list(shape), "INT64")
    made.set_data_from_numpy(np.full(shape, request.value, np.int64))
    return made


def _result(response: Any, request: Request) -> Result:
    """Of as many equal elements as were asked for, else one that cannot be."""
    result, version = (response.as_numpy(name).ravel() for name in ("RESULT", "VERSION"))
    for each in (result, version):
        if each.size != request.elements or (each != each[0]).any():
            return Result(-1, -1)
    return Result(int(result[0]), int(version[0]))


async def _await_end(process: Process) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.readline()
    process.ending.set()


async def _report(process: Process) -> None:
    while True:
        process.report()
        due_s = process.now_s() + _REPORT_S
        await asyncio.sleep(_REPORT_S)
        process.stalled_s = max(process.stalled_s, process.now_s() - due_s)


async def main(plan: Plan) -> None:
    with Path(plan.history).open("w", buffering=1 << 16) as file:  # noqa: ASYNC230  (small writes)
        process = Process(plan, HistoryWriter(file))
        reports = asyncio.create_task(_report(process))
        end = asyncio.create_task(_await_end(process))
        await asyncio.gather(*(Client(process, each).run() for each in range(plan.most_clients)))
        await end
        reports.cancel()
        await process.close()
        process.report()


if __name__ == "__main__":
    asyncio.run(main(Plan(**json.loads(sys.argv[1]))))
