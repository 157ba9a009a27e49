"""One repository in several places: a profile's overlays, and variables of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
import tritonclient.http as http_client

from nereid_explain import command as explain
from nereid_mesh.check import command as check
from tests.support.mesh.mesh import running
from tests.support.models.e2e_models import save_scaler
from tests.support.models.scaler import scaled

pytestmark = pytest.mark.slow

BASE = """# nereid: variables
max_batch_size: 16
dynamic_batching { }
metric_tags { key: "place" value: "${NEREID_TEST_PLACE:-nowhere}" }
"""
LAPTOP = "max_batch_size: 2"
EDGE = """max_batch_size: 4
instance_group { count: 1 kind: KIND_CPU }
"""


@pytest.mark.parametrize(
    ("profile", "place", "batch_size", "source"),
    [
        ("", "", 16, "config.pbtxt:2"),
        ("laptop", "here", 2, "config.laptop.pbtxt:1"),
        ("edge", "", 4, "config.edge.pbtxt:1"),
    ],
)
def test_a_profile(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    profile: str,
    place: str,
    batch_size: int,
    source: str,
) -> None:
    save_scaler(tmp_path / "models", "scaler", 3, BASE)
    (tmp_path / "models" / "scaler" / "config.laptop.pbtxt").write_text(LAPTOP)
    (tmp_path / "models" / "scaler" / "config.edge.pbtxt").write_text(EDGE)
    if place:
        monkeypatch.setenv("NEREID_TEST_PLACE", place)
    flags = ["--model-config-env=NEREID_TEST_*", f"--model-config-profile={profile}"]
    assert check.main([str(tmp_path / "models"), *flags]) == 0
    checked = capsys.readouterr().out
    assert f"max_batch_size {batch_size}, " in checked
    assert f"  max_batch_size: {source}\n" in checked
    with running(tmp_path / "models", tmp_path / "log", *flags) as mesh:
        assert scaled(mesh, 2) == 6
        with http_client.InferenceServerClient(mesh.http) as client:
            config = client.get_model_config("scaler")
        assert config["max_batch_size"] == batch_size
        assert config["metric_tags"] == {"place": place or "nowhere"}
        assert "sources" not in config
        metrics = f"--metrics-url=http://127.0.0.1:{mesh.metrics_port}/metrics"
        explain.main(["scaler", f"--url={mesh.http}", metrics])
        file, _, line = source.rpartition(":")
        said = " ".join(capsys.readouterr().out.split())
        assert f"{file} says" in said
        assert f"max_batch_size (line {line})" in said


def test_a_profile_that_no_model_has_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_scaler(tmp_path, "scaler", 3, BASE)
    flags = [str(tmp_path), "--model-config-env=NEREID_TEST_*", "--model-config-profile=edge"]
    assert check.main(flags) == 0
    assert "no model's directory has 'config.edge.pbtxt'" in capsys.readouterr().out
    # It is there, whatever it says.
    (tmp_path / "scaler" / "config.edge.pbtxt").write_text("instance_group: - kind: KIND_CPU\n")
    assert check.main(flags) == 1
    text = capsys.readouterr().out
    assert "config.edge.pbtxt:1:17: " in text
    assert "no model's directory has" not in text
