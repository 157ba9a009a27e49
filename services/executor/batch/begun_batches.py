"""Which batches an instance has begun, and which it has given back: the executor's side of the
instance stream (docs/protocols.md), for all runners.

    state        event                          next
    -            asked back, before it was read WITHDRAWN: reported as given back
    -            read                           BEGUN
    WITHDRAWN    read                           skipped
    BEGUN        asked back                     BEGUN: nothing is reported, its response follows

While the instance executes, its next batches may lie in its socket, where nobody can remove them,
so that one is skipped when its turn comes. Exactly one side wins: a batch is executed and responded
to, or reported as given back and never executed.
"""

from __future__ import annotations

import threading

from nereid.core.errors import ProtocolError

# Of a warm-up, which nobody sends and nobody asks back.
_NO_NUMBER = 0


class BegunBatches:
    """One instance's, of one tenure. Batches come in the order of their numbers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Batches up to this number were read.
        self._begun = 0
        self._withdrawn: set[int] = set()

    def begin(self, batch: int) -> bool:
        """Its instance is about to execute a batch; False: it must not. Called in its thread.

        Raises:
            ProtocolError: batches come out of order.
        """
        if batch == _NO_NUMBER:
            return True
        with self._lock:
            if batch <= self._begun:
                raise ProtocolError(f"batch {batch} comes after batch {self._begun}")
            self._begun = batch
            if not self._withdrawn:
                return True
            withdrawn = batch in self._withdrawn
            # Those before it were lost with an earlier stream.
            self._withdrawn = {each for each in self._withdrawn if each > batch}
            return not withdrawn

    def withdraw(self, batch: int) -> bool:
        """Prevent that a batch is executed; False: it has begun. From any thread."""
        with self._lock:
            if batch <= self._begun:
                return False
            self._withdrawn.add(batch)
            return True
