"""What the flags of restricted APIs say; what they do is tests/service/test_gateway_guards."""

from __future__ import annotations

import pytest

from services.gateway.restrictions import CATEGORIES, Restriction, gather, parse


@pytest.mark.parametrize(
    ("text", "header", "value"),
    [
        ("health,trace:key=value", "key", "value"),
        ("health,trace:key=a=b", "key", "a=b"),
        ("health,trace:a:b=c", "a:b", "c"),
    ],
)
def test_forms(text: str, header: str, value: str) -> None:
    restriction = Restriction(header, value)
    assert parse(text) == {"health": restriction, "trace": restriction}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("health", "expected"),
        ("health:key", "expected"),
        ("health:=value", "expected"),
        ("health:key=", "expected"),
        (":key=value", "expected"),
        ("nope:key=value", "'nope' is none of health, metadata"),
        ("HEALTH:key=value", "'HEALTH' is none of"),
        ("health,health:key=value", "'health' is named twice"),
    ],
)
def test_faults(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(text)


def test_several_flags_share_no_category() -> None:
    table = gather([f"{name}:key={number}" for number, name in enumerate(CATEGORIES)])
    assert table["logging"] == Restriction("key", "8")
    with pytest.raises(ValueError, match="'trace' is restricted twice"):
        gather(["trace:a=b", "health,trace:c=d"])
