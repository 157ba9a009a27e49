"""What the release's workflow may do, and that it publishes nothing unsigned."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

import pytest
import yaml

from scripts.release import ROOT
from scripts.sbom import NAMES

WORKFLOWS: Final = ROOT / ".github/workflows"
RELEASE: Final = yaml.safe_load((WORKFLOWS / "release.yml").read_text())
JOBS: Final[dict[str, dict[str, Any]]] = RELEASE["jobs"]
# PyYAML reads the key `on` as true.
TRIGGERS: Final[dict[str, Any]] = RELEASE[True]
# GitHub's tags are a major version's newest; cibuildwheel has such tags for minor versions alone.
PINNED: Final = re.compile(r"[\w.-]+/[\w.-]+@(v\d+(\.\d+){0,2}|[0-9a-f]{40})|\./\.github/.+")
PUBLISHES: Final = "needs.check.outputs.publish == 'true'"
SIGNING: Final = {"id-token": "write", "attestations": "write"}


def steps(job: str) -> list[dict[str, Any]]:
    return list(JOBS[job].get("steps", ()))


def position(job: str, text: str) -> int:
    """Of the first step that uses, or runs, this; fails without one."""
    return next(
        number
        for number, step in enumerate(steps(job))
        if text in step.get("uses", "") or text in step.get("run", "")
    )


def test_a_tag_starts_it_and_by_hand_it_is_a_dry_run() -> None:
    assert TRIGGERS["push"] == {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}
    assert set(TRIGGERS) == {"push", "workflow_dispatch"}
    assert TRIGGERS["workflow_dispatch"]["inputs"]["dry_run"]["default"] is True
    publish = JOBS["check"]["outputs"]["publish"]
    assert publish == "${{ github.ref_type == 'tag' && !inputs.dry_run }}"
    assert not RELEASE["concurrency"]["cancel-in-progress"]


def test_each_job_has_the_permissions_that_it_needs() -> None:
    assert RELEASE["permissions"] == {"contents": "read"}
    given = {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job}
    assert given == {
        "test": {"contents": "read"},
        "images": {"contents": "read", "packages": "write", **SIGNING},
        "chart": {"contents": "read", "packages": "write", **SIGNING},
        "files": {"contents": "write", **SIGNING},
        "index": {"id-token": "write"},
    }


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.stem)
def test_actions_are_pinned_and_scripts_get_their_inputs_by_the_environment(path: Any) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        for step in [job, *job.get("steps", ())]:
            assert PINNED.fullmatch(step.get("uses", "a/b@v1")), (name, step)
            assert "${{" not in step.get("run", ""), (name, step)


def test_a_dry_run_publishes_nothing() -> None:
    for name in ("chart", "files", "index"):
        assert JOBS[name]["if"] == PUBLISHES
    for step in steps("images"):
        used = step.get("uses", "")
        if "build-push-action" in used:
            assert step["with"]["push"] == f"${{{{ {PUBLISHES} }}}}"
        elif re.search("login|attest|cosign", used) or "cosign" in step.get("run", ""):
            assert step["if"] == PUBLISHES
    others = "".join(str(steps(name)) for name in ("check", "packages", "wheels", "sbom"))
    assert not re.search("push|publish|cosign|release create|login", others)


def test_only_what_was_tested_is_published() -> None:
    assert JOBS["test"]["uses"] == "./.github/workflows/ci.yml"
    assert "workflow_call" in yaml.safe_load((WORKFLOWS / "ci.yml").read_text())[True]
    assert {"check", "test"} <= set(JOBS["images"]["needs"])
    assert "images" in JOBS["chart"]["needs"]
    assert {"test", "wheels", "packages", "sbom", "chart"} <= set(JOBS["files"]["needs"])
    assert "files" in JOBS["index"]["needs"]


def test_images_are_attested_and_signed_by_digest() -> None:
    built = position("images", "docker/build-push-action")
    build = steps("images")[built]["with"]
    assert (build["provenance"], build["sbom"]) == ("mode=max", True)
    attested = steps("images")[position("images", "attest-build-provenance")]
    assert attested["with"]["subject-digest"] == "${{ steps.build.outputs.digest }}"
    assert attested["with"]["push-to-registry"] is True
    signed = position("images", "cosign sign --yes")
    assert built < signed
    script = steps("images")[signed]["run"]
    assert '"$IMAGE@$DIGEST"' in script
    assert "cosign attest --yes --type cyclonedx" in script


def test_the_chart_is_attested_and_signed_by_digest() -> None:
    pushed = position("chart", "helm push")
    assert pushed < position("chart", "attest-build-provenance")
    assert pushed < position("chart", "cosign sign --yes")


def test_files_are_attested_and_signed_before_they_are_published() -> None:
    published = position("files", "gh release create")
    assert position("files", "release.py sums") < position("files", "attest-build-provenance")
    assert position("files", "attest-build-provenance") < published
    assert position("files", "cosign sign-blob") < published
    assert steps("index")[-1]["with"] == {"attestations": True}
    gathered = steps("files")[position("files", "download-artifact")]["with"]["pattern"]
    uploads = [
        step["with"]["name"]
        for name in ("packages", "wheels", "sbom")
        for step in steps(name)
        if "upload-artifact" in step.get("uses", "")
    ]
    assert gathered == "dist-*"
    assert all(name.startswith("dist-") for name in uploads)
    assert len(uploads) == 4


def test_each_image_is_a_target_with_a_bill_of_materials() -> None:
    targets = re.findall(r" AS ([\w-]+)$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    matrix = JOBS["images"]["strategy"]["matrix"]["include"]
    for each in matrix:
        assert each["target"] in targets
        assert each["requirements"] in NAMES
        both = "linux/amd64" if each["image"].endswith("-gpu") else "linux/amd64,linux/arm64"
        assert each["platforms"] == both
    images = {each["image"] for each in matrix}
    assert images >= {"gateway", "scheduler", "cache", "executor", "executor-gpu"}
    assert images >= {"serve", "serve-gpu"}


def test_compiled_wheels_are_for_the_pythons_that_are_tested() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert settings["environment"] == {"NEREID_COMPILE": "1"}
    ci = yaml.safe_load((WORKFLOWS / "ci.yml").read_text())["jobs"]
    for python in ci["test"]["strategy"]["matrix"]["python"]:
        assert f"cp{python.replace('.', '')}-manylinux_*" in settings["build"]
    assert "(compiled)" in settings["test-command"]
