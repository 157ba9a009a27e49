"""Which responses of a stream the executor gets, and when."""

from collections.abc import Sequence

from nereid_executor.backends.python.direct.kept_responses import KeptResponses
from nereid_executor.core.recent_runs import MAX_KEPT_BYTES

Sent = list[tuple[Sequence[int], bytes]]


def test_a_stream_that_ends_in_good_order_leaves_nothing() -> None:
    sent: Sent = []
    kept = KeptResponses(lambda ids, executed: sent.append((ids, executed)))
    kept.add([1], b"a")
    kept.end()
    assert sent == []


def test_a_cut_streams_responses_are_the_executors() -> None:
    sent: Sent = []
    kept = KeptResponses(lambda ids, executed: sent.append((ids, executed)))
    kept.add([1], b"a")
    large = bytes(MAX_KEPT_BYTES + 1)
    kept.add([2], large)
    kept.on_stream_lost()
    assert sent == [([1], b"a")]
    # The model goes on; from now on nobody else has its responses.
    kept.add([3], large)
    kept.end()
    assert sent[1:] == [([3], large)]
    # Nothing may follow the report of the stream's end.
    kept.add([4], b"b")
    kept.on_stream_lost()
    assert len(sent) == 2
