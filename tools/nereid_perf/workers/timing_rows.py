"""Rows with a server's own timings, which a worker reports: one for each phase of a request."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

import numpy as np

from nereid_perf.server_stats.server_timing import TOTAL, parse_server_timing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nereid_perf.wire.client import PendingRequest

# Service time outside the server. The spaces keep the name apart from a server's phases.
CLIENT_AND_WIRE: Final = "client and wire"
# Maximum number of phases; further phases are left out.
_MAX_NAMES: Final = 32

# phase: index of the name. last: when the request ended.
TIMING: Final = np.dtype(
    [("last", np.int64), ("workload", np.int64), ("phase", np.int64), ("ns", np.int64)]
)


class TimingWriter:
    """Gathers rows until take() returns them."""

    def __init__(self) -> None:
        self._rows = array("q")
        # This phase always has number 0, whatever phases servers report.
        self._phases = {CLIENT_AND_WIRE: 0}
        self._new_names = [CLIENT_AND_WIRE]

    def add(self, pending: PendingRequest) -> None:
        """Add the phases of an ended request, from its response's Server-Timing."""
        durations = parse_server_timing(pending.server_timing)
        if not durations:
            return
        total_ns = durations[TOTAL] if TOTAL in durations else sum(durations.values())
        durations[CLIENT_AND_WIRE] = max(0, pending.last_ns - pending.sent_ns - total_ns)
        for name, ns in durations.items():
            phase = self._phase_of(name)
            if phase is not None:
                self._rows.extend((pending.last_ns, pending.request.workload, phase, ns))

    def take(self) -> tuple[bytes, tuple[str, ...]]:
        """Return rows and new names since the last call."""
        taken = self._rows.tobytes(), tuple(self._new_names)
        del self._rows[:]
        self._new_names = []
        return taken

    def _phase_of(self, name: str) -> int | None:
        phase = self._phases.get(name)
        if phase is None and len(self._phases) < _MAX_NAMES:
            phase = self._phases[name] = len(self._phases)
            self._new_names.append(name)
        return phase


def timings_of(content: bytes) -> NDArray[np.void]:
    """Return the timings in a report's bytes."""
    return np.frombuffer(content, dtype=TIMING)
