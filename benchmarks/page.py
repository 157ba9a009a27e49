"""Entry point ``python -m benchmarks.page``: writes docs/benchmarks.md.

The command also writes the page's tables and plots, and the README's figure. All of these are made
from the file that a run has written with --json. The file is kept beside the tables. Plots of other
pages are made from the figures that their benchmarks have recorded.
"""

import argparse
import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from benchmarks.autoscaling import plot as autoscaling_plot
from benchmarks.figures import page, samples
from benchmarks.latency_target import plot as latency_target_plot
from benchmarks.overload import plot as overload_plot
from benchmarks.simulation import plot as simulation_plot

_ROOT = Path(__file__).parents[1]
_BEGIN, _END = "<!-- benchmarks -->", "<!-- /benchmarks -->"


def rendered(root: Path, figures: Path) -> dict[Path, str]:
    """Map the path of each file that is made from the figures to its content.

    Raises:
        ValueError: the README lacks the marks between which its figure stands, or the file has
            another format or lacks the model that the page begins with.
    """
    measured, about = samples.parse(json.loads(figures.read_text()))
    folder = root / "docs" / page.FOLDER
    readme = root / "README.md"
    before, begin, rest = readme.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{readme} has no {_BEGIN} and {_END}")
    figure = page.readme_figure(measured, about)
    return {
        root / "docs" / page.PAGE: page.page(measured, about),
        readme: f"{before}{_BEGIN}\n{figure}\n{_END}{after}",
        **{folder / name: text for name, text in page.tables(measured, about).items()},
        **{folder / name: text for name, text in page.plots(measured, about).items()},
        **{folder / name: text for name, text in page.charts(measured, about).items()},
        **_other_plots(root / "docs" / page.FIGURES),
    }


def _other_plots(folder: Path) -> dict[Path, str]:
    """Return the plots of the other benchmarks, drawn from their recorded figures."""
    plots = {}
    for name, draw in (
        ("latency-target", latency_target_plot.draw),
        ("overload", overload_plot.draw),
        ("simulation", simulation_plot.draw),
    ):
        recorded = folder / f"{name}.json"
        if recorded.exists():
            plots[folder / f"{name}.svg"] = draw(json.loads(recorded.read_text()))
    recorded = folder / "autoscaling.json"
    if recorded.exists():
        for load, runs in json.loads(recorded.read_text()).items():
            plots[folder / f"autoscaling-{load}.svg"] = autoscaling_plot.draw(runs)
    return plots


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the files, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("figures", type=Path, nargs="?", help="default: those of the last time")
    parser.add_argument("--check", action="store_true", help="write nothing, report what differs")
    parser.add_argument("--root", type=Path, default=_ROOT, help="a checkout of the project")
    arguments = parser.parse_args(argv)
    kept = arguments.root / "docs" / page.FOLDER / "figures.json"
    if arguments.check:
        return _check(arguments.root, kept)
    try:
        files = rendered(arguments.root, arguments.figures or kept)
        if arguments.figures:
            files[kept] = samples.dump(json.loads(arguments.figures.read_text()))
    except (OSError, ValueError) as error:
        print(f"benchmarks.page: {error}", file=sys.stderr)
        return 1
    kept.parent.mkdir(parents=True, exist_ok=True)
    for plot in _orphans(kept, files):
        plot.unlink()
    for path, text in files.items():
        path.write_text(text)
        print(path)
    return 0


def _orphans(kept: Path, files: Collection[Path]) -> list[Path]:
    """Return plots of models that the figures lack."""
    return [plot for plot in sorted(kept.parent.glob("*.svg")) if plot not in files]


def _check(root: Path, kept: Path) -> int:
    """Check the files; without figures nothing can differ from them."""
    if not kept.exists():
        return 0
    files = rendered(root, kept)
    stale = _orphans(kept, files)
    stale += [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path} is not what the recorded figures make: make bench-page")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
