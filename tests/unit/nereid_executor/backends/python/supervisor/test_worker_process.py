"""The environment of a Python model's worker."""

from __future__ import annotations

import os

from nereid_executor.backends.python.supervisor.worker_process import worker_environ

CORES = len(os.sched_getaffinity(0))


def test_numerical_libraries_get_as_many_threads_as_the_instance_has_cores() -> None:
    if CORES > 1:
        assert worker_environ({"A": "b"}, 1) == {"A": "b", "OMP_NUM_THREADS": "1"}
        assert worker_environ({"OMP_NUM_THREADS": "7"}, 1) == {"OMP_NUM_THREADS": "7"}
    # They would take no more by themselves, or nobody knows.
    assert worker_environ({}, CORES) == {}
    assert worker_environ({}, 0) == {}
