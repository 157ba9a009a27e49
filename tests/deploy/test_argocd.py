"""The example of an Argo CD Application: its values, rendered without a cluster at each sync."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chart.objects import named, of_kind
from tests.support.chart.rendering import CHART, RELEASE, ROOT, render


@pytest.fixture
def source() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    application = yaml.safe_load((ROOT / "deploy/argocd/application.yaml").read_text())
    return dict(application["spec"]["source"])


def test_the_chart_is_where_it_says(source: dict[str, Any]) -> None:
    yaml = pytest.importorskip("yaml")
    assert (ROOT / source["path"]).resolve() == CHART.resolve()
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert source["targetRevision"] == f"v{chart['version']}"


def test_no_sync_makes_a_secret(source: dict[str, Any]) -> None:
    helm = source["helm"]
    objects = render(helm["valuesObject"], helm["releaseName"])
    assert of_kind(objects, "Secret") == []
    scheduler = named(objects, "ServiceAccount", "nereid-scheduler")
    assert "eks.amazonaws.com/role-arn" in scheduler["metadata"]["annotations"]
    # With the chart's defaults it would.
    least = {key: helm["valuesObject"][key] for key in ("images", "modelRepository")}
    assert len(of_kind(render(least, RELEASE), "Secret")) == 2
