"""Records tests/conformance/expected anew: the real server's responses to every row.

Rows that differ on purpose get Nereid's response as well. Says which rows differ without a reason,
and which have a reason but do not differ.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import triton as environment
from tests.conformance.exchange import Server, dumped
from tests.conformance.python_repository import repository_for
from tests.conformance.row import EXPECTED, SERVERS, Row, load_expected, save_expected
from tests.conformance.table import groups
from tests.conformance.triton import triton
from tests.support.mesh.mesh import running

# Clients' shared memory is on in this Triton unless refused; a busy machine shall not look like a
# miss of the cache.
NEREID_FLAGS: Final = ("--allow-client-shm=true", "--cache-timeout-ms=5000")


def record(servers: list[str]) -> int:
    environment.ensure_venv(triton.VENV)
    expected = {}
    if EXPECTED.exists() and set(servers) != set(SERVERS):
        expected = load_expected()
    odd = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for server in servers:
            python = repository_for(server, work / f"{server}-python", "python")
            onnx = repository_for(server, work / f"{server}-onnx", "onnxruntime")
            flags = SERVERS[server]
            with (
                triton.running(python, work / "triton.log", *flags) as real,
                running(onnx, work / "nereid.log", *flags, *NEREID_FLAGS) as mesh,
            ):
                ours = Server(mesh.http_port, mesh.grpc_port, mesh.metrics_port, mesh.process)
                rows = [row for group in groups(server).values() for row in group]
                for name in [name for name in expected if name in {row.name for row in rows}]:
                    del expected[name]
                for row in rows:
                    expected[row.name], complaint = _responses(row, real, ours)
                    odd += [complaint] if complaint else []
    save_expected(expected)
    print(f"{len(expected)} rows")
    print("\n".join(odd))
    return 1 if odd else 0


def _responses(row: Row, real: triton.Triton, ours: Server) -> tuple[dict[str, Any], str]:
    mine = row.ask(ours)
    if row.differs is not None and not row.differs.ask:
        return {"nereid": mine}, ""
    theirs = real.ask(row)
    if row.differs is not None:
        stale = dumped(mine) == dumped(theirs)
        found = {"triton": theirs, "nereid": mine}
        return found, f"{row.name}: does not differ" if stale else ""
    if dumped(mine) == dumped(theirs) or row.missing:
        return {"triton": theirs}, ""
    return {"triton": theirs}, f"{row.name}\n  Triton {dumped(theirs)}\n  Nereid {dumped(mine)}"


if __name__ == "__main__":
    sys.exit(record(sys.argv[1:] or list(SERVERS)))
