"""A process of clients: NVIDIA's, each sending one request after the other, with one retry.

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


@dataclass(frozen=True)
class Plan:
    """What the clients of one process do."""

    # http or grpc.
    protocol: str
    address: str
    # The model of each client.
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

    def run(self) -> None:
        if self._plan.protocol == "http":
            import tritonclient.http as module  # noqa: PLC0415  (either needs a second)

            client = module.InferenceServerClient(
                self._plan.address, network_timeout=_PATIENCE_S, connection_timeout=_PATIENCE_S
            )
        else:
            import tritonclient.grpc as module  # noqa: PLC0415

            client = module.InferenceServerClient(self._plan.address)
        value = self._number * 1_000_000
        while not self.is_ending:
            value += 1
            self._call(module, client, float(value // _REPEATS.get(self._model, 1)))
            time.sleep(_PAUSE_S)
        client.close()

    def _call(self, module: Any, client: Any, value: float) -> None:
        for failures in (self._report.failures, self._report.lost):
            try:
                received = self._infer(module, client, value)
            except Exception as error:
                failures.append((self._name, f"{type(error).__name__}: {error}"[:300]))
                time.sleep(_BACK_OFF_S)
                continue
            if received != [value, value]:
                self._report.wrong.append((self._name, f"{received} instead of {value}"))
            self._report.calls[self._name] += 1
            return

    def _infer(self, module: Any, client: Any, value: float) -> list[float]:
        tensor = module.InferInput("x", [1, 2], "FP32")
        tensor.set_data_from_numpy(np.full((1, 2), value, np.float32))
        # HTTP's timeouts are the client's.
        options = {"client_timeout": _PATIENCE_S} if self._plan.protocol == "grpc" else {}
        found: list[float] = (
            client.infer(self._model, [tensor], **options).as_numpy("y").ravel().tolist()
        )
        return found


def main(plan: Plan) -> None:
    report = Report()
    clients = [Client(plan, number, report) for number in range(len(plan.models))]
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
