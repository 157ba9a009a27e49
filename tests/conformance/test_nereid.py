"""Every row of the protocol table against Nereid alone, on both edge engines.

The responses were recorded from the real server (`make compat-record`); `make compat` asks
it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.differences import DIFFERENCES
from tests.conformance.exchange import Server, dumped
from tests.conformance.python_repository import repository_for
from tests.conformance.row import SERVERS, load_expected
from tests.conformance.table import all_rows, groups
from tests.support.mesh.adopting import adopting
from tests.support.mesh.mesh import running

_NIGHTLY = pytest.mark.nightly
# What serves the ports; which of these it is changes nothing of the responses.
_EDGES = {
    "nereid": "--grpc-engine=nereid",
    "grpcio": "--grpc-engine=grpcio",
    "gateways": "--gateways=2",
    # With the proxy of `nereid adopt` in front, and nobody to get the copies.
    "proxy": "--grpc-engine=nereid",
}
_NOBODY = ("--to=127.0.0.1:1", "--to-grpc=127.0.0.1:1")
# One of the edges, which of SERVERS, the backend of the models that are written twice, and the
# groups to ask. Which engine serves gRPC changes nothing of HTTP.
_STARTS = (
    pytest.param(("nereid", "default", "onnxruntime", ""), id="default"),
    pytest.param(("nereid", "explicit", "onnxruntime", ""), id="explicit"),
    pytest.param(("nereid", "python", "python", ""), id="python"),
    pytest.param(("nereid", "sequences", "python", ""), id="sequences"),
    pytest.param(("nereid", "life-cycle", "python", ""), id="life-cycle"),
    pytest.param(("nereid", "drain", "python", ""), id="drain"),
    pytest.param(("grpcio", "default", "onnxruntime", "grpc/"), id="grpcio"),
    pytest.param(("nereid", "default", "python", ""), id="Python twins", marks=_NIGHTLY),
    pytest.param(("gateways", "default", "onnxruntime", ""), id="gateways", marks=_NIGHTLY),
    pytest.param(
        ("gateways", "explicit", "onnxruntime", ""), id="gateways, explicit", marks=_NIGHTLY
    ),
    *(
        pytest.param(("proxy", name, "python", ""), id=f"proxy, {name}", marks=_NIGHTLY)
        for name in ("default", "explicit", "python", "sequences", "life-cycle")
    ),
)
_DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[str, Any]]:
    return load_expected()


@pytest.fixture(scope="module", params=_STARTS)
def started(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, Server, str]]:
    """Which of SERVERS it is, where, and the prefix of the groups to ask."""
    edge, name, backend, prefix = request.param
    repository = repository_for(name, tmp_path_factory.mktemp("protocol") / "models", backend)
    # A busy machine shall not look like a miss of the cache.
    own = ("--allow-client-shm=true", "--cache-timeout-ms=5000")
    flags = (_EDGES[edge], *own, *SERVERS[name])
    log = tmp_path_factory.mktemp("mesh") / "log"
    with ExitStack() as stack:
        mesh = stack.enter_context(running(repository, log, *flags))
        server = Server(mesh.http_port, mesh.grpc_port, mesh.metrics_port, mesh.process)
        if edge == "proxy":
            proxy = stack.enter_context(adopting(mesh.http, mesh.grpc, log.parent, *_NOBODY))
            server = Server(proxy.http_port, proxy.grpc_port, mesh.metrics_port, mesh.process)
        yield name, server, prefix
        server.close()


@pytest.mark.slow
def test_nereid_responds_as_triton(
    started: tuple[str, Server, str], expected: dict[str, dict[str, Any]], subtests: pytest.Subtests
) -> None:
    name, server, prefix = started
    for group, rows in groups(name).items():
        if not group.startswith(prefix):
            continue
        with subtests.test(group):
            wrong = []
            for row in rows:
                responses = expected[row.name]
                wanted = dumped(responses.get("nereid", responses.get("triton")))
                got = dumped(row.ask(server))
                if got != wanted and not row.missing:
                    wrong.append(f"{row.name}\n  wanted {wanted}\n  got    {got}")
            assert not wrong, f"{len(wrong)} of {len(rows)} rows:\n" + "\n".join(wrong)


def test_the_table_is_recorded(expected: dict[str, dict[str, Any]]) -> None:
    assert expected.keys() == all_rows().keys()
    assert len(expected) > 300


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda each: each.title)
def test_each_difference_is_documented(difference: Any) -> None:
    assert f"**{difference.title}.**" in _DOCUMENT.read_text()
    for pattern in difference.rows:
        alone = type(difference)("", (pattern,))
        assert any(alone.covers(name) for name in all_rows()), pattern
