"""The systemd unit, and the configuration file beside it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nereid_mesh.serve.planning import plan_mesh
from nereid_mesh.serve.settings import ServeSettings

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNIT = (FOLDER / "nereid.service").read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "nereid.service"
    unit.write_text(UNIT.replace("/opt/nereid/bin/nereid", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    # systemd of a later version may want more; what it does not know is a line of this unit.
    assert str(unit) not in done.stderr
    assert "nereid.service" not in done.stderr


def test_the_configuration_is_one_of_nereid_serve(tmp_path: Path) -> None:
    given = (FOLDER / "nereid.toml").read_text()
    file = tmp_path / "nereid.toml"
    file.write_text(given.replace("/srv/models", str(tmp_path)).replace("/var/lib", str(tmp_path)))
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    planned = plan_mesh(str(tmp_path), [f"--config={file}", "--gpus=none", *ports])
    argv = planned.children[0].argv
    assert f"--model-repository={tmp_path}" in argv
    assert f"--state-directory={tmp_path}/nereid" in argv


def test_systemd_waits_for_the_drain() -> None:
    stop = re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert stop
    assert int(stop[1]) > ServeSettings.exit_timeout_secs + 2
