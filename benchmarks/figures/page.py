"""Makes a run's page, tables and plots, and the README's figure, from the run's samples.

The same samples make the same bytes. This module uses no paths except those that the page links to.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks.figures.aims import outcomes
from benchmarks.figures.bars import THEMES, Bar, Group
from benchmarks.figures.bars import draw as draw_bars
from benchmarks.figures.plot import Axis, Panel, draw
from benchmarks.figures.ratios import OURS, Ratio, is_ours, over_bare, ratios
from benchmarks.figures.samples import BARE, NO_PROTOCOL, Cell, Sample, Samples, middle

PAGE = "benchmarks.md"
# Folder of the figures that pages show, and of this page's own, both below docs/.
FIGURES = "figures"
FOLDER = f"{FIGURES}/benchmarks"
_PROTOCOLS = {
    "grpc": "gRPC",
    "http": "HTTP, binary tensors",
    "json": "HTTP, JSON",
    "stream": "gRPC streams",
    NO_PROTOCOL: "",
}
_NATIVE = "triton-native"
_PEERS = {
    OURS: "Nereid",
    _NATIVE: "Triton (C++ backend)",
    "triton": "Triton (Python backend)",
    "mlserver": "MLServer",
    "litserve": "LitServe",
    BARE: "bare loop",
}
_TIMES = "\N{MULTIPLICATION SIGN}"
# A title and what it is about.
_MODELS = {
    "mlp": (
        "A perceptron",
        """\
A 256-512-512-10 FP32 perceptron, so small that the servers are what is measured. Nereid runs
it with its ONNX Runtime backend; Triton, MLServer and LitServe by a script that calls it.""",
    ),
    "python": ("A Python model", "The same perceptron, by the same `model.py` on both servers."),
    "ensemble": (
        "An ensemble",
        """\
A Python model scales the input, the perceptron, a Python model takes the softmax. On Triton the
perceptron is a Python model as well.""",
    ),
    "decoupled": (
        "A decoupled model",
        """\
The same `model.py` on both servers sends 32 responses to each request. The rate is that of
responses; p50 and p99 are those of the time to the first one.""",
    ),
    "minilm": (
        "MiniLM",
        "The sentence encoder all-MiniLM-L6-v2 on sentences of 128 tokens, one thread.",
    ),
    "resnet50": ("ResNet-50", "Images of 224 by 224 pixels, 588 KiB each, one thread."),
}
_FIRST_MODEL = "mlp"
_CHART = "speed"
_AIMS = "aims.csv"
_CELLS = "cells.csv"
_RATIOS = "ratios.csv"
_IN_FLIGHT = "in flight"
# Ratio of an axis' largest value to its smallest one.
_ALIKE = 3


def page(samples: Samples, about: dict[str, Any]) -> str:
    """Return the page in Markdown.

    Raises:
        ValueError: the run lacks the model that the page begins with.
    """
    parts = (
        *_beginning(samples, about),
        _run(about),
        *_sections(samples, about),
        *_ending(samples, about),
    )
    return "\n".join((*parts, ""))


def tables(samples: Samples, about: dict[str, Any]) -> dict[str, str]:
    """Map file names to CSV: the aims, the medians of all cells, and the spreads of all ratios."""
    return {
        _AIMS: _csv(_aim_rows(samples, about)),
        _CELLS: _csv(_cell_rows(samples, about)),
        _RATIOS: _csv(_ratio_rows(samples, about)),
    }


def plots(samples: Samples, about: dict[str, Any]) -> dict[str, str]:
    """Map file names to SVGs of throughput against p99: one per model, with a line per peer."""
    drawn = {}
    for model in _models(samples):
        found = panels(samples, model, about)
        drawn[f"{model}.svg"] = draw(found, columns=len(found), label_title=_IN_FLIGHT)
    return drawn


def readme_figure(samples: Samples, about: dict[str, Any]) -> str:
    """Return the chart of the perceptron's rates in both themes, and ratios to a native Triton."""
    chart = f"docs/{FOLDER}/{_CHART}"
    lines = [
        "<picture>",
        f'  <source media="(prefers-color-scheme: dark)" srcset="{chart}-dark.svg">',
        f'  <img alt="{_chart_title(samples)}" src="{chart}-light.svg">',
        "</picture>",
        "",
        f"The same model (a 256-512-512-10 perceptron), {about['cores']} cores, one run, median of",
        f"{about['rounds']} rounds; [latencies, CPU, how it is measured](docs/{PAGE}).",
        f"Rates relative to {_PEERS[_NATIVE]}, also where it is the faster one:",
        "",
    ]
    found = [
        ratio for ratio in ratios(samples) if (ratio.model, ratio.theirs) == (_FIRST_MODEL, _NATIVE)
    ]
    sizes = sorted({ratio.concurrency for ratio in found})
    lines += [_line(_IN_FLIGHT, "", *sizes), _line(*("---" for _ in range(2 + len(sizes))))]
    rows: dict[tuple[str, str], dict[int, str]] = {}
    for ratio in sorted(found, key=_ratio_order):
        row = rows.setdefault((ratio.ours, ratio.protocol), {})
        row[ratio.concurrency] = f"{ratio.rate.median:.1f} {_TIMES}"
    lines += [
        _line(_peer(ours, about), _PROTOCOLS[protocol], *(row.get(size, "") for size in sizes))
        for (ours, protocol), row in rows.items()
    ]
    return "\n".join(lines)


