"""Segments of executors with the tensors between an ensemble's steps, until their last use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.shm.mappings import exists
from nereid_scheduler.core.requests.segment_owners import inline

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid.core.wire.messages import InferResponse
    from nereid_scheduler.core.requests.segment_owners import SegmentOwners
    from nereid_scheduler.versions.ensembles.ensemble_run import EnsembleRun
    from nereid_scheduler.versions.ensembles.step_tensors import SegmentLease, Tensor


class RunSegments:
    """Return the segments of runs to the executors that own them."""

    def __init__(self, owners: SegmentOwners) -> None:
        self._owners = owners

    def drop_response(self, response: InferResponse) -> None:
        """Return the segment of a response that nobody reads."""
        self._owners.drop_response(response)

    def add_leases(self, run: EnsembleRun, tensors: Iterable[Tensor]) -> None:
        """Keep the leases of a response's segments. A segment is released after its last use."""
        for tensor in tensors:
            lease = tensor.lease
            if lease is not None and lease not in run.leases:
                run.leases.add(lease)
                if not lease.uses:
                    self._release(run, lease)

    def release_tensors(
        self, run: EnsembleRun, tensors: Iterable[Tensor], *, in_use: bool = False
    ) -> None:
        """Release a step's tensors after use. in_use: a lost instance may still read them."""
        if in_use:
            run.entry.request.resent = True
        for tensor in tensors:
            lease = tensor.lease
            if lease is not None:
                lease.uses -= 1
                lease.in_use = lease.in_use or in_use
                if not lease.uses:
                    self._release(run, lease)

    def pass_on(self, run: EnsembleRun, response: InferResponse, outputs: Sequence[Tensor]) -> None:
        """Leave payloads in one shared segment, or copy them; may raise SegmentLostError."""
        leases = {tensor.lease for tensor in outputs}
        lease = leases.pop()
        if lease is not None and not leases and not lease.in_use and run.entry.cache_lookup is None:
            # The gateway releases the segment from now on.
            run.leases.discard(lease)
            response.segment_name = lease.segment_name
            return
        response.payloads = inline(response.payloads)
        self.release_tensors(run, outputs)

    def return_all(self, run: EnsembleRun, *, discard: bool) -> None:
        """Return all segments of a run. discard: open steps may still read them."""
        if discard:
            self._owners.return_segments({each.segment_name for each in run.leases}, discard=True)
        else:
            for lease in list(run.leases):
                self._release(run, lease)

    def _release(self, run: EnsembleRun, lease: SegmentLease) -> None:
        run.leases.discard(lease)
        self._owners.return_segments((lease.segment_name,), discard=lease.in_use)


def are_lost(tensors: Iterable[Tensor]) -> bool:
    """Return whether the segment of a tensor is gone, as its executor was lost."""
    leases = {tensor.lease for tensor in tensors}
    return any(lease is not None and not exists(lease.segment_name) for lease in leases)
