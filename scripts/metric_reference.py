"""Write docs/reference/metrics.md from the declared metrics; --check: exit with 1 if it differs.

usage: metric_reference.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from nereid.observability.metrics import declared_families
from nereid.observability.process_metrics import process_families
from scripts.reference_page import table, write_or_check

if TYPE_CHECKING:
    from nereid.observability.metrics_page import Family

_INTRODUCTION = """\
# Metrics

<!-- Written by scripts/metric_reference.py from nereid/observability. -->

The gateway serves the whole mesh's page at `:8002/metrics`; other services serve their own series
where `--metrics-port` asks for it. Histograms and summaries have the usual suffixes `_bucket`,
`_sum` and `_count`. Metrics that Python models make stand on the page as well.
"""
_SECTIONS = {
    "nv_": "Triton's names, with Triton's meaning",
    "nereid_": "Nereid's own",
    "gen_ai_": "OpenTelemetry's names for calls of OpenAI's API",
    "process_": "Of every process",
    "python_": "Of its Python",
}
_HEADER = ("Name", "Type", "Labels", "Meaning")


def page() -> str:
    """Return the text of the page."""
    families = [*declared_families(), *process_families()]
    parts = [_INTRODUCTION]
    for prefix, title in _SECTIONS.items():
        rows = [
            (
                f"`{family.name}`",
                family.kind,
                ", ".join(f"`{label}`" for label in family.labels),
                family.help,
            )
            for family in families
            if family.name.startswith(prefix)
        ]
        parts.append(f"\n## {title}\n\n{table(_HEADER, rows)}")
    return "".join(parts)


def _row(family: Family) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"`{family.name}`", family.kind, labels, family.help


if __name__ == "__main__":
    sys.exit(write_or_check("metrics.md", page(), __doc__.partition("\n")[0]))
