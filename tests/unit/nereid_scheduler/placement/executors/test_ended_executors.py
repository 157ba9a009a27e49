"""What models counted on executors that are gone."""

from __future__ import annotations

from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.placement.executors.ended_executors import EndedExecutors
from nereid_scheduler.placement.executors.sessions import Session
from tests.support.scheduler.world import joined


def session(process: str, counted: float | None, model: str = "m") -> Session:
    made, _ = joined(process, process=process)
    if counted is not None:
        series = [
            pb.CustomSeries(name="c", kind="counter", value=counted, model=model),
            pb.CustomSeries(name="g", kind="gauge", value=3, model=model),
        ]
        made.custom_metrics = pb.CustomMetrics(series=series)
    return made


def total(ended: EndedExecutors, *sessions: Session, models: str = "m") -> float:
    report = ended.read(set(models), sessions)
    assert all(each.kind == "counter" for each in report.series)
    return sum(each.value for each in report.series)


def test_counters_of_executors_that_left_are_kept_until_the_unload() -> None:
    ended = EndedExecutors()
    for number in range(100):
        ended.add(session(f"p{number}", 1))
    ended.add(session("without a report", None))
    ended.add(session("other", 7, "n"))
    assert total(ended, models="mn") == 107
    assert total(ended) == 100
    assert total(ended, models="") == 0
    assert total(ended) == 0


def test_a_process_that_joins_again_counts_once() -> None:
    ended = EndedExecutors()
    ended.add(session("p", 5))
    # It has not reported yet.
    assert total(ended, session("p", None)) == 5
    assert total(ended, session("p", 6)) == 0
    ended.add(session("p", 6))
    assert total(ended) == 6
