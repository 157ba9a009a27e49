"""The chart for an API server that is older than what it supports: with the API versions that the
server has, and without the fields that came later. Others get what users get.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.chart.rendering import CHART


class _Change(NamedTuple):
    """A change of the chart for servers older than the first Kubernetes that has a field."""

    since: tuple[int, int]
    # Within the chart.
    path: str
    pattern: str
    replacement: str


_CHANGES: Final = (
    _Change((1, 27), "Chart.yaml", r"(?m)^kubeVersion:.*\n", ""),
    _Change((1, 26), "templates/_pod.tpl", r"\n *unhealthyPodEvictionPolicy:.*", ""),
    _Change((1, 22), "templates/scheduler/statefulset.yaml", r"\n *minReadySeconds:.*", ""),
    _Change((1, 22), "templates/gateway/services.yaml", r"\n *loadBalancerClass:.*", ""),
    _Change((1, 21), "templates/_names.tpl", r"\nipFamilyPolicy:.*", ""),
    _Change((1, 21), "templates/_names.tpl", r"\nipFamilies:.*", ""),
    # The older versions of these APIs have the same fields.
    _Change((1, 21), "templates/_pod.tpl", "policy/v1", "policy/v1beta1"),
    *(
        _Change(
            (1, 23), f"templates/autoscaling/{name}.yaml", "autoscaling/v2", "autoscaling/v2beta2"
        )
        for name in ("executors", "gateway")
    ),
)


def chart_for(version: tuple[int, int], folder: Path) -> tuple[Path, list[str]]:
    """The chart, or a copy of it in the folder, for that version of Kubernetes; and what is not in
    it.
    """
    changes = [each for each in _CHANGES if version < each.since]
    if not changes:
        return CHART, []
    copied = folder / CHART.name
    shutil.copytree(CHART, copied)
    missing = []
    for each in changes:
        text, count = re.subn(each.pattern, each.replacement, (copied / each.path).read_text())
        assert count == 1, each
        (copied / each.path).write_text(text)
        missing.append(f"{each.path}: {each.pattern}")
    return copied, missing
