"""Fields of a request target's query."""

from __future__ import annotations

import pytest

from nereid.core.errors import InvalidArgument
from nereid_gateway.server.query import Query


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 30), ("?", 30), ("?last=", 30), ("?last=2", 2), ("?last=1.5e2", 150), ("?last=.5", None)],
)
def test_seconds(text: str, seconds: float | None) -> None:
    query = Query(b"/v2/x" + text.encode(), ("last",))
    if seconds is None:
        with pytest.raises(InvalidArgument, match="number of seconds"):
            query.seconds("last", 30, 1000)
    else:
        assert query.seconds("last", 30, 1000) == seconds


@pytest.mark.parametrize(
    "value", ["0", "-1", "inf", "nan", "1e308", "1e999", "1001", "1_0", "%D9%A3", "9" * 400, "+1"]
)
def test_seconds_that_make_no_sense(value: str) -> None:
    with pytest.raises(InvalidArgument, match="last is a number of seconds above 0"):
        Query(b"/?last=" + value.encode(), ("last",)).seconds("last", 30, 1000)


@pytest.mark.parametrize(
    ("value", "flag"), [("", False), ("force=true", True), ("force=false", False)]
)
def test_flags(value: str, flag: bool) -> None:
    assert Query(b"/?" + value.encode(), ("force",)).flag("force") is flag


@pytest.mark.parametrize("value", ["force", "force=1", "force=True", "forced=true"])
def test_flags_that_make_no_sense(value: str) -> None:
    with pytest.raises(InvalidArgument, match="force"):
        Query(b"/?" + value.encode(), ("force",)).flag("force")
