"""What scales gateways and executors: its targets, its queries, and which values are refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.chart.objects import component, containers, of_kind
from tests.support.chart.rendering import NAMESPACE, RELEASE, ROOT, Object, ValuesError, render
from tests.support.chart.value_sets import VALUE_SETS

HPA, ZERO = "autoscaled by queue time", "scaled to zero"
RULES: Final = (ROOT / "deploy/prometheus/rules/recording.yml").read_text()


def adapter_rules() -> dict[str, str]:
    """The recording rule of each external metric."""
    yaml = pytest.importorskip("yaml")
    given = yaml.safe_load((ROOT / "deploy/prometheus/adapter.yml").read_text())
    return {
        rule["name"]["as"]: re.findall(r'"(.*)"', rule["seriesQuery"])[0]
        for rule in given["rules"]["external"]
    }


@pytest.mark.parametrize("name", VALUE_SETS)
def test_every_target_is_a_deployment_that_has_no_replicas_of_its_own(name: str) -> None:
    objects = render(VALUE_SETS[name])
    deployments = {each["metadata"]["name"]: each for each in of_kind(objects, "Deployment")}
    scaled = [
        each["spec"]["scaleTargetRef"]["name"]
        for each in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
    ]
    assert len(scaled) == len(set(scaled)) == {HPA: 2, ZERO: 3}.get(name, 0)
    for each in scaled:
        assert "replicas" not in deployments[each]["spec"]


def test_the_adapter_and_prometheus_know_what_is_asked_for() -> None:
    known = adapter_rules()
    for series in known.values():
        assert f"record: {series}\n" in RULES
    for each in of_kind(render(VALUE_SETS[HPA]), "HorizontalPodAutoscaler"):
        metrics = each["spec"]["metrics"]
        asked = [one["external"]["metric"] for one in metrics if "external" in one]
        assert {one["name"] for one in asked} <= set(known)
        # Another release of the namespace has series of the same names.
        for one in asked:
            assert one["selector"]["matchLabels"] == {"release": RELEASE}


def queries() -> list[tuple[str, dict[str, Any]]]:
    """The triggers of the class gpu, by what they ask for."""
    found = {
        each["metadata"]["name"]: each for each in of_kind(render(VALUE_SETS[ZERO]), "ScaledObject")
    }
    spec = found["demo-nereid-executor-gpu"]["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 8)
    return [(each["metadata"]["query"], each) for each in spec["triggers"]]


def test_zero_is_left_and_reached_by_what_waits() -> None:
    asked = queries()
    assert [(each["metricType"], each["metadata"]["threshold"]) for _, each in asked] == [
        ("Value", "100000"),
        ("Value", "0.7"),
        ("AverageValue", "4"),
    ]
    assert asked[-1][0] == (
        f'sum(nereid:device_demand:sum{{namespace="{NAMESPACE}",release="{RELEASE}",device=~"gpu"}})'
    )
    assert all(each["metadata"]["ignoreNullValues"] == "false" for _, each in asked)
    assert 'model=~"a\\\\.b|c"' in asked[0][0]
    # Neither gateways' readiness nor requests end while there is nobody.
    for each in containers(render(VALUE_SETS[ZERO])):
        if component(each.workload) == "gateway" and not each.is_init:
            assert each.container["readinessProbe"]["httpGet"]["path"] == "/v2/health/live"
        if component(each.workload) == "scheduler" and not each.is_init:
            assert "--no-executor-timeout-secs=600" in each.container["args"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_prometheus_understands_the_queries(tmp_path: Path) -> None:
    rules = "".join(
        f"    - record: query{index}\n      expr: {query!r}\n"
        for index, (query, _) in enumerate(queries())
    ).replace("\\\\\\\\", "\\\\")
    path = tmp_path / "rules.yml"
    path.write_text(f"groups:\n- name: queries\n  rules:\n{rules}")
    ran = subprocess.run(
        ["promtool", "check", "rules", path], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_missing_data_are_no_lack_of_load(tmp_path: Path) -> None:
    """KEDA takes 0 for no load, which removes all executors; no data leave them as they are."""
    labels = f'job="scheduler",namespace="{NAMESPACE}",release="{RELEASE}"'
    scraped = [
        {"series": f'nereid_pending_requests{{{labels},device="{device}"}}', "values": "0x8"}
        for device in ("cpu", "gpu", "any")
    ]
    others = [{"series": scraped[0]["series"].replace(RELEASE, "other"), "values": "0x8"}]
    zero = [{"labels": "{}", "value": 0}]
    tests = [
        {
            "interval": "15s",
            "input_series": series,
            "promql_expr_test": [
                {"expr": query, "eval_time": "90s", "exp_samples": samples}
                for query, _ in queries()
            ],
        }
        for series, samples in ((scraped, zero), (others, []))
    ]
    recording = ROOT / "deploy/prometheus/rules/recording.yml"
    path = tmp_path / "tests.yml"
    path.write_text(json.dumps({"rule_files": [str(recording)], "tests": tests}))
    ran = subprocess.run(
        ["promtool", "test", "rules", path], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_prometheus_that_asks_for_credentials() -> None:
    authentication = {"name": "thanos", "kind": "ClusterTriggerAuthentication", "modes": "bearer"}
    values = {
        **VALUE_SETS[ZERO],
        "autoscaling": {
            **VALUE_SETS[ZERO]["autoscaling"],
            "prometheusAuthentication": authentication,
            "prometheusMetadata": {"customHeaders": "X-Scope-OrgID=team"},
        },
    }
    for each in of_kind(render(values), "ScaledObject"):
        for trigger in each["spec"]["triggers"]:
            if trigger["type"] == "prometheus":
                assert trigger["authenticationRef"] == {
                    "name": "thanos",
                    "kind": "ClusterTriggerAuthentication",
                }
                assert trigger["metadata"]["authModes"] == "bearer"
                assert trigger["metadata"]["customHeaders"] == "X-Scope-OrgID=team"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"autoscaling": {"mode": "hpa", "executor": {"classes": {"tpu": {}}}}},
            "autoscaling.executor.classes.tpu: executor.classes has no such class",
        ),
        (
            {"autoscaling": {"mode": "hpa", "executor": {"classes": {"cpu": {"minReplicas": 0}}}}},
            "minReplicas: 0 needs autoscaling.mode: keda",
        ),
        (
            {
                "autoscaling": {
                    "mode": "hpa",
                    "executor": {"classes": {"cpu": {"minReplicas": 9}}},
                }
            },
            "maxReplicas: is less than minReplicas",
        ),
    ],
    ids=["class", "zero", "bounds"],
)
def test_values_that_contradict_each_other_are_refused(changes: Object, message: str) -> None:
    with pytest.raises(ValuesError, match=re.escape(message)):
        render({**VALUE_SETS[HPA], **changes})
