"""Decodes gRPC messages without long turns of the event loop."""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid_gateway.fronts.grpc.infer_codec import GrpcDecoder, GrpcMessage

if TYPE_CHECKING:
    from nereid.rpc import Call
    from nereid_gateway.core.client_request import ClientRequest
    from nereid_gateway.core.tensors.tensor_memory import MessageBuffer
    from nereid_gateway.plane.data_plane import DataPlane


class BoundedDecoder:
    """Decodes the gRPC requests of one gateway."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._decoding = data_plane.decoding
        self._decoder = GrpcDecoder(data_plane.regions)

    def decode_now(self, data: bytes | MessageBuffer) -> ClientRequest | GrpcMessage:
        """Return the request in data, or a message for decode(). Raises Internal if unreadable."""
        if isinstance(data, bytes):
            known = self._decoder.layouts.read(data)
            if known is not None:
                return known
        message = GrpcMessage(self._decoder, data)
        request = self._decoding.decode_now(message)
        return message if request is None else request

    async def decode(
        self, message: GrpcMessage, call: Call, *, accepts_many: bool = False
    ) -> ClientRequest:
        """Return the request in a message. It is decoded in a later turn or in a decoder process.

        Raises Internal if the message cannot be parsed, and RpcError if the client holds too many
        bytes.
        """
        return await self._decoding.decode(message, call, accepts_many=accepts_many)
