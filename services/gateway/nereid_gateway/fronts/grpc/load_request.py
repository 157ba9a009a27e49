"""Load requests with files. Such a request may be as large as a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from nereid.core.errors import Internal
from nereid.pb import kserve_pb2
from nereid_gateway.core import request_head

if TYPE_CHECKING:
    from collections.abc import Sequence


def rewrite_job(messages: Sequence[bytes]) -> tuple[None, tuple[bytes]]:
    """Drop the fields that the scheduler does not read. A decoder process runs this job."""
    try:
        request = kserve_pb2.RepositoryModelLoadRequest.FromString(messages[0])
    except DecodeError as error:
        raise Internal("Unable to parse request") from error
    request_head.check_count("parameters", len(request.parameters), request.model_name)
    request.DiscardUnknownFields()
    return None, (request.SerializeToString(),)