def charts(samples: Samples, about: dict[str, Any]) -> dict[str, str]:
    """Map file names to SVGs of the perceptron's rates at the highest load, one for each theme."""
    load, groups = _highest_load(samples), []
    for protocol, spoken in _PROTOCOLS.items():
        bars = [
            Bar(_peer(cell.peer, about), middle(rounds).infer_per_s, is_ours(cell.peer))
            for cell, rounds in samples.items()
            if _is_on_chart(cell) and (cell.protocol, cell.concurrency) == (protocol, load)
        ]
        if bars:
            groups.append(Group(spoken, sorted(bars, key=lambda bar: -bar.value)))
    return {
        f"{_CHART}-{name}.svg": draw_bars(_chart_title(samples), groups, theme)
        for name, theme in THEMES.items()
    }


def _chart_title(samples: Samples) -> str:
    return f"Requests per second, {_highest_load(samples)} {_IN_FLIGHT}"


def _highest_load(samples: Samples) -> int:
    loads = [cell.concurrency for cell in samples if _is_on_chart(cell)]
    if not loads:
        raise ValueError(f"the page begins with the model {_FIRST_MODEL}, which the run lacks")
    return max(loads)


def _is_on_chart(cell: Cell) -> bool:
    return cell.model == _FIRST_MODEL and cell.peer != BARE


def _beginning(samples: Samples, about: dict[str, Any]) -> Iterator[str]:
    yield f"""\
# Benchmarks: how fast is Nereid?

<!-- Written by python -m benchmarks.page from {FOLDER}/figures.json. -->

Requests per second (p99 in ms) of a perceptron so small that the servers are what is measured, on
{about["cores"]} cores that the load generator shares. *Nereid compiled* is what images, `pip
install` where there is a compiler, and `make serve` after a minute run; *Nereid* is pure Python.
"""
    yield from _summary(samples, about)
    yield f"""
![{_chart_title(samples)}]({FOLDER}/{_CHART}-light.svg)

## Measure it yourself

```sh
make bench                                              # 13 minutes: these servers, on your machine
nereid perf -m MODEL --concurrency-range '1:64:*2'      # your model on your server
nereid perf compare triton:8000 nereid:8000 -m MODEL    # two servers in turns, with intervals
```

[Measuring a server](tools/perf.md) has the rest; [benchmarks/README.md](../benchmarks/README.md)
describes each server's settings and how it is measured.
"""


def _summary(samples: Samples, about: dict[str, Any]) -> Iterator[str]:
    """Yield a table of the perceptron at its lowest and highest load, a row for each server."""
    cells = list(filter(_is_on_chart, samples))
    highest = _highest_load(samples)
    loads = sorted({min(cell.concurrency for cell in cells), highest})
    protocols = dict.fromkeys(cell.protocol for cell in sorted(cells, key=_order))
    columns = [(protocol, load) for protocol in protocols for load in loads]
    titles = (f"{_PROTOCOLS[protocol]}, {load} {_IN_FLIGHT}" for protocol, load in columns)
    yield _line("", *titles)
    yield _line(*("---" for _ in range(1 + len(columns))))
    for peer in sorted({cell.peer for cell in cells}, key=_peer_order):
        found = [samples.get(Cell(_FIRST_MODEL, peer, *column)) for column in columns]
        yield _line(_peer(peer, about), *(_rate_and_p99(rounds) for rounds in found))
    yield from _bare_loop(samples, _FIRST_MODEL)


