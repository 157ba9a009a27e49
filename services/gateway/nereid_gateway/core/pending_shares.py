"""Shares of models and clients in the pending requests of a gateway.

No model can keep other models out, and no client can keep out the other clients of a model. The
thresholds are dynamic, as in the shared buffer of a network switch. A model's threshold is _SHARE
times the free part of the limit. A client's threshold for the model is _SHARE times the free part
of the model's threshold. A model or client at its threshold may add no request. If n models each
want the whole limit, their parts converge to the same size. A part always stays free for the next
model. Models come first, because all clients may be behind one proxy.

A census counts all pending requests. Later requests are added to its counts. Ended requests are not
subtracted, so that nothing is counted where requests end. The census is repeated when too many
requests are uncounted, or when ended requests would cause a refusal.
"""

# layout: covered

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from nereid.rpc.net.limits.budget import Account, Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    from nereid.mesh_routing.router.pending_requests import PendingRequest
    from nereid_gateway.core.client_request import ClientRequest

_SHARE: Final = 8
# Counts may be wrong by 1/_STALE_PART of the limit, which bounds the cost of censuses.
_STALE_PART: Final = 16

_sender_and_head_of = attrgetter("request.sender", "request.head")


class PendingShares:
    """Shares in one gateway's pending requests."""

    def __init__(self, limit: int, model_of: Callable[[bytes], str]) -> None:
        """Share a limit on pending requests. model_of: returns the model that a head names."""
        # Below this number, no single client with a single model reaches a threshold: n < _SHARE *
        # (_SHARE * (limit - n) - n).
        self.always_admitted_below = -(-limit * _SHARE**2 // (_SHARE**2 + _SHARE + 1))
        self._limit = limit
        self._model_of = model_of
        self._by_model: Counter[str] = Counter()
        self._by_client: Counter[tuple[Hashable, str]] = Counter()
        # Some of these requests may have ended since.
        self._counted = 0
        # `_uncounted` is the maximum number of requests that came after the census without being
        # counted. `_next` is the expected number of the next call's request; a higher number shows
        # uncounted requests.
        self._uncounted = 0
        self._next = 0
        self._most_stale = limit // _STALE_PART

    def may_add(
        self, request: ClientRequest, number: int, pending: Collection[PendingRequest]
    ) -> bool:
        """Return whether the request may be added, and count it if so.

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
