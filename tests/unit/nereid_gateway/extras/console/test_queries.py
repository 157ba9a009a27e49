"""Queries of URLs to views."""

from __future__ import annotations

import pytest

from nereid.core.errors import InvalidArgument
from nereid_gateway.extras.console.queries import View, view_of


@pytest.mark.parametrize(
    ("query", "view"),
    [
        ("", View()),
        ("?", View()),
        ("?query=Res%20Net", View(query="res net")),
        ("?offset=10&limit=200", View(offset=10, limit=200)),
        ("?limit=0", View(limit=0)),
        ("?sort=p99", View(sort="p99")),
        ("?model=m%2F&version=3", View(model="m/", version="3")),
        ("?model=m&query=x", View(model="m")),
    ],
)
def test_views(query: str, view: View) -> None:
    assert view_of(b"/console/facts" + query.encode()) == view


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("limit=201", "at most 200"),
        ("limit=-1", "limit is a number"),
        ("limit=" + "9" * 5000, "limit is a number"),
        ("limit=%D9%A3", "limit is a number"),
        ("offset=x", "offset is a number"),
        ("query=" + "a" * 201, "200 characters"),
        ("model=" + "a" * 2000, "1024 characters"),
        ("version=1", "version"),
        ("model=m&version=x", "version"),
        ("limit=1&limit=2", "once"),
        ("sort=name", "sort is one of errors, p50"),
        ("nope=<script>", "once; not 'nope'"),
        ("&".join(f"query={each}" for each in range(5000)), "too many fields"),
        ("query=%FF", "query is malformed"),
    ],
)
def test_queries_that_make_no_sense(query: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        view_of(b"/console/facts?" + query.encode())