def _run(about: dict[str, Any]) -> str:
    runtimes = ", ".join(sorted(set(about["onnxruntime"].values())))
    return f"""\
## All figures

All servers are up, take turns within each cell, and another one leads in each round.
{about["date"]}, commit {about["commit"]}, {about["cpu"]}, {about["cores"]} cores, Python
{about["python"]}, ONNX Runtime {runtimes}; {about["rounds"]} rounds of {about["seconds"]:g} s or
more. Figures are medians over the rounds; a ratio is the median of the rounds' own ratios.

The tables here have rate and p99, the plots the same: up and left is better. p50, CPU, batch sizes
and the spread of each cell are in [{_CELLS}]({FOLDER}/{_CELLS}), all ratios with the lowest and the
highest round's in [{_RATIOS}]({FOLDER}/{_RATIOS}), every sample in
[figures.json]({FOLDER}/figures.json).
"""


def _ending(samples: Samples, about: dict[str, Any]) -> Iterator[str]:
    """Yield the table of the aims."""
    head, *rows = _aim_rows(samples, about)
    if not rows:
        return
    yield "## Aims of the project"
    yield ""
    met = sum(outcome.is_met for outcome in outcomes(samples))
    yield f"{met} of {len(rows)} were met ([{_AIMS}]({FOLDER}/{_AIMS})):"
    yield ""
    yield _line(*head)
    yield _line(*("---" for _ in head))
    for row in rows:
        yield _line(*row)
    yield ""


def _sections(samples: Samples, about: dict[str, Any]) -> Iterator[str]:
    for model in _models(samples):
        title, text = _MODELS.get(model, (model, ""))
        yield f"### {title}"
        yield ""
        yield text
        yield ""
        yield f"![rate against p99]({FOLDER}/{model}.svg)"
        yield ""
        yield from _decision_table(samples, model, about)
        yield ""


def _decision_table(samples: Samples, model: str, about: dict[str, Any]) -> Iterator[str]:
    """Yield a table with a column for each peer: its rate and its p99."""
    cells = [cell for cell in samples if cell.model == model and cell.peer != BARE]
    peers = sorted({cell.peer for cell in cells}, key=_peer_order)
    rows = dict.fromkeys((cell.protocol, cell.concurrency) for cell in sorted(cells, key=_order))
    yield _line("per second (p99 ms)", _IN_FLIGHT, *(_peer(peer, about) for peer in peers))
    yield _line(*("---" for _ in range(2 + len(peers))))
    for protocol, concurrency in rows:
        found = [samples.get(Cell(model, peer, protocol, concurrency)) for peer in peers]
        yield _line(_PROTOCOLS[protocol], concurrency, *(_rate_and_p99(rounds) for rounds in found))
    yield from _bare_loop(samples, model)


def _bare_loop(samples: Samples, model: str) -> Iterator[str]:
    """Yield a sentence on the bare loop's rate, if it was measured."""
    best = max(
        (middle(rounds).infer_per_s for cell, rounds in samples.items() if _is_bare(cell, model)),
        default=None,
    )
    if best is not None:
        yield ""
        yield f"A bare ONNX Runtime loop, without a server: {_number(best)} at its best batch size."


def _is_bare(cell: Cell, model: str) -> bool:
    return (cell.model, cell.peer) == (model, BARE)


def _rate_and_p99(rounds: Sequence[Sample] | None) -> str:
    if rounds is None:
        return "-"
    mid = middle(rounds)
    return f"{_number(mid.infer_per_s)} ({_number(mid.p99_us / 1000)})"


def _aim_rows(samples: Samples, about: dict[str, Any]) -> Iterator[Sequence[object]]:
    yield "model", "protocol", _IN_FLIGHT, "server", "over", "figure", "ratio", "aim", "met"
    for outcome in outcomes(samples):
        aim = outcome.aim
        yield (
            aim.model,
            _PROTOCOLS[aim.protocol],
            outcome.concurrency,
            _peer(aim.ours, about),
            _peer(aim.theirs, about),
            aim.figure,
            outcome.value,
            f"{aim.sign} {aim.limit:.2f}",
            "yes" if outcome.is_met else "no",
        )


