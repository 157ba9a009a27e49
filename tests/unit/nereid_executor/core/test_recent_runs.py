"""What an executor says about requests that it was given by a scheduler that is lost."""

from __future__ import annotations

from nereid.pb import nereid_pb2 as pb
from nereid_executor.core.recent_runs import RecentRuns


def executed(*heads: bytes) -> bytes:
    reply = pb.Executed(id=1)
    for head in heads:
        reply.responses.add(head=head)
    return reply.SerializeToString()


class Recall:
    """Asks for one request, and has the response once there is one."""

    def __init__(self, runs: RecentRuns, request_id: int) -> None:
        self.responses: list[bytes | None] = []
        runs.recall(request_id, self._on_recalled)

    def _on_recalled(self, response: pb.InferResponse | None) -> None:
        self.responses.append(None if response is None else response.head)


def test_a_request_that_runs_gets_its_response_when_it_has_run() -> None:
    runs = RecentRuns()
    runs.begin("one", [7, 8])
    assert runs.begun_ids() == [7, 8]
    recall = Recall(runs, 8)
    assert recall.responses == []
    runs.complete("one", [7, 8], executed(b"a", b"b"))
    assert recall.responses == [b"b"]
    # The response is kept.
    assert Recall(runs, 7).responses == [b"a"]
    assert Recall(runs, 9).responses == [None]


def test_a_run_that_is_given_up_has_no_response() -> None:
    runs = RecentRuns()
    runs.begin("one", [7])
    recall = Recall(runs, 7)
    runs.abandon("one")
    assert recall.responses == [None]
    assert runs.begun_ids() == []
    runs.abandon("one")


def test_several_schedulers_may_ask_for_a_request() -> None:
    runs = RecentRuns()
    runs.begin("one", [7])
    recalls = Recall(runs, 7), Recall(runs, 7)
    runs.complete("one", [7], executed(b"a"))
    assert [each.responses for each in recalls] == [[b"a"], [b"a"]]


def test_a_request_may_run_at_several_instances() -> None:
    runs = RecentRuns()
    runs.begin("one", [7])
    runs.begin("two", [7])
    recall = Recall(runs, 7)
    runs.abandon("one")
    assert recall.responses == []
    runs.complete("two", [7], executed(b"a"))
    assert recall.responses == [b"a"]


def test_what_a_lost_worker_had_completed_is_known_once_it_says_so() -> None:
    runs = RecentRuns()
    runs.begin("worker", [7])
    recall = Recall(runs, 7)
    runs.keep([5], executed(b"e"))
    assert recall.responses == []
    runs.keep([7], executed(b"g"))
    runs.abandon("worker")
    assert recall.responses == [b"g"]
    assert runs.begun_ids() == [5, 7]


def test_responses_in_shared_memory_are_lost() -> None:
    runs = RecentRuns()
    reply = pb.Executed()
    reply.responses.add().payloads.add().shared_memory.segment_name = "s"
    runs.complete("one", [7], reply.SerializeToString())
    assert Recall(runs, 7).responses == [None]


def test_partial_and_malformed_messages_hold_no_response() -> None:
    runs = RecentRuns()
    partial = pb.Executed(partial=True)
    partial.responses.add()
    for request_id, message in enumerate((partial.SerializeToString(), b"\xff", executed()), 1):
        runs.complete("one", [request_id], message)
        assert Recall(runs, request_id).responses == [None]
    runs.complete("one", [9], None)
    assert Recall(runs, 9).responses == [None]


def test_few_and_small_responses_are_kept() -> None:
    runs = RecentRuns(max_kept=2, max_kept_bytes=1000)
    for request_id in (1, 2, 3):
        runs.complete("one", [request_id], executed(b"x"))
    assert runs.begun_ids() == [2, 3]
    large = executed(b"y" * 1001)
    runs.complete("one", [4], large)
    assert runs.begun_ids() == [2, 3]
    # One that is waited for may be of any size.
    runs.begin("one", [5])
    recall = Recall(runs, 5)
    runs.complete("one", [5], large)
    assert recall.responses == [b"y" * 1001]


def test_requests_of_nobody_are_not_named() -> None:
    runs = RecentRuns()
    runs.begin("one", [0, 3, 0])
    assert runs.begun_ids() == [3]


def test_a_request_that_its_model_wants_again_has_no_response() -> None:
    runs = RecentRuns()
    runs.begin("one", [7])
    reply = pb.Executed(id=1, responses=[pb.InferResponse(rescheduled=True)])
    runs.complete("one", [7], reply.SerializeToString())
    assert Recall(runs, 7).responses == [None]
