"""Prometheus' rules: by promtool on scripted series, and what operators need to know of each."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy/prometheus/rules"
TESTS = ROOT / "deploy/prometheus/tests/rules.yml"
ALERTS = [
    rule
    for group in yaml.safe_load((RULES / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
RECORDED = [
    rule
    for group in yaml.safe_load((RULES / "recording.yml").read_text())["groups"]
    for rule in group["rules"]
]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_rules_give_what_they_should_on_scripted_series() -> None:
    ran = subprocess.run(
        ["promtool", "test", "rules", TESTS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_rule_has_scripted_series() -> None:
    tests = yaml.safe_load(TESTS.read_text())["tests"]
    fired = {
        each["alertname"] for test in tests for each in test.get("alert_rule_test", ())
        if each["exp_alerts"]
    }  # fmt: skip
    assert fired == {rule["alert"] for rule in ALERTS}
    evaluated = {each["expr"] for test in tests for each in test.get("promql_expr_test", ())}
    assert evaluated == {rule["record"] for rule in RECORDED}


def test_every_alert_leads_to_its_section_of_the_runbook() -> None:
    sections = re.findall(
        r"^## (\w+)$", (ROOT / "docs/operators/runbook.md").read_text(), re.MULTILINE
    )
    assert sections == [rule["alert"] for rule in ALERTS]
    for rule in ALERTS:
        assert rule["annotations"]["runbook"] == (
            f"docs/operators/runbook.md#{rule['alert'].lower()}"
        )
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in {"critical", "warning"}
