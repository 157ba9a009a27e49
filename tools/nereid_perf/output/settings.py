"""Flags for the outputs of a run. Flags that perf_analyzer also has are named as there."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Final

from nereid.config.flags import Topic, boolean, choice, flag

# The value that --json alone stands for.
_STDOUT: Final = "-"


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """Files that results are written to, in addition to the printed summary."""

    TOPIC: ClassVar = Topic.OUTPUT

    csv: str = flag(
        "",
        "write the levels to this file in perf_analyzer's columns; composing models and models of a"
        " mix get files beside it",
        aliases=("-f", "--latency-report-file"),
    )
    verbose_csv: bool = flag(
        False, "with perf_analyzer's further columns, and those of GPUs", boolean, bare="true"
    )
    json: str = flag(
        "",
        "print one JSON document instead of the summary, or write it to this file, for report and"
        " compare",
        bare=_STDOUT,
    )
    html: str = flag("", "write a page that needs no other file and no network")
    png: str = flag("", "write the curve of rate against latency; needs matplotlib")
    live: str = flag(
        "auto",
        "auto: a table while measuring where stdout is a terminal, else plain lines; plain: lines;"
        " off: nothing before the summary",
        choice("auto", "plain", "off"),
    )
    verbose: bool = flag(False, "the same as --live plain", boolean, aliases=("-v",), bare="true")

    def errors(self) -> list[str]:
        """Return errors that would otherwise appear only after the measurement, one line each."""
        errors = []
        for name in ("csv", "json", "html", "png"):
            path = getattr(self, name)
            if path and not Path(path).parent.is_dir():
                errors.append(f"--{name}: there is no directory '{Path(path).parent}'")
        if self.png and find_spec("matplotlib") is None:
            errors.append("--png needs matplotlib: pip install matplotlib")
        return errors

    @property
    def prints_json(self) -> bool:
        """True if stdout gets the JSON document, and nothing else."""
        return self.json == _STDOUT

    @property
    def view(self) -> str:
        """Mode of the live view."""
        if self.prints_json:
            return "off"
        return "plain" if self.verbose else self.live
