"""Peers by name: the models that each can serve, and how each is started.

A variant of Nereid, ``nereid-NAME``, is Nereid with additional flags, or from another source tree.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks import process, wire
from benchmarks.figures.ratios import OURS, is_ours
from benchmarks.measure import Peer
from benchmarks.models.workload import Workload
from benchmarks.peers import environment, litserve, mlserver, native, nereid, scripted, triton

SERVERS = (OURS, native.NAME, "triton", "mlserver", "litserve")
_PROTOCOLS = {
    native.NAME: ("grpc", "http", "json"),
    "triton": ("grpc", "http", "json", "stream"),
    "mlserver": ("grpc", "json"),
    "litserve": ("json",),
}


@dataclass(frozen=True)
class Options:
    """Options of the peers; `variants`: maps a peer's name to a variant of Nereid."""

    triton_venv: Path = triton.DEFAULT_VENV
    variants: Mapping[str, nereid.Variant] = field(default_factory=dict)


def protocols(name: str, workload: Workload) -> tuple[str, ...]:
    """Return those protocols of the workload that the peer supports.

    The result is empty if the peer cannot serve the model.
    """
    if name in (native.NAME, "mlserver", "litserve") and workload.graph is None:
        return ()
    spoken = _PROTOCOLS["triton" if is_ours(name) else name]
    return tuple(protocol for protocol in workload.protocols if protocol in spoken)


def install(names: Sequence[str], options: Options) -> dict[str, str]:
    """Make missing environments of the peers, and return each peer's version of onnxruntime."""
    versions = {}
    if native.NAME in names:
        native.require()
    if "triton" in names:
        triton.ensure_venv(options.triton_venv)
        versions["triton"] = environment.onnxruntime_version(options.triton_venv)
    for module in (mlserver, litserve):
        name = module.__name__.rpartition(".")[2]
        if name in names:
            module.ensure_venv()
            versions[name] = environment.onnxruntime_version(module.VENV)
    return versions


def start(name: str, options: Options, workload: Workload, work: Path, stack: ExitStack) -> Peer:
    """Start a server, which runs until the stack is closed. It may not be ready yet.

    work: folder for its files and its log.
    """
    first, second, third = process.free_ports(3)
    ports = first, second, third
    address = wire.Address(first, second)
    client = work / f"{name}-client"
    if name in ("mlserver", "litserve"):
        module = mlserver if name == "mlserver" else litserve
        server = stack.enter_context(module.serve(work, ports, workload))
        counts = scripted.counter(module.counts_file(work))
        lists = name == "litserve"
        dialect = wire.Dialect.LISTS if lists else wire.Dialect.KSERVE
        return Peer(name, server, address, client, workload, counts, counts, dialect, polls=lists)
    if name == native.NAME:
        serving = native.serve(work, ports, workload)
    elif name == "triton":
        serving = triton.serve(options.triton_venv, work, ports, workload)
    else:
        serving = nereid.serve(name, work, ports, options.variants[name], workload)
    server = stack.enter_context(serving)
    counts = partial(wire.counts, address, workload.served)
    batches = partial(wire.counts, address, workload.batched)
    return Peer(name, server, address, client, workload, counts, batches)
