"""Findings of `nereid check` about what the files of a configuration say."""

from __future__ import annotations

from pathlib import Path

import pytest

from nereid.core.variables import MARK
from nereid.model_config import parse_config
from nereid_mesh.check.findings import CheckedVersion
from nereid_mesh.check.written import written_findings
from nereid_scheduler.control.repository.config_files import ConfigFiles

_TRAFFIC = r"{\"weights\": {\"1\": 9, \"7\": 1}, \"by\": \"tensor:ID\"}"
_CONFIG = f"""max_batch_size: 4
input {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }}
parameters {{ key: "traffic"
  value {{ string_value: "{_TRAFFIC}" }} }}
"""
_PROFILE = ConfigFiles(profile="cpu")


def findings(root: Path, config: str) -> list[tuple[str, str]]:
    versions = [
        CheckedVersion(1, "READY", config=parse_config(config, model_name="m")),
        CheckedVersion(2, "UNAVAILABLE", "because"),
    ]
    return [(each.code, each.message) for each in written_findings(root, _PROFILE, versions)]


@pytest.mark.parametrize("overlay", [False, True])
def test_traffic_that_the_model_cannot_have(tmp_path: Path, overlay: bool) -> None:
    name = "config.cpu.pbtxt" if overlay else "config.pbtxt"
    (tmp_path / name).write_text(_CONFIG)
    assert findings(tmp_path, _CONFIG) == [
        ("traffic-mismatch", f"{name}:3: {text}")
        for text in (
            (
                "version 7 has a weight but is not served (served: 1, 2): it has to be in the"
                " repository and in version_policy"
            ),
            "version 1 has no input 'ID' (it has X): its callers are not kept together",
        )
    ]


def test_variables_that_nobody_reads(tmp_path: Path) -> None:
    text = '{0}name: "m"\nmetric_tags [ {{ key: "a" value: "x${{PLACE:-y}}" }} ]\n'
    (tmp_path / "config.pbtxt").write_text(text.format("# a comment: ${NO}\n"))
    (tmp_path / "config.cpu.pbtxt").write_text(text.format(f"{MARK}\n"))
    assert findings(tmp_path, "") == [("variables-not-read", "config.pbtxt:3: '${' stays as it is")]
    for other in ("$${PLACE}", "${}", "${not a name}", "$PLACE"):
        (tmp_path / "config.pbtxt").write_text(f'metric_tags {{ key: "a" value: "{other}" }}')
        assert findings(tmp_path, "") == []
