"""The model of the recording rules, compared with Prometheus.

Kept as a test of an oracle: the rehearsals judge the scheduler's metrics by this model.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.autoscaling.rules import Recorded, RuleWindow, increase

RULES = Path(__file__).parents[4] / "deploy/prometheus/rules/recording.yml"
MODEL = 'job="scheduler",model="{}",version="1"'


def page(**values: float) -> str:
    """Values by series, in which double underscores stand before a model or a state."""
    lines = ["# HELP nereid_instances not a sample", "nereid_executors 3", ""]
    for name, value in values.items():
        metric, model, *state = name.split("__")
        label = "device" if metric == "nereid_pending_requests" else "model"
        labels = f'{label}="{model}"' + "".join(f',state="{each}"' for each in state)
        lines.append(f"{metric}{{{labels}}} {value}")
    return "\n".join(lines)


def test_before_anything_is_loaded_only_demand_is_known() -> None:
    window = RuleWindow()
    assert window.evaluate(0) == Recorded(None, 0, None)
    window.scrape(0, page(nereid_pending_requests__cpu=2, nereid_pending_requests__gpu=1))
    assert window.evaluate(4) == Recorded(None, 3, None)


def test_the_model_that_waits_longest_and_the_busiest_count() -> None:
    window = RuleWindow()
    for step in range(6):
        window.scrape(
            15 * step,
            page(
                nv_inference_queue_duration_us__a=step * 15e6,
                nv_inference_request_success__a=step * 15,
                nv_inference_queue_duration_us__b=step * 60e6,
                nv_inference_request_success__b=step * 30,
                nereid_instances__a__busy=3,
                nereid_instances__a__free=1,
                nereid_instances__b__busy=1,
                nereid_instances__b__free=3,
                nereid_instances__gone__busy=0,
            ),
        )
    found = window.evaluate(75)
    # 240 s for 120 requests within the last minute.
    assert found.queue_time_us == pytest.approx(240e6 / 121)
    assert found == Recorded(found.queue_time_us, 1, 0.75)


def test_idle_models_wait_for_nothing() -> None:
    window = RuleWindow()
    for step in range(6):
        values = {"nv_inference_queue_duration_us__a": 9, "nv_inference_request_success__a": 9}
        window.scrape(
            15 * step, page(**values, nereid_instances__a__busy=0, nereid_instances__a__free=1)
        )
    assert window.evaluate(75) == Recorded(0, 0, 0)


def test_a_counter_that_begins_anew_has_grown_by_its_new_value() -> None:
    assert increase([(0, 100), (15, 130), (30, 20), (45, 50), (60, 50)], 60) == 80


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_prometheus_gives_the_same(tmp_path: Path) -> None:
    """Of counters that grow unevenly, are reset, and were scraped a few seconds ago."""
    chance = random.Random(7)
    queue, served, busy = [0.0], [0.0], [0.0]
    for step in range(9):
        began_anew = step == 5
        queue.append((0 if began_anew else queue[-1]) + chance.randrange(10**7))
        served.append((0 if began_anew else served[-1]) + chance.randrange(90))
        busy.append(chance.randrange(5))
    window = RuleWindow()
    series: dict[str, list[float]] = {
        f"nv_inference_queue_duration_us{{{MODEL.format('m')}}}": queue,
        f"nv_inference_request_success{{{MODEL.format('m')}}}": served,
        f'nereid_instances{{{MODEL.format("m")},state="busy"}}': busy,
        f'nereid_instances{{{MODEL.format("m")},state="free"}}': [5 - each for each in busy],
        'nereid_pending_requests{job="scheduler",device="any"}': busy,
    }
    for step in range(len(queue)):
        lines = (f"{name} {values[step]}" for name, values in series.items())
        window.scrape(15 * step, "\n".join(lines))
    found = window.evaluate(15 * (len(queue) - 1) + 4)
    inputs = "".join(
        f"      - {{series: '{name}', values: '{' '.join(map(str, values))}'}}\n"
        for name, values in series.items()
    )
    expected = (
        ("nereid:model_queue_time_us:increase1m", 'model="m"', found.queue_time_us),
        ("nereid:model_busy_ratio:avg1m", 'model="m"', found.busy_ratio),
    )
    tests = "".join(
        f"      - expr: {name}\n        eval_time: {15 * (len(queue) - 1) + 4}s\n"
        f"        exp_samples: [{{labels: '{name}{{{labels}}}', value: {value!r}}}]\n"
        for name, labels, value in expected
    )
    path = tmp_path / "tests.yml"
    # Rules are evaluated at multiples of the interval.
    rules = tmp_path / "rules.yml"
    rules.write_text(re.sub("interval: 15s", "interval: 1s", RULES.read_text()))
    path.write_text(
        f"rule_files: [{rules}]\nevaluation_interval: 1s\ntests:\n  - interval: 15s\n"
        f"    input_series:\n{inputs}    promql_expr_test:\n{tests}"
    )
    ran = subprocess.run(
        ["promtool", "test", "rules", path], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
