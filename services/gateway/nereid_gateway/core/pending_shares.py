"""Shares of models and clients in the pending requests of a gateway.

No model can keep other models out, and no client can keep out the other clients of a model. The
thresholds are dynamic, as in the shared buffer of a network switch. A model's threshold is _SHARE
times the free part of the limit. A client's threshold for the model is _SHARE times the free part
of the model's threshold. A model or client whose pending requests have reached its threshold may
add no request. A single model may use most of the limit. If n models each want the whole limit,
their parts converge to the same size. A part of the limit always stays free, so the next model is
admitted at once. While few requests are pending, nobody can reach a threshold, so nothing is
counted. Thresholds apply to models first, because all clients may be behind one proxy.

A census counts all pending requests. Requests that are admitted after the census are added to its
counts. Requests that end are not subtracted, so nothing has to be counted where requests end. The
census is repeated when enough requests were added without being counted, or when the counts would
refuse a request although many of the counted requests have ended. The module does no I/O.
"""

# layout: covered

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
# Counts may be wrong by at most this part of the limit (1/_STALE_PART). The tolerance bounds the
# cost of censuses per request.
_STALE_PART: Final = 16

_sender_and_head_of = attrgetter("request.sender", "request.head")


class PendingShares:
    """Shares in one gateway's pending requests.

    Below `uncontended` pending requests, every request may be added.
    """

    def __init__(self, limit: int, model_of: Callable[[bytes], str]) -> None:
        """Share a limit on pending requests. model_of: returns the model that a head names."""
        # The bound is for a single client that uses a single model. With n requests, n < _SHARE *
        # (_SHARE * (limit - n) - n) must hold.
        self.uncontended = -(-limit * _SHARE**2 // (_SHARE**2 + _SHARE + 1))
        self._limit = limit
        self._model_of = model_of
        self._by_model: Counter[str] = Counter()
        self._by_client: Counter[tuple[Hashable, str]] = Counter()
        # Number of requests that were counted. Some of them may have ended since.
        self._counted = 0
        # Upper bound of the number of requests that were added since the census without being
        # counted. `_next` is the expected number of the next call's request. A higher number shows
        # that requests were added without being counted.
        self._uncounted = 0
        self._next = 0
        self._most_stale = limit // _STALE_PART

    def may_add(
        self, request: InferRequest, number: int, pending: Collection[PendingRequest]
    ) -> bool:
        """Return whether the request may join the pending requests. If so, count the request.

        number: the request's number. Accepted and refused requests are numbered without gaps.
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
    """Return the client of a sender. A client may have several connections."""
    return sender.owner if isinstance(sender, Account | Owner) else sender
