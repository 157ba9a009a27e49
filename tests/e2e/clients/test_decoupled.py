"""Models that give any number of responses, through the whole mesh: streams, events, slow clients,
cancellation, deaths.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.mesh.large_tensors import BRIEFLY, await_no_segments, segments
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.mesh.perf_analyzer import COUNTED, analyze, needs_analyzer
from tests.support.mesh.repeats import Stream, number_of, stream
from tests.support.models import python_models

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    for name in ("repeat", "endless"):
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
            assert response.raw_output_contents[1] == bytes([number, 0]) * (1 << 19)


# ---- clients that go, and that are slow


class Endless:
    """A model that sends until it is cancelled, and notes what it does."""

    def __init__(self, directory: Path) -> None:
        self._sent, self._cancelled = directory / "sent", directory / "cancelled"
        for each in (self._sent, self._cancelled):
            each.unlink(missing_ok=True)

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


# ---- deaths


@needs_analyzer
def test_perf_analyzer_measures_it(mesh: Mesh, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"COUNT": [4], "SIZE": [8], "MODE": ["then_end"]}]}))
    flags = ["--async", "--streaming", f"--input-data={data}", "--concurrency-range=4", *COUNTED]
    assert "Throughput" in analyze(mesh, "grpc", "repeat", *flags)
