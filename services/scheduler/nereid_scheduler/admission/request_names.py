"""Names in the head of a request."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from nereid.core.errors import Internal
from nereid.pb import kserve_pb2


def model_and_version(head: bytes) -> tuple[str, str]:
    """Return the model and the version that a head names; raise Internal if it is damaged."""
    try:
        message = kserve_pb2.ModelInferRequest.FromString(head)
    except DecodeError as error:
        raise Internal("a request's head is damaged") from error
    return message.model_name, message.model_version
