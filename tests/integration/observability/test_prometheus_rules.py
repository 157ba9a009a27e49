"""Prometheus' rules: by promtool on scripted series, and what operators need to know of each."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy/prometheus/rules"
TESTS = ROOT / "deploy/prometheus/tests"
# Files of rules by the file of their scripted series.
TESTED = {"rules.yml": ("recording.yml", "alerts.yml"), "slo.yml": ("slo.yml",)}


def rules_of(*names: str) -> list[dict[str, Any]]:
    return [
        rule
        for name in names
        for group in yaml.safe_load((RULES / name).read_text())["groups"]
        for rule in group["rules"]
    ]


ALERTS = [rule for rule in rules_of("alerts.yml", "slo.yml") if "alert" in rule]


@pytest.mark.parametrize("name", TESTED)
@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_rules_give_what_they_should_on_scripted_series(name: str) -> None:
    ran = subprocess.run(
        ["promtool", "test", "rules", TESTS / name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("name", TESTED)
def test_every_rule_has_scripted_series(name: str) -> None:
    tests = yaml.safe_load((TESTS / name).read_text())["tests"]
    fired = {
        each["alertname"] for test in tests for each in test.get("alert_rule_test", ())
        if each["exp_alerts"]
    }  # fmt: skip
    rules = rules_of(*TESTED[name])
    assert fired == {rule["alert"] for rule in rules if "alert" in rule}
    evaluated = {
        recorded
        for test in tests
        for each in test.get("promql_expr_test", ())
        for recorded in re.findall(r"nereid:\w+:\w+", each["expr"])
    }
    assert evaluated == {rule["record"] for rule in rules if "record" in rule}


def test_every_file_of_rules_is_tested() -> None:
    names = {name for names in TESTED.values() for name in names}
    assert names == {path.name for path in RULES.iterdir()}


def test_objectives_burn_by_windows_that_are_recorded() -> None:
    recorded = {rule["record"] for rule in rules_of("slo.yml") if "record" in rule}
    for rule in rules_of("slo.yml"):
        if "alert" not in rule:
            continue
        assert set(re.findall(r"nereid:\w+:\w+", rule["expr"])) <= recorded
        for pair in re.findall(r"\(([^()]+)\)", rule["expr"]):
            long, short = re.findall(r"nereid:(\w+:\w+)_?rate\w+ > ([\d.]+ \* [\d.]+)", pair)
            assert long == short, "both windows compare with one threshold"


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
