"""The models of the mesh, asked inside it, where no client's credentials are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

from nereid import rpc
from nereid.core.errors import InvalidArgument
from nereid.core.methods import SCHEDULER
from nereid.model_config.render import message_json
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.text import read_mapping

if TYPE_CHECKING:
    from collections.abc import Collection

    from google.protobuf.message import Message

    from nereid.mesh_auth.credentials import Credentials

_TIMEOUT_S: Final = 5.0


class MeshModels:
    """Asks a scheduler at its unix socket. Its methods may raise `rpc.RpcError`."""

    def __init__(self, address: str, credentials: Credentials | None) -> None:
        sign = None if credentials is None else credentials.metadata
        self._channel = rpc.SocketChannel(address, rpc.ChannelOptions(credentials=sign))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._channel.close()

    async def index(self) -> list[dict[str, Any]]:
        """Return an entry with name, version, state and reason for each version."""
        response = kserve_pb2.RepositoryIndexResponse()
        await self._call("RepositoryIndex", kserve_pb2.RepositoryIndexRequest(), response)
        return [message_json(model) for model in response.models]

    async def config(self, model: str) -> dict[str, Any]:
        """Return the configuration as Triton's JSON."""
        response = kserve_pb2.ModelConfigResponse()
        await self._call("ModelConfig", kserve_pb2.ModelConfigRequest(name=model), response)
        return message_json(response.config)

    async def metadata(self, model: str) -> dict[str, Any]:
        """Return the metadata, with inputs and outputs."""
        response = kserve_pb2.ModelMetadataResponse()
        await self._call("ModelMetadata", kserve_pb2.ModelMetadataRequest(name=model), response)
        return message_json(response)

    async def text_tasks(self, model: str) -> Collection[str]:
        """Return what a model does with texts; empty if nothing, or if its mapping is wrong."""
        response = pb.ModelTextResponse()
        await self._call("ModelText", pb.ModelTextRequest(name=model), response)
        try:
            mapping = read_mapping(response.config, response.files)
        except InvalidArgument:
            return ()
        return () if mapping is None else mapping.tasks

    async def _call(self, method: str, request: Message, response: Message) -> None:
        content = request.SerializeToString()
        response.ParseFromString(
            await self._channel.unary(SCHEDULER + method, content, timeout_s=_TIMEOUT_S)
        )
