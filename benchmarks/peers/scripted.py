"""Common parts of MLServer and LitServe. Both run our scripts, which count executions."""

import struct
from collections.abc import Callable
from pathlib import Path

from benchmarks.models.workload import Workload
from benchmarks.wire import Counts

SCRIPTS = Path(__file__).with_name("scripts")
# Both wait for a batch to fill, and batch not at all (or poll without a pause) at 0.
BATCH_WAIT_S = 0.001
_COUNTS = struct.Struct("<QQ")


def environment(workload: Workload, counts: Path) -> dict[str, str]:
    """Return the environment variables for the scripts."""
    counts.parent.mkdir(parents=True, exist_ok=True)
    counts.write_bytes(bytes(_COUNTS.size))
    return {
        "PYTHONPATH": str(SCRIPTS),
        "NEREID_BENCH_GRAPH": str(workload.graph),
        "NEREID_BENCH_OUTPUTS": ",".join(workload.expected),
        "NEREID_BENCH_COUNTS": str(counts),
    }


def counter(path: Path) -> Callable[[], Counts]:
    """Return a function that reads the counts of the scripts."""

    def counts() -> Counts:
        rows, executions = _COUNTS.unpack(path.read_bytes())
        return Counts(success=rows, fail=0, executions=executions)

    return counts
