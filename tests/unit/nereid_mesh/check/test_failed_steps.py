from __future__ import annotations

from typing import Any

from nereid.facts.mesh_facts import ConfigFacts
from nereid_mesh.check.failed_steps import fail_with_steps
from nereid_mesh.check.findings import CheckedModel, CheckedVersion


def ensemble(name: str, *steps: tuple[str, int], state: str = "READY") -> CheckedModel:
    config: dict[str, Any] = {
        "name": name,
        "ensemble_scheduling": {
            "step": [{"model_name": model, "model_version": number} for model, number in steps]
        },
    }
    return CheckedModel(
        name, versions=[CheckedVersion(1, state, config=ConfigFacts.of_document(config).proto)]
    )


def states(*models: CheckedModel) -> list[str]:
    return [version.state for model in models for version in model.versions]


BROKEN = CheckedModel("broken", versions=[CheckedVersion(1, "UNAVAILABLE", "a syntax error")])


def test_an_ensemble_fails_with_a_step_and_an_outer_one_with_it() -> None:
    outer, inner = ensemble("outer", ("inner", -1)), ensemble("inner", ("broken", -1))
    fail_with_steps([outer, inner, BROKEN])
    assert states(outer, inner) == ["UNAVAILABLE", "UNAVAILABLE"]
    (finding,) = inner.findings
    assert finding.message == inner.versions[0].reason
    assert finding.message == (
        "ensemble 'inner' depends on 'broken' which has no loaded version. Model 'broken' loading"
        " failed with error: version 1 is at UNAVAILABLE state: a syntax error;"
    )
    (finding,) = outer.findings
    assert "a syntax error" in finding.message


def test_an_ensemble_needs_the_versions_that_it_names() -> None:
    versions = [CheckedVersion(1, "UNAVAILABLE", "why"), CheckedVersion(2, "READY")]
    model = CheckedModel("m", versions=versions)
    latest, first, second = (ensemble(f"of{number}", ("m", number)) for number in (-1, 1, 2))
    fail_with_steps([model, latest, first, second])
    assert states(latest, first, second) == ["READY", "UNAVAILABLE", "READY"]


def test_unknown_versions_fail_no_ensemble() -> None:
    unknown = CheckedModel("u", versions=[CheckedVersion(1, "UNKNOWN")])
    of_unknown, missing = ensemble("e", ("u", -1)), ensemble("f", ("none", -1))
    unread = ensemble("g", ("broken", -1), state="UNKNOWN")
    fail_with_steps([unknown, of_unknown, missing, unread, BROKEN])
    assert states(of_unknown, missing, unread) == ["READY", "READY", "UNKNOWN"]
    assert not of_unknown.findings
