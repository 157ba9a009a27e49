"""The page of all figures, its plots, and the README's figure, from one run's samples.

The same samples make the same bytes. Knows no paths but those that the page links to.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.figures.aims import outcomes
from benchmarks.figures.plot import Axis, Panel, draw
from benchmarks.figures.ratios import OURS, Ratio, is_ours, over_bare, ratios
from benchmarks.figures.samples import BARE, NO_PROTOCOL, Cell, Samples, middle

FOLDER = "benchmarks"
_PROTOCOLS = {
    "grpc": "gRPC",
    "http": "HTTP, binary tensors",
    "json": "HTTP, JSON",
    "stream": "gRPC streams",
    NO_PROTOCOL: "",
}
_PEERS = {
    OURS: "Nereid",
    "triton": "Triton (Python backend)",
    "mlserver": "MLServer",
    "litserve": "LitServe",
    BARE: "bare loop",
}
# A title and what it is about.
_TIMES = "\N{MULTIPLICATION SIGN}"
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
_TABLE = """\
| protocol | in flight | server | per second | lowest to highest | p50 ms | p99 ms | batch \
| CPU µs per request |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""
_RATIOS = """\
| ratio | protocol | in flight | rate | p50 | p99 | CPU per request |
| --- | --- | --- | --- | --- | --- | --- |"""
_AIMS = """\
| model | protocol | in flight | | figure | ratio | aim | |
| --- | --- | --- | --- | --- | --- | --- | --- |"""


def page(samples: Samples, about: dict[str, Any]) -> str:
    """The page in Markdown."""
    return "\n".join((*_beginning(about), *_aims(samples, about), *_sections(samples, about), ""))


def plots(samples: Samples, about: dict[str, Any]) -> dict[str, str]:
    """An SVG of each model by its file's name: throughput against p99, a line for each peer."""
    return {f"{model}.svg": _plot(samples, model, about) for model in _models(samples)}


def readme_figure(samples: Samples, about: dict[str, Any]) -> str:
    """Rates over the other servers, of the model that the others' users would run."""
    found = [
        each
        for each in ratios(samples)
        if (each.model, each.ours) == ("mlp", OURS) and each.protocol in ("grpc", "http", "json")
    ]
    sizes = sorted({each.concurrency for each in found})
    lines = [
        "**Speed.** Requests per second relative to other servers, same model (256-512-512-10 MLP)",
        f"and {about['cores']} cores, same run, median of {about['rounds']} rounds;",
        f"[models, latencies, CPU and how it is measured](docs/{FOLDER}.md).",
        "",
        f"| in flight | | {' | '.join(map(str, sizes))} |",
        f"| --- | --- |{' --- |' * len(sizes)}",
    ]
    # a row for each server and protocol, in the order of the page
    for theirs in (name for name in _PEERS if not is_ours(name)):
        for protocol, spoken in _PROTOCOLS.items():
            row = {
                each.concurrency: f"{each.rate.median:.1f} {_TIMES}"
                for each in found
                if (each.theirs, each.protocol) == (theirs, protocol)
            }
            if row:
                cells = " | ".join(row.get(size, "") for size in sizes)
                lines.append(f"| {_PEERS[theirs]} | {spoken} | {cells} |")
    return "\n".join(lines)


def _beginning(about: dict[str, Any]) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield f"<!-- Written by python -m benchmarks.page from {FOLDER}/figures.json. -->"
    yield ""
    yield """\
Nereid beside what a user would pick instead, on one machine, in one run: all servers are up, take
turns within each cell, and another one leads in each round. Each server's settings and how it is
measured are described in [benchmarks/README.md](../benchmarks/README.md)."""
    yield ""
    runtimes = ", ".join(sorted(set(about["onnxruntime"].values())))
    yield f"""\
{about["date"]}, commit {about["commit"]}, {about["cpu"]}, {about["cores"]} cores (the load
generator takes its share of them), Python {about["python"]}, ONNX Runtime {runtimes};
{about["rounds"]} rounds of {about["seconds"]:g} s or more. Figures are medians over the
rounds; a ratio is the median of the rounds' own ratios, with the lowest and the highest."""
    yield ""


