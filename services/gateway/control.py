"""Control calls: what the gateway asks the scheduler beside inference, in KServe's own messages.

Hands bytes through; errors arrive as the errors of nereid.core.errors, whichever way the call went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from nereid.core.errors import Unavailable, error_of
from nereid.core.methods import SCHEDULER
from nereid.pb import kserve_pb2
from nereid.rpc import NotConnectedError, RpcError

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from nereid.rpc import Channel

    Response = TypeVar("Response", bound=Message)

_LOAD: Final = "RepositoryModelLoad"


class Control:
    """The scheduler's control plane, seen from the gateway."""

    def __init__(self, channel: Channel, timeout_s: float) -> None:
        self._channel = channel
        self._timeout_s = timeout_s

    async def call_bytes(self, method: str, request: bytes) -> bytes:
        """One call, bytes in and bytes out. A load takes as long as it takes.

        Raises:
            NereidError: whatever the scheduler answered, or Unavailable when it did not.
        """
        timeout_s = None if method == _LOAD else self._timeout_s
        try:
            return await self._channel.unary(SCHEDULER + method, request, timeout_s=timeout_s)
        except NotConnectedError as error:
            # Where the scheduler should be is in the log, and no business of clients.
            raise Unavailable("the scheduler cannot be reached") from error
        except RpcError as error:
            raise error_of(int(error.status), error.message) from error

    async def call(self, method: str, request: Message, response: type[Response]) -> Response:
        """One call with messages."""
        return response.FromString(await self.call_bytes(method, request.SerializeToString()))

    async def load(self, request: kserve_pb2.RepositoryModelLoadRequest) -> None:
        """Have a model loaded, however long that takes."""
        await self.call_bytes(_LOAD, request.SerializeToString())

    async def server_ready(self) -> bool:
        """Whether the scheduler says so."""
        wire_response = await self.call(
            "ServerReady", kserve_pb2.ServerReadyRequest(), kserve_pb2.ServerReadyResponse
        )
        return wire_response.ready
