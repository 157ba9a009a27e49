"""A process of clients: NVIDIA's, each sending one request after the other, with one retry: plain
requests, streams of a decoupled model, and sequences.

Its argument is a Plan as JSON. Every second it prints how many calls have succeeded, by client, and
when its input ends a Report.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

# A call that takes longer counts as failed.
_PATIENCE_S: Final = 60
_BACK_OFF_S: Final = 0.2
_PAUSE_S: Final = 0.02
# How often requests to a model have the same value.
_REPEATS: Final = {"cached": 2}
# Of a request to the decoupled model.
RESPONSES: Final = 3
_STREAM_REQUESTS: Final = 2
_SEQUENCE_LENGTH: Final = 50


@dataclass(frozen=True)
class Plan:
    """What the clients of one process do."""

    # http or grpc.
    protocol: str
    address: str
    # The model of each client, by which it is one of _KINDS or a Client.
    models: list[str]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


@dataclass
class Report:
    """What became of the calls."""

    # Successful, by client.
    calls: dict[str, int] = field(default_factory=dict)
    # (client, error) of calls that failed at first.
    failures: list[tuple[str, str]] = field(default_factory=list)
    # The same of calls that failed again.
    lost: list[tuple[str, str]] = field(default_factory=list)
    # (client, what is wrong).
    wrong: list[tuple[str, str]] = field(default_factory=list)


class Client(threading.Thread):
    """One client, with one connection."""

    def __init__(self, plan: Plan, number: int, report: Report) -> None:
        super().__init__()
        self._plan, self._model = plan, plan.models[number]
        self._name = f"{plan.protocol} {number} {self._model}"
        self._report = report
        self._number = number
        self.is_ending = False
        report.calls[self._name] = 0
        if plan.protocol == "http":
            import tritonclient.http as module  # noqa: PLC0415  (either needs a second)

            limits = {"network_timeout": _PATIENCE_S, "connection_timeout": _PATIENCE_S}
            # HTTP's timeouts are the client's.
            self._options: dict[str, float] = {}
        else:
            import tritonclient.grpc as module  # noqa: PLC0415

            limits = {}
            self._options = {"client_timeout": _PATIENCE_S}
        self._module: Any = module
        self._client: Any = module.InferenceServerClient(plan.address, **limits)

    def run(self) -> None:
        value = self._number * 1_000_000
        while not self.is_ending:
            value += 1
            self._call(float(value // _REPEATS.get(self._model, 1)))
            time.sleep(_PAUSE_S)
        self._client.close()

    def _call(self, value: float) -> None:
        for failures in (self._report.failures, self._report.lost):
            try:
                wrong = self._infer(value)
            except Exception as error:
                failures.append((self._name, f"{type(error).__name__}: {error}"[:300]))
                time.sleep(_BACK_OFF_S)
                continue
            if wrong:
                self._report.wrong.append((self._name, wrong))
            self._report.calls[self._name] += 1
            return

    def _infer(self, value: float) -> str:
        """Send a request, which fails with an exception; what is wrong with its response."""
        result = self._client.infer(self._model, [self._input(value)], **self._options)
        return _difference([_values(result)], [[value, value]])

    def _input(self, value: float) -> Any:
        tensor = self._module.InferInput("x", [1, 2], "FP32")
        tensor.set_data_from_numpy(np.full((1, 2), value, np.float32))
        return tensor


class StreamClient(Client):
    """Each call is a stream of requests to a decoupled model, of gRPC's ModelStreamInfer."""

    def _infer(self, value: float) -> str:
        seen: list[Any] = []
        self._client.start_stream(
            lambda result, error: seen.append(error or _values(result)), stream_timeout=_PATIENCE_S
        )
        for request in range(_STREAM_REQUESTS):
            self._client.async_stream_infer(self._model, [self._input(value + request)])
        # Returns once the server has ended the stream.
        self._client.stop_stream()
        for each in seen:
            if isinstance(each, Exception):
                raise each
        # As the model has it; requests have an order, their responses may alternate.
        sent = [value + request for request in range(_STREAM_REQUESTS)]
        return _difference(
            sorted(seen), sorted([each, place] for each in sent for place in range(RESPONSES))
        )


class SequenceClient(Client):
    """Each call is the next request of a sequence, or after an error the START of another one."""

    def __init__(self, plan: Plan, number: int, report: Report) -> None:
        super().__init__(plan, number, report)
        # Clients of other processes have other ids.
        self._sequence = (1 + (plan.protocol == "http") + 2 * number) * 1_000_000
        self._length, self._sum = 0, 0

    def _infer(self, value: float) -> str:
        if not self._length:
            self._sequence += 1
            self._sum = 0
        start, summand = not self._length, int(value) % 1000
        is_last = self._length == _SEQUENCE_LENGTH - 1
        length, self._length = self._length, 0
        tensor = self._module.InferInput("INPUT", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.full((1, 1), summand, np.int32))
        result = self._client.infer(
            self._model,
            [tensor],
            sequence_id=self._sequence,
            sequence_start=start,
            sequence_end=is_last,
            **self._options,
        )
        self._length = 0 if is_last else length + 1
        self._sum += summand
        return _difference([_values(result, "OUTPUT")], [[self._sum]])


def _values(result: Any, output: str = "y") -> list[float]:
    found: list[float] = result.as_numpy(output).ravel().tolist()
    return found


def _difference(received: list[list[float]], expected: list[list[float]]) -> str:
    return "" if received == expected else f"{received} instead of {expected}"


_KINDS: Final = {"stream": StreamClient, "sequence": SequenceClient}


def main(plan: Plan) -> None:
    report = Report()
    clients = [
        _KINDS.get(model, Client)(plan, number, report) for number, model in enumerate(plan.models)
    ]
    for each in clients:
        each.start()
    reader = threading.Thread(target=sys.stdin.read)
    reader.start()
    while reader.is_alive():
        print(json.dumps(report.calls), flush=True)
        reader.join(1)
    for each in clients:
        each.is_ending = True
    for each in clients:
        each.join()
    print(json.dumps(dataclasses.asdict(report)), flush=True)


if __name__ == "__main__":
    main(Plan(**json.loads(sys.argv[1])))
