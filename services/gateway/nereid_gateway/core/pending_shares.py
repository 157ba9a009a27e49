"""Shares of models and clients in the requests that a gateway keeps pending.

No model keeps the others out, and no client the other clients of a model. The thresholds are
dynamic, as in a switch's shared buffer: a model that has more than _SHARE times what is left of the
limit may add nothing, nor may a client of it that has more than _SHARE times what is left of that.
A single model may have most of the limit; n models that want all of it converge to equal parts, and
the part that is left over admits the next one at once. Below a part of the limit nobody can exceed
this, and nothing is counted. Models come first because all clients may be behind one proxy.

Pure. The counts are those of a census, and of requests that were admitted here since. The census is
repeated when enough requests were added uncounted, or when some have ended and the counts would
refuse one: so nothing has to be counted where requests end.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from nereid.rpc.net.limits.budget import Account, Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    from nereid.core.wire.messages import InferRequest
    from nereid.mesh_routing.router.pending_requests import PendingRequest

_SHARE: Final = 8
# Counts may be wrong by this part of the limit, which bounds the cost of censuses per request.
_STALE_PART: Final = 16

_sender_and_head_of = attrgetter("request.sender", "request.head")


class PendingShares:
    """Shares of one gateway.

    Every request may be added below `uncontended` pending requests.
    """

    def __init__(self, limit: int, model_of: Callable[[bytes], str]) -> None:
        """Share a limit on all pending requests; model_of returns the model that a head names."""
        # The bound for one client of one model with n requests: n < _SHARE * (_SHARE * (limit - n)
        # - n).
        self.uncontended = -(-limit * _SHARE**2 // (_SHARE**2 + _SHARE + 1))
        self._limit = limit
        self._model_of = model_of
        self._by_model: Counter[str] = Counter()
        self._by_client: Counter[tuple[Hashable, str]] = Counter()
        # Number of counted requests, which may have ended.
        self._counted = 0
        # Number of requests that may have been added meanwhile, and the number of the next one if
        # none was.
        self._uncounted = 0
        self._next = 0
        self._most_stale = limit // _STALE_PART

    def may_add(
        self, request: InferRequest, number: int, pending: Collection[PendingRequest]
    ) -> bool:
        """Return whether one more request may be pending beside these; count it if so.

        number is the request's, accepted or refused: one more than that of the request before it.
        """
        self._uncounted += number - self._next
        self._next = number + 1
        most = _SHARE * (self._limit - len(pending))
        if most <= 0:
            return False
        if self._uncounted > self._most_stale:
            self._count(pending)
        model = self._model_of(request.head)
        client = _owner_of(request.sender), model
        if not self._is_below(most, client):
            if self._counted - len(pending) <= self._most_stale:
                return False
            self._count(pending)
            if not self._is_below(most, client):
                return False
        self._by_model[model] += 1
        self._by_client[client] += 1
        self._counted += 1
        return True

    def _is_below(self, most: int, client: tuple[Hashable, str]) -> bool:
        return self._by_client[client] < _SHARE * (most - self._by_model[client[1]])

    def _count(self, pending: Collection[PendingRequest]) -> None:
        self._by_model.clear()
        self._by_client.clear()
        self._counted, self._uncounted = len(pending), 0
        for (sender, head), count in Counter(map(_sender_and_head_of, pending)).items():
            model = self._model_of(head)
            self._by_model[model] += count
            self._by_client[_owner_of(sender), model] += count


def _owner_of(sender: Hashable) -> Hashable:
    """Return the client of a sender, which may have several connections."""
    return sender.owner if isinstance(sender, Account | Owner) else sender
