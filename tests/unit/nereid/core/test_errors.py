"""The error tree and its tables."""

import pytest

from nereid.core import errors
from nereid.core.wire.messages import ErrorStatus, error_status_of


@pytest.mark.parametrize(
    ("code", "cls", "http"),
    [
        (1, errors.Cancelled, 400),
        (2, errors.Unknown, 400),
        (3, errors.InvalidArgument, 400),
        (4, errors.DeadlineExceeded, 504),
        (5, errors.NotFound, 404),
        (6, errors.AlreadyExists, 400),
        (12, errors.Unimplemented, 501),
        (13, errors.Internal, 500),
        (14, errors.Unavailable, 503),
        (9, errors.Unknown, 400),
    ],
)
def test_codes_map_both_ways(code: int, cls: type[errors.NereidError], http: int) -> None:
    error = errors.error_from_code(code, "why", accepted=True)
    assert type(error) is cls
    assert (error.message, error.accepted) == ("why", True)
    assert errors.http_status(code) == http
    assert error_status_of(error) == ErrorStatus(cls.code, "why", accepted=True)


@pytest.mark.parametrize(
    ("error", "text"), [(ValueError(" no \n"), "no"), (MemoryError(), "MemoryError")]
)
def test_a_cause_is_never_empty(error: Exception, text: str) -> None:
    assert errors.cause_of(error) == text


def test_the_text_of_a_lost_worker_is_found_in_others() -> None:
    message = errors.worker_lost_message("m_0_0")
    assert message == "Stub process 'm_0_0' is not healthy."
    assert errors.is_worker_lost(f"in ensemble 'e', {message}")
    assert not errors.is_worker_lost("Stub process is healthy.")
