"""Fuzzes the parsers: python -m tests.fuzz --seconds 600 [target ...]

Each target is a module beside this one with SEEDS, WORDS, MAX_BYTES and run(), which raises
when something is wrong with what its input led to. They run one after the other, each in a process
of its own, with atheris, for so many seconds each. What is found lies in build/fuzz/TARGET/found;
once mended, it belongs into tests/fuzz/found.py, which the tests try without atheris. The target
`cost` is all of tests/fuzz/cost, which share its seconds.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import re
import subprocess
import sys
from pathlib import Path

TARGETS = (
    "http1",
    "infer_json",
    "text_bodies",
    "managed",
    "request_targets",
    "timeline",
    "infer_grpc",
    "http2",
    "header_blocks",
    "mesh_frames",
    "config_text",
)
_COST = "cost"
_BUILD = Path(__file__).parents[2] / "build" / "fuzz"
_STATUS = re.compile(r"#(\d+)\s.*rss: (\d+)Mb")


def fuzz(name: str, seconds: int) -> bool:
    """One target in a process of its own; whether nothing was found."""
    corpus, found = _BUILD / name / "corpus", _BUILD / name / "found"
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(exist_ok=True)
    target = importlib.import_module(f"tests.fuzz.{name}")
    for number, seed in enumerate(target.SEEDS):
        (corpus / f"seed-{number}").write_bytes(seed)
    words = _BUILD / name / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.WORDS))
    command = [sys.executable, "-m", "tests.fuzz", "--child", name, str(corpus)]
    command += [f"-dict={words}", f"-artifact_prefix={found}/", f"-max_len={target.MAX_BYTES}"]
    command += [f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=2048"]
    log = _BUILD / name / "log"
    with log.open("w") as out:
        code = subprocess.run(command, stdout=out, stderr=out, check=False).returncode
    reported = [
        match.groups() for match in map(_STATUS.search, log.read_text().splitlines()) if match
    ]
    runs, memory = reported[-1] if reported else ("0", "0")
    middle = reported[len(reported) // 2][1] if reported else "0"
    what = "nothing found" if code == 0 else f"FOUND SOMETHING: see {log} and {found}"
    print(f"{name}: {runs} inputs, {memory} MB in the end, {middle} halfway; {what}", flush=True)  # noqa: T201 (a tool)
    return code == 0


def fuzz_costs(seconds: int) -> bool:
    """All targets of fuzzing by cost; whether nothing was found."""
    command = [sys.executable, "-m", "tests.fuzz.cost", f"--total-seconds={seconds}"]
    return subprocess.run(command, check=False).returncode == 0


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def child(name: str, arguments: list[str]) -> None:
    import atheris  # noqa: PLC0415 (only the fuzzing process needs it)

    with atheris.instrument_imports(include=["nereid"]):
        target = importlib.import_module(f"tests.fuzz.{name}")
    # Handlers that fail on purpose would be reported a million times.
    logging.disable()
    atheris.Setup([name, *arguments], target.run)
    atheris.Fuzz()


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(prog="tests.fuzz", description="Fuzzes the parsers.")
    parser.add_argument("targets", nargs="*", metavar="target", help=", ".join((*TARGETS, _COST)))
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    given = parser.parse_args()
    unknown = set(given.targets) - {*TARGETS, _COST}
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    chosen = given.targets or (*TARGETS, _COST)
    good = [
        fuzz_costs(given.seconds) if name == _COST else fuzz(name, given.seconds) for name in chosen
    ]
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
