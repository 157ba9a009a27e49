"""The chart as a cluster of network namespaces: a rolling restart of everything loses nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.cluster.monitoring import DARK
from tests.support.chart.rendering import ROOT, render
from tests.support.chart.value_sets import VALUE_SETS
from tests.torment.hosts import WITH_PARENT, can_isolate

_LIMIT_S: Final = 1200
_REPLICAS: Final = {"gateway": 3, "scheduler": 2, "executor-cpu": 3, "cache": 1, "redis": 1}
# A scheduler's models move when it ends, and when it is back.
_MOVES: Final = 2 * _REPLICAS["scheduler"]
# What an error says by which a sequence has ended.
_BEGIN_AGAIN: Final = "the START flag"
_VALUES: Final = VALUE_SETS["mTLS by cert-manager"] | {
    "gateway": {"replicas": 3},
    "scheduler": {"extraArgs": ["--metrics-config=histogram_latencies=true"]},
    "executor": {"classes": {"cpu": {"replicas": 3}}},
    "monitoring": {
        "podMonitor": {"enabled": True, "interval": "2s"},
        "rules": {"enabled": True},
        "dashboards": {"enabled": True},
    },
}


def _missing() -> str | None:
    if os.geteuid():
        return "pods have users of their own, which needs root"
    tools = ("iptables-restore", "prometheus", "redis-server", "redis-cli", "chroot", "setpriv")
    for each in tools:
        if not shutil.which(each):
            return f"there is no {each}"
    return None if can_isolate() else "no namespaces can be made here"


def _restart_all(output: Path) -> dict[str, Any]:
    """What python -m tests.deploy.cluster reports."""
    (output / "objects.json").write_text(json.dumps(render(_VALUES)))
    argv = [*WITH_PARENT, sys.executable, "-m", "tests.deploy.cluster"]
    argv += [f"--objects={output}/objects.json", f"--output={output}"]
    ran = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report: dict[str, Any] = json.loads((output / "report.json").read_text())
    return report


def _may_fail(protocol: str, client: str, error: str) -> bool:
    """Whether a call may fail that succeeds when it is sent again."""
    # HTTP/1.1 has no way to say that an idle connection is about to be closed; gRPC has.
    if protocol == "http" and error.startswith("HTTPConnectionClosed:"):
        return True
    # Sequences end when their model moves to another scheduler.
    return client.endswith(" sequence") and _BEGIN_AGAIN in error


@pytest.mark.nightly
def test_a_rolling_restart_of_everything_under_load_loses_nothing(tmp_path: Path) -> None:
    if reason := _missing():
        pytest.skip(reason)
    report = _restart_all(tmp_path)
    for protocol, clients in report["clients"].items():
        assert clients["wrong"] == []
        # Each call has had its response, at the latest when it was sent again.
        assert clients["lost"] == [], protocol
        assert all(clients["calls"].values()), protocol
        assert [each for each in clients["failures"] if not _may_fail(protocol, *each)] == []
        ended = Counter(client for client, error in clients["failures"] if _BEGIN_AGAIN in error)
        assert all(count <= _MOVES for count in ended.values()), ended
    for component, replicas in _REPLICAS.items():
        pods = report["workloads"][f"demo-nereid-{component}"]
        # Those of the beginning, and those that replaced them.
        assert pods["made"] == 2 * replicas
        assert pods["complaints"] == []
        for end in pods["ends"]:
            assert end["status"] == 0, end
            assert not end["was_killed"]
    # The chart's monitors find all pods, old and new, and the dashboards have what they ask for.
    assert report["watched"]["unhealthy"] == []
    assert set(report["watched"]["empty"]) == DARK
    assert report["watched"]["fired"] == []
    # The policies were in force.
    assert report["connected"] == {
        "scheduler to cache": True,
        "executor to cache": False,
        "executor to redis": False,
        "gateway to executor": False,
    }