def _aims(samples: Samples, about: dict[str, Any]) -> Iterator[str]:
    found = outcomes(samples)
    if not found:
        return
    yield "## Aims"
    yield ""
    yield _AIMS
    for each in found:
        aim = each.aim
        compared = f"{_peer(aim.ours, about)} / {_peer(aim.theirs, about)}"
        yield _line(
            aim.model,
            _PROTOCOLS[aim.protocol],
            each.concurrency,
            compared,
            aim.figure,
            each.value,
            f"{aim.sign} {aim.limit:.2f}",
            "met" if each.is_met else "**missed**",
        )
    yield ""


def _sections(samples: Samples, about: dict[str, Any]) -> Iterator[str]:
    for model in _models(samples):
        title, text = _MODELS.get(model, (model, ""))
        yield f"## {title}"
        yield ""
        yield text
        yield ""
        yield f"![throughput against p99]({FOLDER}/{model}.svg)"
        yield ""
        yield "The number at a point is that of the requests in flight. Up and left is better."
        yield ""
        yield _TABLE
        cells = [cell for cell in samples if cell.model == model]
        for cell in sorted(cells, key=_order):
            yield _row(samples, cell, about)
        yield ""
        found = [each for each in (*ratios(samples), *over_bare(samples)) if each.model == model]
        if found:
            yield from _ratio_rows(found, about)
            yield ""


def _row(samples: Samples, cell: Cell, about: dict[str, Any]) -> str:
    mid = middle(samples[cell])
    rates = [each.infer_per_s for each in samples[cell]]
    in_flight = f"batch of {cell.concurrency}" if cell.peer == BARE else cell.concurrency
    return _line(
        _PROTOCOLS[cell.protocol],
        in_flight,
        _peer(cell.peer, about),
        _number(mid.infer_per_s),
        f"{_number(min(rates))} to {_number(max(rates))}",
        f"{mid.p50_us / 1000:.2f}",
        f"{mid.p99_us / 1000:.2f}",
        f"{mid.batch_size:.1f}",
        _number(sum(mid.cpu_us.values())),
    )


def _line(*values: object) -> str:
    """Of a table."""
    return f"| {' | '.join(map(str, values))} |"


def _ratio_rows(found: Sequence[Ratio], about: dict[str, Any]) -> Iterator[str]:
    yield _RATIOS
    for each in sorted(found, key=_ratio_order):
        compared = f"{_peer(each.ours, about)} / {_peer(each.theirs, about)}"
        spoken = _PROTOCOLS[each.protocol]
        yield _line(compared, spoken, each.concurrency, each.rate, each.p50, each.p99, each.cpu)


def _plot(samples: Samples, model: str, about: dict[str, Any]) -> str:
    cells = sorted(
        (cell for cell in samples if cell.model == model and cell.peer != BARE), key=_order
    )
    panels = []
    for protocol in dict.fromkeys(cell.protocol for cell in cells):
        own = [cell for cell in cells if cell.protocol == protocol]
        lines: dict[str, list[tuple[float, float]]] = {}
        labels: dict[str, list[str]] = {}
        for cell in own:
            mid, name = middle(samples[cell]), _peer(cell.peer, about)
            lines.setdefault(name, []).append((mid.p99_us / 1000, mid.infer_per_s))
            labels.setdefault(name, []).append(str(cell.concurrency))
        what = "responses" if protocol == "stream" else "requests"
        axis = _axis([x for points in lines.values() for x, _ in points], protocol)
        panels.append(Panel(f"{_PROTOCOLS[protocol]}: {what} per second", axis, lines, labels))
    peers = {cell.peer: None for cell in cells}
    legend = [_peer(peer, about) for peer in sorted(peers, key=_peer_order)]
    return draw(panels, legend)


def _axis(values: Sequence[float], protocol: str) -> Axis:
    lowest, highest = min(values) / 1.3, max(values) * 1.3
    powers = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    ticks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    what = "p99 of the first response" if protocol == "stream" else "p99"
    return Axis(f"{what}, ms", lowest, highest, [t for t in ticks if lowest <= t <= highest])


def _models(samples: Samples) -> list[str]:
    """In the order of this page, unknown ones at its end."""
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
