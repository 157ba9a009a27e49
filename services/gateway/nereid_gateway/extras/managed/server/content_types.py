"""Content types of binary tensors, which state the length of the JSON header before them."""

from __future__ import annotations

from typing import Final

from nereid.core.errors import InvalidArgument
from nereid_gateway.fronts.http.inference.infer_request import parse_length

# The length follows these texts.
SAGEMAKER: Final = b"application/vnd.sagemaker-triton.binary+json;json-header-size="
VERTEX_AI: Final = b"application/vnd.vertex-ai-triton.binary+json;json-header-size="


def header_length_text(content_type: bytes, binary_type: bytes) -> bytes | None:
    """Return the header length that a content type states, or None if the body is only JSON.

    Raises InvalidArgument if the type of binary tensors is not at the beginning, or states no
    length.
    """
    start = content_type.find(binary_type)
    if start < 0:
        return None
    if start > 0:
        raise InvalidArgument(
            f"expect MIME type for binary data starts with '{binary_type.decode()}', got:"
            f" {content_type.decode('latin-1')}"
        )
    text = content_type[len(binary_type) :]
    parse_length(text, "inference header size")
    return text
