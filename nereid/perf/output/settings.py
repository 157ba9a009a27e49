"""The flags by which results are written; perf_analyzer's names where it has the thing."""

from __future__ import annotations

from dataclasses import dataclass

from nereid.config.flags import boolean, choice, flag


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """Where results go, beside the summary that is printed."""

    csv: str = flag(
        "",
        "write the levels to this file in perf_analyzer's columns; composing models and models of a"
        " mix get files beside it",
        aliases=("-f", "--latency-report-file"),
    )
    verbose_csv: bool = flag(
        False, "with perf_analyzer's further columns, and those of GPUs", boolean, bare="true"
    )
    json: str = flag("", "write all that was measured to this file, for report and compare")
    html: str = flag("", "write a page that needs no other file and no network")
    png: str = flag("", "write the curve of rate against latency; needs matplotlib")
    live: str = flag(
        "auto",
        "auto: a table while measuring where stdout is a terminal, else plain lines; plain: lines;"
        " off: nothing before the summary",
        choice("auto", "plain", "off"),
    )
