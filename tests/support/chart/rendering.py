"""The chart deploy/helm/nereid, rendered by Helm's own code in this process, without a cluster."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[3]
CHART: Final = ROOT / "deploy/helm/nereid"
# Version of the chart, and so of its images.
VERSION: Final = re.findall(
    r'^appVersion: "?([^"\n]+)', (ROOT / "deploy/helm/nereid/Chart.yaml").read_text(), re.MULTILINE
)[0]
RELEASE: Final = "demo"
NAMESPACE: Final = "prod"
_MISSING: Final = "needs helm-python-sdk, Helm's code as a Python package"

Object = dict[str, Any]


class ValuesError(Exception):
    """Helm's refusal of a user's values, in its words."""


def render(
    values: Object, release: str = RELEASE, *, namespace: str = NAMESPACE, chart: Path = CHART
) -> list[Object]:
    """All objects of the release. Raises ValuesError."""
    return _objects(values, release, namespace, chart, hooks=False)


def hooks(values: Object) -> list[Object]:
    """The objects that are none of the release's: those of helm test. Raises ValuesError."""
    return _objects(values, RELEASE, NAMESPACE, CHART, hooks=True)


def notes(values: Object, release: str = RELEASE, *, namespace: str = NAMESPACE) -> str:
    """Return what Helm prints after an installation."""
    return _files(json.dumps(values), release, namespace, CHART)["nereid/templates/NOTES.txt"]


def _objects(
    values: Object, release: str, namespace: str, chart: Path, *, hooks: bool
) -> list[Object]:
    # Values are mutable, and so are the objects that a caller gets.
    found: list[Object] = json.loads(_rendered(json.dumps(values), release, namespace, chart))
    return [
        each
        for each in found
        if ("helm.sh/hook" in each["metadata"].get("annotations", {})) == hooks
    ]


@functools.cache
def _rendered(values: str, release: str, namespace: str, chart: Path) -> str:
    yaml = pytest.importorskip("yaml")
    objects = [
        each
        for path, text in sorted(_files(values, release, namespace, chart).items())
        if path.endswith(".yaml")
        for each in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if each is not None
    ]
    return json.dumps(objects)


@functools.cache
def _files(values: str, release: str, namespace: str, folder: Path) -> dict[str, str]:
    helm = pytest.importorskip("helm_python", reason=_MISSING)
    with helm.Chart.load(str(folder)) as chart:
        try:
            rendered: dict[str, str] = chart.render(
                json.loads(values), name=release, namespace=namespace
            )
        except helm.HelmError as error:
            raise ValuesError(str(error)) from error
    return rendered
