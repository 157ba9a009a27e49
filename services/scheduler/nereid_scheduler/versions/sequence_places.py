"""Places of requests in their sequences, for gateways that copy sequences for a shadow.

The requests of one sequence may come by several gateways, and none of these knows of the others'.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from itertools import count
from typing import TYPE_CHECKING, Final

from nereid.core.sequence_owners import sequence_key
from nereid.core.wire.messages import SequencePlace
from nereid_scheduler.core.requests.sequence import sequence_flags

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nereid.core.wire.messages import InferRequest

# Unique in the mesh, also after a restart.
_starts: Final = count(int.from_bytes(os.urandom(5), "little") << 20 | 1)
_MAX_SEQUENCES: Final = 16384


class SequencePlaces:
    """Counts the requests of a version's sequences from the first START whose place is wanted.

    All requests are counted as long as a sequence is known, so that no place leaves one out.
    """

    def __init__(self, max_sequences: int = _MAX_SEQUENCES) -> None:
        self._max_sequences = max_sequences
        # The place of the last request of each open sequence; the sequence with the newest START
        # is the last one.
        self._last: OrderedDict[Hashable, SequencePlace] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def count(self, request: InferRequest) -> SequencePlace | None:
        """Return the place of a request; `None` if its START was not counted."""
        flags = sequence_flags(request.parameters)
        if not flags.id:
            return None
        key = sequence_key(flags.id, request.sequence_owner)
        last = self._last.pop(key, None) if flags.start or flags.end else self._last.get(key)
        if flags.start:
            place = SequencePlace(next(_starts), 1)
        elif last is not None:
            place = SequencePlace(last.start, last.number + 1)
        else:
            return None
        if not flags.end:
            self._last[key] = place
            if len(self._last) > self._max_sequences:
                self._last.popitem(last=False)
        return place
