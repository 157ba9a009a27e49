"""A batch's members as the requests that a model executes one by one.

Pure. What alike requests have in common is remembered by their heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.backends import Request, RequestSpec
from nereid.core.classification import requested_classifications
from nereid.core.codecs import read_parameters
from nereid.core.errors import Internal
from nereid.core.messages import SharedMemory
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from nereid.pb import nereid_pb2 as pb

# Heads differ by batch size and shape; a client that varies them without end starts afresh.
_MOST_FORMS: Final = 1024


class Requests:
    """Reads the requests to one model."""

    def __init__(self, outputs: tuple[str, ...]) -> None:
        """outputs: what a request that asks for none in particular gets."""
        self._all_outputs = outputs
        self._forms: dict[bytes, RequestSpec] = {}

    def read(self, member: pb.BatchMember, room: SharedMemory | None) -> Request:
        """The request; room: where its outputs may be put. Raises Internal."""
        head, payloads = member.head, member.payloads
        form = self._forms.get(head) or self._form(head)
        count = len(payloads)
        # Iterating over a repeated field costs three times as much as indexing it.
        tensors: list[bytes | SharedMemory] = (
            [payloads[0].inline]
            if count == 1
            else [payloads[place].inline for place in range(count)]
        )
        if b"" in tensors:
            # It is in shared memory, or there is nothing in it.
            tensors = [_tensor(payload) for payload in payloads]
        if count != len(form.inputs):
            raise Internal(f"a request has {len(form.inputs)} inputs but {count} payloads")
        parameters = member.parameters
        return Request._make(
            (
                form,
                tensors,
                member.request_id,
                read_parameters(parameters) if parameters else {},
                member.trace_context,
                member.remaining_us,
                member.timeout_us,
                room,
            )
        )

    def _form(self, head: bytes) -> RequestSpec:
        try:
            request = kserve_pb2.ModelInferRequest.FromString(head)
        except DecodeError as error:
            raise Internal("a batch member's head is no ModelInferRequest") from error
        inputs = tuple((each.name, each.datatype, tuple(each.shape)) for each in request.inputs)
        outputs = tuple(output.name for output in request.outputs) or self._all_outputs
        if len(self._forms) >= _MOST_FORMS:
            self._forms.clear()
        form = RequestSpec(inputs, outputs, requested_classifications(request.outputs))
        self._forms[head] = form
        return form


def _tensor(payload: pb.Payload) -> bytes | SharedMemory:
    if not payload.HasField("shared_memory"):
        data: bytes = payload.inline
        return data
    memory = payload.shared_memory
    return SharedMemory(memory.segment_name, memory.offset, memory.size_bytes)
