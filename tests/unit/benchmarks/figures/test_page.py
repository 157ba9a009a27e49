"""The page, its plots and the README's figure come from a run's samples and nothing else."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.figures import page
from benchmarks.figures.samples import Cell, Sample, Samples, document, dump
from benchmarks.page import main

ROOT = Path(__file__).parents[4]
ABOUT = {
    "date": "2026-01-02",
    "commit": "abc1234",
    "cpu": "A processor",
    "cores": 2,
    "python": "3.11.7",
    "onnxruntime": {"nereid": "1.2.3", "triton": "1.2.3"},
    "seconds": 2.0,
    "rounds": 3,
    "nereid_flags": {"nereid": "", "nereid-x": "--join all"},
}
README = "# A title\n\n<!-- benchmarks -->\nold\n<!-- /benchmarks -->\n\nThe rest.\n"


def _samples(rate: float, p99_us: float) -> list[Sample]:
    return [
        Sample(infer_per_s=rate * scale, p50_us=p99_us / 2, p99_us=p99_us, cpu_us={"server": 9.0})
        for scale in (0.9, 1.0, 1.1)
    ]


def _recorded() -> Samples:
    samples: Samples = {}
    for concurrency in (1, 64):
        for peer, rate in (("nereid", 3000.0), ("nereid-x", 3500.0), ("triton", 1000.0)):
            for protocol in ("grpc", "http"):
                cell = Cell("mlp", peer, protocol, concurrency)
                samples[cell] = _samples(rate * concurrency, 900.0 * concurrency)
        samples[Cell("mlp", "litserve", "json", concurrency)] = _samples(100.0, 5e4)
        samples[Cell("mlp", "nereid", "json", concurrency)] = _samples(250.0, 2e4)
    samples[Cell("mlp", "bare", "-", 64)] = _samples(400_000.0, 150.0)
    samples[Cell("decoupled", "nereid", "stream", 1)] = _samples(9000.0, 700.0)
    samples[Cell("decoupled", "triton", "stream", 1)] = _samples(3000.0, 700.0)
    return samples


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text(README)
    return tmp_path


@pytest.fixture
def figures(tmp_path: Path) -> Path:
    """Of one panel: drawing is what takes time."""
    path = tmp_path / "figures.json"
    cells = {cell: rounds for cell, rounds in _recorded().items() if cell.protocol == "grpc"}
    path.write_text(dump(document(cells, ABOUT)))
    return path


def test_the_page_has_rate_and_p99_of_each_server() -> None:
    text = page.page(_recorded(), ABOUT)
    columns = "| Nereid | Nereid --join all | Triton (Python backend) | LitServe |"
    assert f"| per second (p99 ms) | in flight {columns}" in text
    assert "| gRPC | 64 | 192,000 (57.6) | 224,000 (57.6) | 64,000 (57.6) | - |" in text
    assert "| HTTP, JSON | 1 | 250 (20.0) | - | - | 100 (50.0) |" in text
    assert "without a server: 400,000 at" in text
    assert "[aims](figures/benchmarks/aims.csv) 2 of\n6 were met" in text
    assert text.index("## A perceptron") < text.index("## A decoupled model")


def test_the_tables_have_every_aim_cell_and_ratio() -> None:
    tables = page.tables(_recorded(), ABOUT)
    assert set(tables) == {"aims.csv", "cells.csv", "ratios.csv"}
    triton = "Triton (Python backend)"
    assert f"mlp,gRPC,64,Nereid,{triton},rate,3.00 (3.00 to 3.00),≥ 2.50,yes" in tables["aims.csv"]
    cells = tables["cells.csv"].splitlines()
    assert "mlp,gRPC,64,Nereid,192000.0,172800.0,211200.0,28.8,57.6,0.0,9.0" in cells
    assert any(line.startswith("mlp,,batch of 64,bare loop,400000.0,") for line in cells)
    assert len(cells) == 1 + len(_recorded())
    found = tables["ratios.csv"]
    triton = "Triton (Python backend),3.50 (3.50 to 3.50)"
    assert f"mlp,gRPC,1,Nereid --join all,{triton}" in found
    assert "mlp,gRPC,64,Nereid,bare loop,0.48 (0.48 to 0.48)" in found


def test_a_variant_with_flags_is_called_by_them_and_one_of_another_tree_by_its_name() -> None:
    assert "| Nereid x |" in page.page(_recorded(), {**ABOUT, "nereid_trees": ["nereid-x"]})


@pytest.mark.slow
def test_each_model_has_a_plot_with_a_panel_for_each_protocol() -> None:
    assert set(page.plots(_recorded(), ABOUT)) == {"mlp.svg", "decoupled.svg"}
    mlp = page.panels(_recorded(), "mlp", ABOUT)
    # the bare loop has no latency to compare
    assert [(panel.title, list(panel.lines)) for panel in mlp] == [
        ("gRPC", ["Nereid", "Nereid --join all", "Triton (Python backend)"]),
        ("HTTP, binary tensors", ["Nereid", "Nereid --join all", "Triton (Python backend)"]),
        ("HTTP, JSON", ["Nereid", "LitServe"]),
    ]
    assert mlp[0].lines["Nereid"] == [(0.9, 3000.0), (57.6, 192000.0)]
    assert mlp[0].labels["Nereid"] == ["1", "64"]
    assert mlp[0].x.logarithmic
    assert not mlp[2].x.logarithmic  # 20 and 50 ms: alike
    decoupled = page.panels(_recorded(), "decoupled", ABOUT)
    assert decoupled[0].x.title == "p99 of the first response, ms"


def test_the_readme_has_the_rates_over_each_server() -> None:
    text = page.readme_figure(_recorded(), ABOUT)
    assert "| in flight | | 1 | 64 |" in text
    assert "| Triton (Python backend) | gRPC | 3.0 \N{MULTIPLICATION SIGN} |" in text
    assert "| LitServe | HTTP, JSON | 2.5 \N{MULTIPLICATION SIGN} |" in text
    assert "bare" not in text


@pytest.mark.slow
def test_the_same_figures_make_the_same_files(checkout: Path, figures: Path) -> None:
    assert main([str(figures), "--root", str(checkout)]) == 0
    readme = (checkout / "README.md").read_text()
    assert readme.startswith("# A title\n\n<!-- benchmarks -->\n**Speed.**")
    assert readme.endswith("<!-- /benchmarks -->\n\nThe rest.\n")
    # again, from what is kept
    assert main(["--root", str(checkout)]) == main(["--check", "--root", str(checkout)]) == 0
    assert (checkout / "README.md").read_text() == readme


@pytest.mark.slow
def test_what_was_changed_by_hand_or_is_not_measured_any_more_is_found_and_mended(
    checkout: Path, figures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check", "--root", str(checkout)]) == 0  # no figures yet
    docs = checkout / "docs"
    (docs / "figures").mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "figures" / "overload.json", docs / "figures")
    main([str(figures), "--root", str(checkout)])
    plots = ("docs/figures/benchmarks/mlp.svg", "docs/figures/overload.svg")
    names = ("README.md", "docs/benchmarks.md", *plots)
    kept = {checkout / name: (checkout / name).read_text() for name in names}
    for path, text in kept.items():
        path.write_text(text.replace("3", "4"))
    orphan = docs / "figures" / "benchmarks" / "other.svg"
    orphan.touch()
    capsys.readouterr()
    assert main(["--check", "--root", str(checkout)]) == 1
    found = capsys.readouterr().out
    assert all(str(path) in found for path in (*kept, orphan))
    assert main(["--root", str(checkout)]) == 0
    assert not orphan.exists()
    assert {path: path.read_text() for path in kept} == kept


@pytest.mark.parametrize(
    ("readme", "text"),
    [("no marks", None), (README, json.dumps({"format": 0}))],
    ids=["readme", "format"],
)
def test_what_cannot_be_written(
    checkout: Path, figures: Path, readme: str, text: str | None
) -> None:
    (checkout / "README.md").write_text(readme)
    figures.write_text(text or figures.read_text())
    assert main([str(figures), "--root", str(checkout)]) == 1
    assert not (checkout / "docs").exists()
