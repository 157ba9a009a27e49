"""Large request whose bytes are charged to its client until it ends or is cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.rpc.net.limits.budget import NO_ACCOUNT

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferResponse
    from nereid.rpc.net.limits.budget import Account
    from nereid_gateway.core.request_handle import OnResponse, RequestHandle


class ChargedRequest:
    """Handle of a request that also releases the charge of its bytes.

    `handle` is the request's own handle, set once the request is sent.
    """

    __slots__ = ("_account", "_on_response", "handle", "size_bytes")

    handle: RequestHandle

    def __init__(self, account: Account, size_bytes: int, on_response: OnResponse) -> None:
        """Charge the bytes of a request to an account, or raise OverBudgetError."""
        account.charge_pending(size_bytes)
        self._account = account
        self.size_bytes = size_bytes
        self._on_response = on_response

    def on_response(self, response: InferResponse) -> None:
        """Pass a response on. The last one releases the charge."""
        if not response.more:
            self.release()
        self._on_response(response)

    def cancel(self) -> None:
        """Release the charge and cancel the request."""
        self.release()
        self.handle.cancel()

    def set_flow(self, *, paused: bool) -> None:
        """Pause the responses of the request, or let them continue."""
        self.handle.set_flow(paused=paused)

    def release(self) -> None:
        """Release the charge, because the request is no longer pending."""
        account, self._account = self._account, NO_ACCOUNT
        account.release_pending(self.size_bytes)
