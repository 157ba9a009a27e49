"""Codecs for the scheduler's end of a gateway's link: they encode responses and decode requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.wire.codecs import RequestCodec, ResponseCodec
from nereid.core.wire.messages import InferRequest
from nereid.shm.reference import SharedMemory

if TYPE_CHECKING:
    from nereid.core.wire.messages import ToScheduler


class GatewayCodec:
    """Codec for a gateway that shares memory with this host."""

    def __init__(self) -> None:
        out = ResponseCodec()
        self.size_bytes, self.encode = out.size_bytes, out.encode
        self.decode = RequestCodec().decode


class RemoteGatewayCodec(GatewayCodec):
    """Codec for a gateway that shares no memory with this host."""

    def __init__(self) -> None:
        super().__init__()
        decode = self.decode

        def decode_inline(frame: bytes) -> list[ToScheduler]:
            items = decode(frame)
            for item in items:
                payloads = item.payloads if isinstance(item, InferRequest) else ()
                if any(isinstance(payload, SharedMemory) for payload in payloads):
                    # A model would read another process's data for the gateway.
                    raise ValueError("a reference to memory that the gateway does not share")
            return items

        self.decode = decode_inline
