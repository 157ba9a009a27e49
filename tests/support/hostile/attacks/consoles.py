"""Consoles: floods of them, those that read nothing, forged origins, huge queries."""

from __future__ import annotations

from contextlib import ExitStack

from tests.support.hostile.attack import ANY, REFUSED, SERVED, Attack, Client, Target
from tests.support.hostile.attacks.control_calls import flood
from tests.support.hostile.raw_clients import HttpClient, post
from tests.support.hostile.sending import ask

# Longer than from one look of the gateway at the mesh to its next.
_OPEN_S = 1.5
# A socket that takes hardly anything.
_SMALL_BUFFER = 4096
_FORGED = "Origin: http://evil.example", "Sec-Fetch-Site: cross-site"
_OWN = "Sec-Fetch-Site: same-origin"
_LOAD = "/v2/repository/models/partial/load"


def _get(path: str) -> bytes:
    return post(path, method="GET")


def _consoles(count: int, *, reads: bool, views: int = 1) -> Client:
    """Open consoles, with so many different views, for a while; what became of the last one."""

    def client(target: Target) -> str:
        with ExitStack() as stack:
            opened = []
            for number in range(count):
                size = None if reads else _SMALL_BUFFER
                connection = HttpClient(target.http, target.source, receive_bytes=size)
                stack.callback(connection.close)
                connection.pipelined = True
                view = f"/console/stream?query={'q' * (number % views)}&limit=200"
                connection.pump(_get(view), limit_s=0.1)
                opened.append(connection)
            last = opened[-1]
            last.pump(until=lambda: False, limit_s=_OPEN_S)
            for each in opened if reads else ():
                each.pump(until=lambda: True, limit_s=0.01)
            return last.outcome

    return client


def _request(data: bytes) -> Client:
    return lambda target: ask(target, data)


ATTACKS = (
    Attack("one console", _consoles(1, reads=True), SERVED),
    Attack("more consoles than there may be", _consoles(300, reads=True), REFUSED),
    Attack("100 consoles with views of their own", _consoles(100, reads=True, views=100), SERVED),
    Attack("100 consoles that read nothing", _consoles(100, reads=False), ANY),
    Attack("4,000 facts of the console", flood(lambda _: _get("/console/facts?limit=200")), ANY),
    Attack(
        "4,000 facts of one model",
        flood(lambda _: _get("/console/facts?model=identity_fp32")),
        ANY,
        nightly=True,
    ),
    Attack("a load that another origin's page sends", _request(post(_LOAD, b"", *_FORGED))),
    Attack("a load that its own page sends", _request(post(_LOAD, b"", _OWN)), SERVED),
    Attack("60 KB of a console's query", _request(_get("/console/facts?query=" + "q" * 60_000))),
    Attack("5,000 fields of a query", _request(_get("/console/facts?" + "limit=1&" * 5000))),
    Attack(
        "a script as a model's name",
        _request(post("/v2/repository/models/<script>alert(1)<%2fscript>/load")),
    ),
)
