"""The servers, each with one instance of one thread, and the loop without a server."""

import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.embeddings.texts import DECIDER, NAME
from benchmarks.peers import environment, nereid
from benchmarks.process import Command, free_ports

NEREID, FASTAPI, INFINITY = "nereid", "fastapi", "infinity"
PEERS = (NEREID, FASTAPI, INFINITY)
# infinity has no decisions.
DECIDERS = (NEREID, FASTAPI)
_SCRIPT = Path(__file__).parent / "scripts" / "fastapi_server.py"
_REQUIREMENTS = {
    FASTAPI: ("fastapi==0.165.0", "uvicorn[standard]==0.32.1", "tokenizers==0.22.2"),
    INFINITY: (
        *("infinity-emb[server]==0.0.78", "optimum[onnxruntime]==1.24.0"),
        *("transformers<4.50", "huggingface-hub<1"),
    ),
}
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def python_of(peer: str) -> str:
    """Return the interpreter of a peer's environment, which is made if it is missing.

    NEREID_BENCH_INFINITY and NEREID_BENCH_FASTAPI name other ones.
    """
    given = os.environ.get(f"NEREID_BENCH_{peer.upper()}")
    if given:
        return given
    venv = environment.CACHE / f"embeddings-{peer}"
    environment.ensure(venv, *_REQUIREMENTS[peer])
    return str(venv / "bin" / "python")


def command(
    peer: str, repository: Path, hub: Path, log: Path, flags: Sequence[str]
) -> tuple[int, Command]:
    """Return the HTTP port, and the command that starts the server.

    repository: Nereid's. hub: has the models' folders, for the others.
    """
    ports = free_ports(3)
    port = ports[0]
    if peer == NEREID:
        return port, nereid.command(
            repository, log, (ports[0], ports[1], ports[2]), ("--openai-api", *flags)
        )
    if peer == FASTAPI:
        argv = [python_of(peer), str(_SCRIPT), str(port), str(hub / NAME), str(hub / DECIDER), "1"]
        return port, Command(argv, log, _ONE_THREAD)
    argv = [str(Path(python_of(peer)).with_name("infinity_emb")), "v2"]
    argv += ["--model-id", str(hub / NAME), "--served-model-name", NAME, "--engine", "optimum"]
    argv += ["--device", "cpu", "--port", str(port), "--url-prefix", "/v1", "--no-model-warmup"]
    argv += ["--pooling-method", "mean"]
    return port, Command(argv, log, {**_ONE_THREAD, "DO_NOT_TRACK": "1"})
