"""Models that give any number of responses, through the whole mesh: streams, events, slow clients,
cancellation, deaths.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from nereid.pb import kserve_pb2
from tests.support.mesh.large_tensors import BRIEFLY, await_no_segments, segments
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.mesh.perf_analyzer import COUNTED, analyze, needs_analyzer
from tests.support.mesh.repeats import Stream, inputs, number_of, stream
from tests.support.models import python_models

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    for name in ("repeat", "mortal", "endless"):
        python_models.save(root, "repeat", python_models.REPEAT, name)
    return root


@pytest.fixture(
    scope="module", params=["scheduler", pytest.param("none", marks=pytest.mark.nightly)]
)
def mesh(
    request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mesh]:
    log = tmp_path_factory.mktemp("mesh") / "log"
    with running(repository, log, BRIEFLY, f"--join={request.param}") as mesh:
        yield mesh


def test_large_responses_come_as_they_were_sent(mesh: Mesh) -> None:
    with stream(mesh) as one:
        one.ask("repeat", "then_end", 40, 1 << 20)
        for number in range(40):
            response = one.next()
            assert number_of(response) == number
            assert response.raw_output_contents[1] == bytes([number]) * (1 << 20)


# ---- clients that go, and that are slow


class Endless:
    """A model that sends until it is cancelled, and notes what it does."""

    def __init__(self, directory: Path) -> None:
        self._sent, self._cancelled = directory / "sent", directory / "cancelled"
        for each in (self._sent, self._cancelled):
            each.unlink(missing_ok=True)

    @property
    def sent(self) -> int:
        return self._sent.stat().st_size if self._sent.exists() else 0

    def await_rest(self) -> None:
        """Until it has not sent anything for a while."""
        last = [-1] * 25

        def rests() -> bool:
            last.append(self.sent)
            return len(set(last[-25:])) == 1 and last[-1] > 0

        until(rests, "the model to wait")

    def await_cancelled(self) -> None:
        until(self._cancelled.exists, "the model to hear that it is cancelled")


def test_large_unread_responses_leave_no_memory_behind(mesh: Mesh, repository: Path) -> None:
    endless = Endless(repository / "endless")
    one = Stream(mesh)
    one.ask("endless", "for_ever", 0, 1 << 20)
    for number in range(20):
        assert number_of(one.next()) == number
    assert segments(mesh)
    one.close(cancel=True)
    endless.await_cancelled()
    await_no_segments(mesh)


def test_a_client_that_does_not_read_holds_its_model_up(mesh: Mesh, repository: Path) -> None:
    endless = Endless(repository / "endless")
    with grpc.insecure_channel(mesh.grpc) as channel:
        call: Any = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=kserve_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=kserve_pb2.ModelStreamInferResponse.FromString,
        )
        wanted = kserve_pb2.ModelInferRequest(model_name="endless")
        for each in inputs("for_ever", 0, 10_000):
            wanted.inputs.add(name=each.name(), datatype=each.datatype(), shape=[1])
            wanted.raw_input_contents.append(each._get_content())
        replies = call(iter([wanted]), timeout=120)
        assert number_of(next(replies).infer_response) == 0
        endless.await_rest()
        sent = endless.sent
        # Windows, sockets and what the gateway bears with.
        assert sent * 10_000 < 32 << 20
        # Others are served meanwhile, on the same model.
        with stream(mesh) as other:
            other.ask("endless", "then_end", 3)
            assert [number_of(other.next()) for _ in range(3)] == [0, 1, 2]
        # More than there were while nobody read.
        for number in range(1, sent + 100):
            assert number_of(next(replies).infer_response) == number
        replies.cancel()
    endless.await_cancelled()


# ---- deaths


def test_an_executor_that_is_killed_fails_what_was_begun(mesh: Mesh) -> None:
    with stream(mesh) as one:
        one.ask("mortal", "for_ever", 0, 10)
        for number in range(3):
            assert number_of(one.next()) == number
        mesh.kill("nereid.services.executor")
        reported = one.next()
        count = 3
        while not isinstance(reported, str):
            assert number_of(reported) == count
            count += 1
            reported = one.next()
        # What never had a response runs on the executor that takes its place.
        # Two streams break, the model's and the executor's; either is noticed first.
        assert reported.startswith(
            ("instance 'mortal_0_0' of executor", "executor 'executor-0' was lost")
        )
        assert reported.endswith(f" was lost, {count} responses into the request")
        one.ask("repeat", "then_end", 1)
        assert number_of(one.next()) == 0


@needs_analyzer
def test_perf_analyzer_measures_it(mesh: Mesh, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"COUNT": [4], "SIZE": [8], "MODE": ["then_end"]}]}))
    flags = ["--async", "--streaming", f"--input-data={data}", "--concurrency-range=4", *COUNTED]
    assert "Throughput" in analyze(mesh, "grpc", "repeat", *flags)
