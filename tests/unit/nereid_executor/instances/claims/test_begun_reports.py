"""What schedulers learn before anything is granted to them."""

from __future__ import annotations

from nereid_executor.core.recent_runs import RecentRuns
from nereid_executor.instances.claims.begun_reports import BegunReport, BegunReports
from nereid_executor.instances.claims.model_claims import Grant


def test_what_has_begun_is_known_before_anything_is_granted() -> None:
    runs = RecentRuns()
    reports = BegunReports(runs.begun_ids)
    reports.session_joined("live", ())
    reports.session_ending("lost")
    reports.session_ending("other")
    runs.begin("a", [12])
    # Its instance has finished, but others have not said yet what they have run.
    assert reports.grant([Grant("live", 1)]) == []
    assert reports.session_ended("lost") == [BegunReport("live", [12])]
    runs.keep([13], b"")
    assert reports.session_ended("other") == [BegunReport("live", [13]), Grant("live", 1)]
    # One that finishes after that.
    runs.keep([14], b"")
    assert reports.grant([Grant("live", 2)]) == [BegunReport("live", [14]), Grant("live", 2)]
    assert reports.grant([]) == []


def test_the_end_of_a_session_is_reported_though_nothing_had_begun() -> None:
    reports = BegunReports(list)
    reports.session_joined("one", ())
    reports.session_joined("two", ())
    reports.session_ending("two")
    assert reports.session_ended("two") == [BegunReport("one", [])]


def test_what_a_hello_named_is_not_repeated() -> None:
    reports = BegunReports(lambda: [1, 2])
    reports.session_joined("one", [1])
    assert reports.grant([Grant("one", 7)]) == [BegunReport("one", [2]), Grant("one", 7)]
    assert reports.grant([Grant("one", 8)]) == [Grant("one", 8)]


def test_without_a_session_nothing_is_reported() -> None:
    reports = BegunReports(lambda: [1])
    reports.session_ending("lost")
    assert reports.session_ended("lost") == []


def test_what_was_begun_for_a_lost_scheduler_is_reported_once_its_sessions_have_ended() -> None:
    runs = RecentRuns()
    reports = BegunReports(runs.begun_ids)
    reports.session_joined("live", ())
    reports.session_joined("old", ())
    reports.session_commanded("old", "lost")
    reports.session_ending("old")
    # It is back, before it is lost again.
    reports.session_joined("new", ())
    reports.session_commanded("new", "lost")
    assert reports.session_asks("live", 5, "lost") == []
    assert reports.session_ended("old") == [BegunReport("live", []), BegunReport("new", [])]
    runs.begin("a", [12])
    reports.session_disconnected("new")
    reports.session_ending("new")
    ended = [BegunReport("live", [12]), BegunReport("live", [], 5)]
    assert reports.session_ended("new") == ended
    runs.begin("b", [13])
    assert reports.session_asks("live", 6, "lost") == [BegunReport("live", [13], 6)]


def test_who_has_left_gets_no_reply() -> None:
    reports = BegunReports(list)
    reports.session_joined("one", ())
    reports.session_joined("two", ())
    reports.session_commanded("two", "lost")
    reports.session_asks("one", 5, "lost")
    reports.session_disconnected("one")
    reports.session_ending("two")
    assert reports.session_ended("two") == []
