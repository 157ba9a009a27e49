"""Traces in files as Triton writes them, from a mesh of several processes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models import python_models
from tests.support.models.e2e_models import make_repository
from tests.support.scheduler.ensemble_configs import ensemble_config, save_ensemble

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
QUEUE = ["REQUEST_START", "QUEUE_START"]
HTTP = ["HTTP_RECV_START", "HTTP_RECV_END"], ["HTTP_SEND_START", "HTTP_SEND_END"]
GRPC = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"], ["GRPC_SEND_START", "GRPC_SEND_END"]
MODELS = ("doubler", "twice", "caller", "talk", "identity_fp32", "through")


@dataclass
class Part:
    """What a file has about one id, read as Triton's own summary tool reads it."""

    times: dict[str, int] = field(default_factory=dict)
    model: str = ""
    version: int = 0
    request_id: str = ""
    parent: int | None = None
    # Activity, and the elements.
    tensors: list[tuple[str, str]] = field(default_factory=list)

    def add(self, record: dict[str, Any]) -> None:
        if not self.times and not self.model and "parent_id" not in record:
            # A request is passed over unless this is the first that is said of it.
            assert record["timestamps"][0]["name"] in (HTTP[0][0], GRPC[0][0])
        if "activity" in record:
            # It is known of whom they are, and how far it has come.
            assert [*self.times][-2:] == QUEUE or self.tensors
            self.tensors.append((record["activity"], record["tensor"]["data"]))
        for moment in record.get("timestamps", ()):
            self.times[moment["name"]] = moment["ns"]
        self.model = record.get("model_name", self.model)
        self.version = record.get("model_version", self.version)
        self.request_id = record.get("request_id", self.request_id)
        self.parent = record.get("parent_id", self.parent)

    def check(self, *names: str) -> None:
        """These times are there, in this order, and no others but of the responses."""
        assert [name for name in self.times if name != "INFER_RESPONSE_COMPLETE"] == [*names]
        assert list(self.times.values()) == sorted(self.times.values())


Traces = dict[int, Part]


def read(path: Path) -> Traces:
    parts: Traces = {}
    for record in sorted(json.loads(path.read_text()), key=lambda each: each["id"]):
        parts.setdefault(record["id"], Part()).add(record)
    return parts


class Traced:
    """A mesh, and where its traces go: each to a file of its own, to begin with."""

    def __init__(self, mesh: Mesh, file: Path) -> None:
        self.mesh = mesh
        self.file = file

    def of(self, request_id: str) -> list[Part]:
        """The trace of a request: itself and what is below it, by their ids."""
        found: list[Part] = []

        def there() -> bool:
            for path in self.numbered():
                # Whole, whenever it is looked at.
                parts = read(path)
                root = parts[min(parts)]
                if root.request_id == request_id:
                    assert [*parts] == [*range(min(parts), min(parts) + len(parts))]
                    found[:] = parts.values()
                    return True
            return False

        until(there, f"the trace of {request_id}")
        first = min(read(self.file.with_name(f"{self.file.name}.0")))
        assert first == 1
        return found

    def numbered(self) -> list[Path]:
        """The files up to now, in order."""
        files = self.file.parent.glob(f"{self.file.name}.*")
        return sorted(files, key=lambda path: int(path.suffix[1:]))

    def settings(self, changes: dict[str, Any]) -> None:
        with httpclient.InferenceServerClient(self.mesh.http) as client:
            reported = client.update_trace_settings(settings=changes)
        assert reported == reported | changes

    def double(self, request_id: str = "") -> None:
        with httpclient.InferenceServerClient(self.mesh.http) as client:
            client.infer("doubler", [tensor(httpclient)], request_id=request_id)


def tensor(kind: Any, name: str = "INPUT0") -> Any:
    made = kind.InferInput(name, [1, 8], "FP32")
    made.set_data_from_numpy(np.ones((1, 8), np.float32))
    return made


def words(text: str, kind: Any = grpcclient) -> Any:
    made = kind.InferInput("COMMAND", [1], "BYTES")
    made.set_data_from_numpy(np.array([text.encode()], np.object_))
    return made


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    root = make_repository(tmp_path_factory.mktemp("repository"))
    python_models.save(root, "talk", python_models.TALK)
    python_models.save(root, "caller", python_models.CALLER % 1)
    steps = [
        ("doubler", {"INPUT0": "I"}, {"OUTPUT0": "M"}),
        ("doubler", {"INPUT0": "M"}, {"OUTPUT0": "O"}),
    ]
    ends = ["I FP32 8"], ["O FP32 8"]
    save_ensemble(root, "twice", ensemble_config(*ends, steps, "max_batch_size: 8"))
    steps = [("identity_fp32", {"INPUT0": a}, {"OUTPUT0": b}) for a, b in ("IM", "MO")]
    ends = ["I FP32 -1"], ["O FP32 -1"]
    save_ensemble(root, "through", ensemble_config(*ends, steps, "max_batch_size: 8"))
    place = tmp_path_factory.mktemp("traces")
    flags = [
        "--join=none",
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in MODELS),
        f"--trace-config=triton,file={place / 'trace.json'}",
        "--trace-config=triton,log-frequency=1",
        "--trace-config=rate=1",
        "--trace-config=level=TIMESTAMPS",
    ]
    with running(root, tmp_path_factory.mktemp("mesh") / "log", *flags) as mesh:
        yield Traced(mesh, place / "trace.json")


