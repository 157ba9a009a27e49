"""The GPU data path, by the program that compares it with the CPU, on a device in host memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.gpu.__main__ import WAYS, main

if TYPE_CHECKING:
    from pathlib import Path


def test_every_way_gives_the_cpus_outputs(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    arguments = ["--fake", "--seconds", "0.01", "--rounds", "1", "--json", str(path)]
    assert main([*arguments, "--only", "mlp"]) == 0
    report = json.loads(path.read_text())
    assert [cell["way"] for cell in report["cells"]] == [way.name for way in WAYS]
    for cell in report["cells"]:
        assert cell["wrong"] == ""
        assert cell["rates"][0] > 0
    notes = {cell["way"]: cell["notes"] for cell in report["cells"]}
    assert "graphs launched" in notes["graphs"]
    assert "hits" in notes["same inputs, cache"]
    assert "0 hits" not in notes["same inputs, cache"].split()
