"""Choice of the version that executes a request that names none, by the model's traffic.

    a sequence of the request is open at a ready version        this version
    the gateway did not know the source of keys yet             as before the change
    otherwise                                                   by the weights of the versions that
                                                                are ready, and the caller's key

A version's first load counts as ready, so that callers find their version after a restart: their
requests wait. If no version with a weight is ready, the latest one counts that has none, not even
0.
"""

from __future__ import annotations

import random
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import Unavailable
from nereid.core.sequence_owners import SEQUENCE_ID, sequence_key
from nereid.core.traffic.caller_keys import TAG_BYTES, key_of, request_key, source_tag
from nereid.core.traffic.weights import PARAMETER, SEQUENCE, TENSOR, choose_version
from nereid.pb import kserve_pb2
from nereid.shm.mappings import SegmentLostError, view
from nereid.shm.reference import SharedMemory
from nereid_scheduler.core.models.lifecycle import VersionState
from nereid_scheduler.core.requests.sequence import sequence_flags

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.core.traffic.weights import Traffic
    from nereid.core.wire.messages import InferRequest
    from nereid_scheduler.core.models.traffic_table import TrafficTable
    from nereid_scheduler.placement.models.catalogue import Catalogue, ServedModel, ServedVersion

# A digest of this many bytes takes a fifth of a millisecond of the event loop.
_MAX_TENSOR_BYTES: Final = 256 << 10
_MAX_HEADS: Final = 256
_MAX_HEAD_BYTES: Final = 4096


class TrafficSplit:
    """The versions of a model that requests without a version go to, while no state changes."""

    def __init__(
        self, model: ServedModel, traffic: Traffic, table: TrafficTable, *, may_wait: bool = True
    ) -> None:
        """may_wait: whether a request can wait for a version's first load."""
        self._model = model
        self._name = model.plain_name
        self._traffic = traffic
        self._table = table
        self._tag = source_tag(traffic.by) if traffic.is_keyed_by_gateway else b""
        self._may_wait = may_wait
        self._candidates = self._find_candidates(traffic)
        # Key: a head. Value: the place of the tensor that has the key, or -1.
        self._places = BoundedCache[bytes, int](_MAX_HEADS, _MAX_HEAD_BYTES)

    @property
    def waits(self) -> bool:
        """True if the chosen version may be one that is being loaded."""
        loading = VersionState.LOADING
        return any(served.life.state is loading for served, _ in self._candidates)

    @property
    def heaviest(self) -> ServedVersion | None:
        """The version with the largest weight, among those that requests may go to."""
        chosen = max(self._candidates, key=itemgetter(1), default=None)
        return None if chosen is None else chosen[0]

    def choose(self, request: InferRequest) -> ServedVersion:
        """Return the version for a request; raise Unavailable if none may have it."""
        parameters = request.parameters
        if parameters and SEQUENCE_ID in parameters:
            served = self._version_of_sequence(request)
            if served is not None:
                return served
        traffic, candidates = self._traffic, self._candidates
        key = self._read_key(request, traffic)
        if key is None:
            before = self._table.before(self._name)
            if before is None:
                key = _own_key(request)
            elif before[0] is None:
                return self._latest(frozenset())
            else:
                traffic = before[0]
                candidates = self._find_candidates(traffic)
                key = self._read_key(request, traffic) or _own_key(request)
        if request.text_digest:
            candidates = _with_files(candidates, request.text_digest) or candidates
        if len(candidates) == 1:
            return candidates[0][0]
        if not candidates:
            return self._latest(frozenset(version for version, _ in traffic.weights))
        number = choose_version(
            self._name, key, [(served.number, weight) for served, weight in candidates]
        )
        return self._model.versions[number]

    def _find_candidates(self, traffic: Traffic) -> list[tuple[ServedVersion, int]]:
        versions = self._model.versions
        return [
            (versions[number], weight)
            for number, weight in traffic.weights
            if weight and number in versions and self._may_have(versions[number])
        ]

    def _may_have(self, served: ServedVersion) -> bool:
        state = served.life.state
        if state is VersionState.LOADING:
            return self._may_wait and not served.is_addition and not served.first_load_ended
        return state is VersionState.READY

    def _latest(self, excluded: frozenset[int]) -> ServedVersion:
        ready = [each for each in self._model.ready_versions() if each.number not in excluded]
        if not ready:
            raise Unavailable(
                f"no version of model '{self._name}' that its traffic goes to is ready",
                accepted=True,
            )
        return ready[-1]

    def _version_of_sequence(self, request: InferRequest) -> ServedVersion | None:
        correlation_id = sequence_flags(request.parameters).id
        if not correlation_id:
            return None
        key = sequence_key(correlation_id, request.sequence_owner)
        for served in self._model.ready_versions():
            if served.ready_runtime.has_sequence(key):
                return served
        return None

    def _read_key(self, request: InferRequest, traffic: Traffic) -> bytes | None:
        """Return a caller's key; `None` if the gateway did not know the source of keys."""
        if traffic.is_keyed_by_gateway:
            key = request.caller_key
            tag = self._tag if traffic is self._traffic else source_tag(traffic.by)
            if not key.startswith(tag) or not key:
                # Calls of models have no key, unless they are made for one request that has it.
                return _own_key(request) if request.caller else None
            return key[TAG_BYTES:] or _own_key(request)
        value: bytes | None = None
        if traffic.kind == SEQUENCE:
            value = _sequence_value(request)
        elif traffic.kind == PARAMETER:
            parameter = (request.parameters or {}).get(traffic.name)
            value = None if parameter is None else str(parameter).encode("utf-8", "surrogatepass")
        elif traffic.kind == TENSOR:
            value = self._tensor_value(request, traffic.name)
        return _own_key(request) if value is None else key_of(value)

    def _tensor_value(self, request: InferRequest, name: str) -> bytes | None:
        place = self._places.get(request.head)
        if place is None:
            message = kserve_pb2.ModelInferRequest.FromString(request.head)
            names = [tensor.name for tensor in message.inputs]
            place = names.index(name) if name in names else -1
            self._places.remember(request.head, place)
        if not 0 <= place < len(request.payloads):
            return None
        payload = request.payloads[place]
        try:
            data = view(payload) if isinstance(payload, SharedMemory) else payload
        except SegmentLostError:
            return None
        return b"%d:" % len(data) + bytes(data[:_MAX_TENSOR_BYTES])


def find_split(catalogue: Catalogue, name: str, *, may_wait: bool = True) -> TrafficSplit | None:
    """Return the choice among a model's versions; `None` if the latest one has all requests."""
    found = catalogue.find_traffic(name)
    model = None if found is None else catalogue.only_model(name)
    if found is None or model is None:
        return None
    return TrafficSplit(model, found.traffic, catalogue.traffic, may_wait=may_wait)


def _own_key(request: InferRequest) -> bytes:
    # Steps of decoupled ensembles have no ids.
    return request_key(request.id or random.getrandbits(64))


def _sequence_value(request: InferRequest) -> bytes | None:
    correlation_id = sequence_flags(request.parameters).id
    if not correlation_id:
        return None
    key = sequence_key(correlation_id, request.sequence_owner)
    return repr(key).encode("utf-8", "surrogatepass")


def _with_files(
    candidates: Iterable[tuple[ServedVersion, int]], digest: bytes
) -> list[tuple[ServedVersion, int]]:
    """Return the versions whose text files are those with which a request was made."""
    return [
        (served, weight)
        for served, weight in candidates
        if served.life.state is VersionState.READY and served.text_digest == digest
    ]
