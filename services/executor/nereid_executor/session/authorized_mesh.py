"""The MeshClient of one session's models, in a mesh with several schedulers.

The scheduler of a called model does not know the clients whose requests the calling instance
executes: the session's scheduler does, and is asked for their rights. The worker of the instance
has no part in this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.errors import Unavailable
from nereid.core.wire.codecs import read_error
from nereid.core.wire.messages import error_status_of
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.backends import MeshRequest
    from nereid.core.errors import NereidError
    from nereid.core.wire.messages import InferRequest, InferResponse
    from nereid_executor.core import mesh_client

_LOST: Final = error_status_of(
    Unavailable("the connection to the scheduler that knows the model's clients was lost")
)


class AuthorizedMesh:
    """A MeshClient that sends requests with rights, once the scheduler checks rights."""

    def __init__(self, mesh: mesh_client.Mesh, send_query: Callable[[pb.CallQuery], None]) -> None:
        """Create a client that asks for no rights yet. send_query: sends over the session."""
        self.memory = mesh.memory
        self._mesh = mesh
        self._send_query = send_query
        self._has_access_control = False
        self._is_closed = False
        self._last_query = 0
        # Requests whose rights are asked for, by the number of the query.
        self._waiting: dict[int, mesh_client.MeshRequest] = {}

    def enable(self) -> None:
        """Ask for the rights of later requests."""
        self._has_access_control = True

    def close(self) -> None:
        """Ask for no more rights, since the session has ended. Models may still run."""
        self._is_closed = True
        waiting, self._waiting = self._waiting, {}
        for asked in waiting.values():
            self._begin(asked)

    def infer(
        self, request: InferRequest, on_response: Callable[[InferResponse], None]
    ) -> MeshRequest:
        """Send a request to be executed; see MeshClient."""
        asked = self._mesh.new_request(request, on_response)
        self._mesh.call_on_loop(lambda: self._begin(asked))
        return asked

    def _begin(self, asked: mesh_client.MeshRequest) -> None:
        request = asked.request
        is_for_clients = request.caller or request.confined_caller
        if not self._has_access_control or not is_for_clients:
            self._mesh.submit(asked)
        elif not self._is_closed:
            self._last_query += 1
            self._waiting[self._last_query] = asked
            query = pb.CallQuery(
                number=self._last_query,
                head=request.head,
                caller=request.caller,
                confined_caller=request.confined_caller,
                callable_models=request.callable_models,
            )
            self._send_query(query)
        elif request.confined_caller:
            asked.refuse(_LOST)
        else:
            # The called model then has no rights for calls of its own, if it is confined.
            self._mesh.submit(asked)

    def on_rights(self, rights: pb.CallRights) -> None:
        """Send the request that these rights are for, or respond with the error."""
        asked = self._waiting.pop(rights.number, None)
        if asked is None:
            return
        if rights.HasField("error"):
            asked.refuse(read_error(rights.error))
        else:
            asked.request.callable_models = rights.callable_models
            # Its rights are checked.
            asked.request.confined_caller = 0
            self._mesh.submit(asked)

    def release_segment(self, segment_name: str) -> None:
        """Release a segment whose response has been read."""
        self._mesh.release_segment(segment_name)

    def call_scheduler(
        self, method: str, message: bytes, on_reply: Callable[[bytes | NereidError], None]
    ) -> None:
        """Call a control method of a scheduler."""
        self._mesh.call_scheduler(method, message, on_reply)