def test_a_request_over_http(traced: Traced) -> None:
    traced.double("over http")
    (part,) = traced.of("over http")
    received, sent = HTTP
    part.check(*received, *QUEUE, *COMPUTE, "REQUEST_END", *sent)
    assert (part.model, part.version) == ("doubler", 1)
    assert part.times["REQUEST_END"] <= part.times["INFER_RESPONSE_COMPLETE"]


def test_an_ensembles_steps_over_grpc(traced: Traced) -> None:
    with grpcclient.InferenceServerClient(traced.mesh.grpc) as client:
        client.infer("twice", [tensor(grpcclient, "I")], request_id="steps")
    root, first, second = traced.of("steps")
    received, sent = GRPC
    root.check(*received, *QUEUE, "REQUEST_END", *sent)
    for step in (first, second):
        step.check(*QUEUE, *COMPUTE, "REQUEST_END")
        assert (step.model, step.request_id) == ("doubler", "steps")
        assert step.times["REQUEST_START"] >= root.times["REQUEST_START"]
        assert step.times["REQUEST_END"] <= root.times["REQUEST_END"]
    assert first.parent == second.parent
    assert first.times["REQUEST_END"] <= second.times["REQUEST_START"]


def test_the_tensors_of_steps_and_of_what_models_ask(traced: Traced) -> None:
    traced.settings({"trace_level": ["TIMESTAMPS", "TENSORS"]})
    numbers = count()

    def shown() -> bool:
        traced.double(f"probe {next(numbers)}")
        return any("TENSOR_QUEUE_INPUT" in path.read_text() for path in traced.numbered())

    until(shown, "tensors in a file")
    large = np.full((1, 20_000), 7, np.float32)
    with grpcclient.InferenceServerClient(traced.mesh.grpc) as client:
        client.infer("twice", [tensor(grpcclient, "I")], request_id="small")
        client.infer("caller", [words("exec talk about")], request_id="asking")
        # Too large not to lie in shared memory, whose pieces serve one request after another.
        for number in range(3):
            made = grpcclient.InferInput("I", large.shape, "FP32")
            made.set_data_from_numpy(large + number)
            client.infer("through", [made], request_id=f"large {number}")

    def tensors(request_id: str) -> list[list[tuple[str, str]]]:
        return [part.tensors for part in traced.of(request_id)]

    def through(given: str, reported: str) -> list[tuple[str, str]]:
        return [("TENSOR_QUEUE_INPUT", given), ("TENSOR_BACKEND_OUTPUT", reported)]

    ones, twos, fours = (",".join(each * 8) for each in "124")
    assert tensors("small") == [through(ones, fours), through(ones, twos), through(twos, fours)]
    root, asked = tensors("asking")
    assert root[0] == ("TENSOR_QUEUE_INPUT", '"exec talk about"')
    assert asked[0] == ("TENSOR_QUEUE_INPUT", '"about"')
    assert asked[1] == root[1]
    for number in range(3):
        same = ",".join([str(7 + number)] * large.size)
        assert tensors(f"large {number}") == [through(same, same)] * 3
    traced.settings({"trace_level": ["TIMESTAMPS"]})


def test_settings_change_what_is_written_and_what_is_left_is_not_lost(traced: Traced) -> None:
    """The last test: it ends the mesh."""
    traced.settings({"trace_level": ["OFF"]})
    traced.settings({"trace_level": ["TENSORS"], "log_frequency": "2"})

    def both() -> bool:
        traced.double("pair")
        newer = traced.numbered()[before:]
        return any(path.read_text().count("TENSOR_QUEUE_INPUT") == 2 for path in newer)

    before = len(traced.numbered())
    until(both, "two traces of tensors in a file")
    records = json.loads(traced.numbered()[-1].read_text())
    ones, twos = ",".join("1" * 8), ",".join("2" * 8)
    assert [(each["activity"], each["tensor"]["data"]) for each in records] == 2 * [
        ("TENSOR_QUEUE_INPUT", ones),
        ("TENSOR_BACKEND_OUTPUT", twos),
    ]
    traced.settings({"trace_level": ["TIMESTAMPS"], "log_frequency": "0"})

    def plain() -> bool:
        traced.double("last")
        return traced.file.exists()

    until(plain, "a file without a number")
    traced.double("at the end")
    assert traced.mesh.terminate() == 0
    assert max(read(traced.file).items())[1].request_id == "at the end"
