"""The step of the data plane that says whose sequence a request belongs to. It is only there where
clients have credentials, or where each may have a share of a model's slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.sequence_owners import SEQUENCE_ID, address_owner
from nereid.rpc.net.budget import Account
from nereid.services.gateway.auth.principal import principal_of

if TYPE_CHECKING:
    from nereid.core.messages import InferRequest
    from nereid.services.gateway.infer_step import Infer, OnResponse, RequestHandle


class SequenceOwners:
    """An InferStep. by_address: clients without credentials have addresses."""

    def __init__(self, infer: Infer, *, by_address: bool) -> None:
        self._infer = infer
        self._by_address = by_address

    def infer(self, request: InferRequest, on_response: OnResponse, /) -> RequestHandle:
        """Send a request on; those of no sequence as they are."""
        parameters = request.parameters
        if parameters and SEQUENCE_ID in parameters:
            sender = request.sender
            principal = principal_of(sender)
            if principal is not None:
                request.sequence_owner = principal.sequence_owner
            elif self._by_address and isinstance(sender, Account):
                request.sequence_owner = address_owner(sender.client)
        return self._infer(request, on_response)