def _cell_rows(samples: Samples, about: dict[str, Any]) -> Iterator[Sequence[object]]:
    yield (
        *("model", "protocol", _IN_FLIGHT, "server", "per second", "lowest", "highest"),
        *("p50 ms", "p99 ms", "batch", "CPU us per request"),
    )
    models = _models(samples)
    for cell in sorted(samples, key=lambda cell: (models.index(cell.model), _order(cell))):
        mid = middle(samples[cell])
        rates = [sample.infer_per_s for sample in samples[cell]]
        bare = cell.peer == BARE
        yield (
            cell.model,
            _PROTOCOLS[cell.protocol],
            f"batch of {cell.concurrency}" if bare else cell.concurrency,
            _peer(cell.peer, about),
            *(round(rate, 1) for rate in (mid.infer_per_s, min(rates), max(rates))),
            *(round(us / 1000, 3) for us in (mid.p50_us, mid.p99_us)),
            round(mid.batch_size, 1),
            round(sum(mid.cpu_us.values()), 1),
        )


def _ratio_rows(samples: Samples, about: dict[str, Any]) -> Iterator[Sequence[object]]:
    yield (
        *("model", "protocol", _IN_FLIGHT, "server", "over"),
        *("rate", "p50", "p99", "CPU per request"),
    )
    models = _models(samples)
    found = [*ratios(samples), *over_bare(samples)]
    for ratio in sorted(found, key=lambda ratio: (models.index(ratio.model), _ratio_order(ratio))):
        yield (
            ratio.model,
            _PROTOCOLS[ratio.protocol],
            ratio.concurrency,
            _peer(ratio.ours, about),
            _peer(ratio.theirs, about),
            *(ratio.rate, ratio.p50, ratio.p99, ratio.cpu),
        )


def _csv(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _line(*values: object) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(map(str, values))} |"


def panels(samples: Samples, model: str, about: dict[str, Any]) -> list[Panel]:
    """Return a panel for each protocol, with a line for each peer."""
    # Sorted by peer first: the legend's order.
    cells = sorted(
        (cell for cell in samples if cell.model == model and cell.peer != BARE),
        key=lambda cell: (_peer_order(cell.peer), _order(cell)),
    )
    found = []
    for protocol in [
        known for known in _PROTOCOLS if any(cell.protocol == known for cell in cells)
    ]:
        lines: dict[str, list[tuple[float, float]]] = {}
        labels: dict[str, list[str]] = {}
        for cell in cells:
            if cell.protocol == protocol:
                mid, name = middle(samples[cell]), _peer(cell.peer, about)
                lines.setdefault(name, []).append((mid.p99_us / 1000, mid.infer_per_s))
                labels.setdefault(name, []).append(str(cell.concurrency))
        streamed = protocol == "stream"
        what = "responses" if streamed else "requests"
        points = [point for line in lines.values() for point in line]
        x = _axis(
            "p99 of the first response, ms" if streamed else "p99, ms", [x for x, _ in points]
        )
        y = _axis(f"{what} per second", [y for _, y in points])
        found.append(Panel(_PROTOCOLS[protocol], x, y, lines, labels))
    return found


def _axis(title: str, values: Sequence[float]) -> Axis:
    """Return an axis; it begins at 0 where values are alike, so that this shows."""
    if max(values) < _ALIKE * min(values):
        return Axis(title, lowest=0)
    return Axis(title, logarithmic=True)


def _models(samples: Samples) -> list[str]:
    """Return the models in the order of this page, unknown ones at its end."""
    known = list(_MODELS)
    return sorted(
        {cell.model for cell in samples},
        key=lambda model: (known.index(model) if model in known else len(known), model),
    )


def _order(cell: Cell) -> tuple[int, int, tuple[int, str]]:
    return list(_PROTOCOLS).index(cell.protocol), cell.concurrency, _peer_order(cell.peer)


def _ratio_order(each: Ratio) -> tuple[tuple[int, str], tuple[int, str], int, int]:
    protocol = list(_PROTOCOLS).index(each.protocol)
    return _peer_order(each.theirs), _peer_order(each.ours), protocol, each.concurrency


def _peer_order(peer: str) -> tuple[int, str]:
    if is_ours(peer):
        return 0, peer
    return list(_PEERS).index(peer), peer


def _peer(peer: str, about: dict[str, Any]) -> str:
    if peer in _PEERS:
        return _PEERS[peer]
    if peer in about.get("nereid_trees", ()):
        return f"Nereid {peer.removeprefix(f'{OURS}-')}"
    return f"Nereid {about['nereid_flags'].get(peer, '') or peer}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
