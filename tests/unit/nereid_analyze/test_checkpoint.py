import json
from dataclasses import replace
from pathlib import Path

import pytest

from nereid_analyze.checkpoint import Checkpoint, CheckpointError, recorded
from nereid_analyze.goal import Constraint, Goal
from nereid_analyze.job import Job, job_document, parse_job, search_of
from nereid_analyze.search.trial import CandidateError, Measure, Trial, resolve
from nereid_analyze.space.space import Space
from nereid_perf.measurement import Measurement
from tests.support.simulated_server import SimulatedModel, SimulatedServer, settings_of


def _server() -> SimulatedServer:
    models = {"mlp": SimulatedModel(150, 12, most_batch=16)}
    settings = settings_of("mlp", instances=2, batches=(1, 4, 16, 64), delays=(0,))
    return SimulatedServer(models, (*settings[:1], replace(settings[1], default=4)), seed=1)


def _job(server: SimulatedServer) -> Job:
    return Job(
        title="mlp",
        models={"mlp": 1},
        configs={"mlp": {"max_batch_size": 4, "instance_group": [{"count": 1}]}},
        space=server.space,
        defaults=server.defaults,
        goal=Goal(constraints=(Constraint("perf_latency_p99", most=20),)),
        rules={"most_candidates": 5, "rounds": 1},
        texts={"mlp": "max_batch_size: 4"},
    )


class _Interrupt(Exception):
    pass


def _until(measure: Measure, number: int) -> Measure:
    left = [number]

    def limited(trial: Trial) -> Measurement:
        left[0] -= 1
        if left[0] < 0:
            raise _Interrupt
        return measure(trial)

    return limited


def test_a_job_is_what_its_document_says() -> None:
    job = _job(_server())
    assert parse_job(json.loads(json.dumps(job_document(job)))) == job


def test_a_run_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "mlp.jsonl"
    whole, server = _server(), _server()
    job = _job(server)
    expected = resolve(search_of(job), whole.measure)
    with pytest.raises(_Interrupt), Checkpoint(path, job, resume=False) as first:
        resolve(search_of(job), first.measure(_until(server.measure, 12)))
    # Killed while it wrote.
    with path.open("a") as file:
        file.write('{"candidate": [["ml')
    with Checkpoint(path, job, resume=True) as second:
        found = resolve(search_of(job), second.measure(server.measure))
    assert second.replayed == 12
    assert server.measured == whole.measured
    assert found.winner == expected.winner
    # And once more, without a server: all is there.
    again, measure = recorded(path)
    assert resolve(search_of(again), measure).winner == expected.winner


def test_failures_are_kept_as_well(tmp_path: Path) -> None:
    path = tmp_path / "mlp.jsonl"
    server = _server()
    job = _job(server)
    with Checkpoint(path, job, resume=False) as checkpoint:
        resolve(search_of(job), checkpoint.measure(server.measure))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert any(line.get("failure") == "out of memory" for line in lines)
    _, measure = recorded(path)
    result = resolve(search_of(job), measure)
    assert any(each.failure == "out of memory" for each in result.evaluations)


def test_a_checkpoint_of_another_search_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mlp.jsonl"
    job = _job(_server())
    with Checkpoint(path, job, resume=False):
        pass
    other = replace(job, seed=4, space=Space(job.space.settings[:1]), started="later")
    with (
        pytest.raises(CheckpointError, match="differs in seed, space"),
        Checkpoint(path, other, resume=True),
    ):
        pass


def test_without_resume_it_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "mlp.jsonl"
    server = _server()
    job = _job(server)
    for _ in range(2):
        with pytest.raises(_Interrupt), Checkpoint(path, job, resume=False) as checkpoint:
            resolve(search_of(job), checkpoint.measure(_until(server.measure, 3)))
        assert checkpoint.replayed == 0
    assert len(path.read_text().splitlines()) == 4


def test_a_report_of_a_search_that_did_not_end_says_so(tmp_path: Path) -> None:
    path = tmp_path / "mlp.jsonl"
    server = _server()
    job = _job(server)
    with pytest.raises(_Interrupt), Checkpoint(path, job, resume=False) as checkpoint:
        resolve(search_of(job), checkpoint.measure(_until(server.measure, 3)))
    _, measure = recorded(path)
    with pytest.raises(CheckpointError, match="ends before the search did"):
        resolve(search_of(job), measure)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "no",
        '{"schema": "nereid-analyze/9"}',
        "[" * 100_000,
        "1" * 1_000_000,
        '{"schema": ' + "[" * 100_000,
        " " * (17 << 20),
    ],
    ids=lambda text: text[:40] or "empty",
)
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mlp.jsonl"
    path.write_text(text)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        recorded(path)


def test_a_broken_line_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mlp.jsonl"
    job = _job(_server())
    line = json.dumps(job_document(job))
    for broken in ("broken", '"failure"', "[" * 100_000, "1" * 1_000_000):
        path.write_text(f"{line}\n{broken}\n{{}}\n")
        with pytest.raises(CheckpointError, match=":2: this is no trial"):
            recorded(path)
    path.write_text(f"{line}\nbroken\n{{}}\n")
    with pytest.raises(CheckpointError, match=":2: this is no trial"):
        recorded(path)


def test_a_candidate_error_reaches_the_search(tmp_path: Path) -> None:
    def fail(_trial: Trial) -> Measurement:
        raise CandidateError("no")

    job = _job(_server())
    with Checkpoint(tmp_path / "a.jsonl", job, resume=False) as checkpoint:
        result = resolve(search_of(job), checkpoint.measure(fail))
    assert {each.failure for each in result.evaluations} == {"no"}
