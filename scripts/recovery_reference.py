"""Write docs/reference/recovery.md from nereid/config/recovery.py.

With --check: exit with 1 if it differs.

usage: recovery_reference.py [--check]
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from nereid.config.recovery import DEFAULT_TIMES, RecoveryTimes
from scripts.reference_page import table, write_or_check

_INTRODUCTION = """\
# Times of failures

<!-- Written by scripts/recovery_reference.py from nereid/config/recovery.py. -->

All times that decide how long a failure inside the mesh lasts follow from two flags, which are the
same for all services: `--mesh-silence-secs` (how soon silence is a failure) and
`--mesh-restart-secs` (how long a restart may take). Flags of their own, which by default are as
long as a restart: `--reconnect-timeout-secs`, `--control-timeout-secs`,
`--no-executor-timeout-secs` and `--kept-instance-secs`; `--watchdog-timeout-secs` is `watchdog`
below. A slow machine, or one that is much too busy, wants a longer silence.

"""
_HEADER = ("Time", "Follows from", "By default", "When it has passed, or what it bounds")


def _formula(name: str) -> str:
    """Return a time's formula; times are sums of shares of the two flags, and of a constant."""

    def seconds(silence_s: float, restart_s: float) -> float:
        value: float = getattr(RecoveryTimes(silence_s, restart_s), name)
        return value

    constant = seconds(0, 0)
    shares = {"silence": seconds(1, 0) - constant, "restart": seconds(0, 1) - constant}
    terms = [f"{share:.3g} {of}" for of, share in shares.items() if share]
    return " + ".join([*terms, *([f"{constant:g} s"] if constant else [])])


def page() -> str:
    """Return the text of the page."""
    rows = []
    for name, item in vars(RecoveryTimes).items():
        if isinstance(item, property):
            meaning = " ".join((inspect.getdoc(item) or "").split())
            value = f"{getattr(DEFAULT_TIMES, name):.3g} s"
            rows.append((f"`{name.removesuffix('_s')}`", _formula(name), value, meaning))
    return _INTRODUCTION + table(_HEADER, rows)


if __name__ == "__main__":
    sys.exit(write_or_check("recovery.md", page(), "The reference page of the times of failures"))
