"""The tool's calls to a server, except inference requests, over HTTP or gRPC.

Calls block, and must not be made in a running event loop. Each uses a new connection, so that none
has to be kept alive. Results have the form of Triton's HTTP documents.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from nereid.cli.time_limit import PIECES, call_within
from nereid.cli.wrong_port import GRPC, HTTP, wrong_port
from nereid.core.files.json_document import MAX_BYTES, error_text, parse_document
from nereid.model_config.render import message_json
from nereid.pb import kserve_pb2 as pb
from nereid.rpc.grpc.channel import ChannelOptions, SocketChannel
from nereid.rpc.grpc.status import RpcError, Status
from nereid.rpc.net.address import authority_of
from nereid.rpc.net.dialing import connect
from nereid.rpc.net.tls_files import reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

    from nereid_perf.endpoint import Endpoint

_Message = TypeVar("_Message", bound="Message")

_SERVICE: Final = "/inference.GRPCInferenceService/"
# Statuses for an unknown URL. Triton's "unsupported" is 501 or 400.
_NO_SUCH_CALL: Final = frozenset({404, 405, 501})


class ServerError(Exception):
    """Raised if a server cannot be reached, or refuses a request; the text says why."""


class NotSupportedError(ServerError):
    """Raised if a server does not have the call."""


class Server:
    """A server, at one of its ports."""

    def __init__(self, endpoint: Endpoint, timeout_s: float = 10.0) -> None:
        """Prepare calls to the endpoint; raise OSError if a TLS file cannot be used."""
        self.endpoint = endpoint
        self._tls = endpoint.client_tls()
        self._timeout_s = timeout_s

    def is_ready(self) -> bool:
        """Return whether the server is ready; raise ServerError if it cannot be reached."""
        if self.endpoint.protocol == "http":
            status, _ = self._exchange("GET", "/v2/health/ready")
            return status == http.client.OK
        return self._unary("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse()).ready

    def name_and_version(self) -> tuple[str, str]:
        """Return name and version, such as "triton", "2.60.0". May raise ServerError."""
        if self.endpoint.protocol == "http":
            try:
                document = self._json("GET", "/v2")
            except ServerError as error:
                raise self._explained(error) from error
            if not document:
                # The port of the metrics responds to any path.
                failure = ServerError(f"{self.endpoint.address}/v2 responds with nothing")
                raise self._explained(failure)
            return str(document.get("name", "")), str(document.get("version", ""))
        request, response = pb.ServerMetadataRequest(), pb.ServerMetadataResponse()
        metadata = self._unary("ServerMetadata", request, response)
        return metadata.name, metadata.version

    def extensions(self) -> tuple[str, ...]:
        """Return extensions, such as "system_shared_memory". May raise ServerError."""
        if self.endpoint.protocol == "http":
            return tuple(self._json("GET", "/v2").get("extensions") or ())
        request, response = pb.ServerMetadataRequest(), pb.ServerMetadataResponse()
        return tuple(self._unary("ServerMetadata", request, response).extensions)

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        """Return name, versions, platform, inputs and outputs of a model. May raise ServerError."""
        if self.endpoint.protocol == "http":
            document = self._json("GET", _model_path(model, version))
            for tensor in (*document.get("inputs", ()), *document.get("outputs", ())):
                # MLServer and Triton write sizes as strings or as numbers.
                tensor["shape"] = [int(size) for size in tensor["shape"]]
            return document
        request = pb.ModelMetadataRequest(name=model, version=version)
        return message_json(self._unary("ModelMetadata", request, pb.ModelMetadataResponse()))

    def config(self, model: str, version: str = "") -> dict[str, Any] | None:
        """Return the configuration as Triton's JSON, or `None` if the server is not like Triton."""
        try:
            if self.endpoint.protocol == "http":
                return self._json("GET", f"{_model_path(model, version)}/config")
            request = pb.ModelConfigRequest(name=model, version=version)
            response = self._unary("ModelConfig", request, pb.ModelConfigResponse())
        except NotSupportedError:
            return None
        return message_json(response.config)

    def statistics(self, model: str = "", version: str = "") -> list[dict[str, Any]] | None:
        """Return `model_stats` of one model or of all; `None` if the server has no statistics."""
        try:
            if self.endpoint.protocol == "http":
                path = _model_path(model, version) if model else "/v2/models"
                return list(self._json("GET", f"{path}/stats").get("model_stats", ()))
            request = pb.ModelStatisticsRequest(name=model, version=version)
            response = self._unary("ModelStatistics", request, pb.ModelStatisticsResponse())
        except NotSupportedError:
            return None
        return [message_json(entry) for entry in response.model_stats]

    def repository_index(self) -> list[dict[str, Any]]:
        """Return an entry (name, version, state, reason) for each version. May raise ServerError.

        For a model that was never loaded, the entry has only the name.
        """
        if self.endpoint.protocol == "http":
            status, content = self._exchange("POST", "/v2/repository/index", {})
            entries = self._document("/v2/repository/index", status, content)
            return entries if isinstance(entries, list) else []
        request, response = pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse()
        index = self._unary("RepositoryIndex", request, response)
        return [message_json(model) for model in index.models]

    def load_model(self, model: str, config: str = "") -> None:
        """Load a model, and wait until it is loaded; raise ServerError if that fails.

        config: JSON that replaces the repository's configuration; "" keeps it.
        """
        if self.endpoint.protocol == "http":
            body = {"parameters": {"config": config}} if config else {}
            self._json("POST", f"/v2/repository{_model_path(model, '')[3:]}/load", body)
            return
        request = pb.RepositoryModelLoadRequest(model_name=model)
        if config:
            request.parameters["config"].string_param = config
        self._unary("RepositoryModelLoad", request, pb.RepositoryModelLoadResponse())

    def unload_model(self, model: str) -> None:
        """Unload a model; raise ServerError if the call fails."""
        if self.endpoint.protocol == "http":
            self._json("POST", f"/v2/repository{_model_path(model, '')[3:]}/unload", {})
            return
        request = pb.RepositoryModelUnloadRequest(model_name=model)
        self._unary("RepositoryModelUnload", request, pb.RepositoryModelUnloadResponse())

    def update_trace_settings(self, settings: Mapping[str, Any]) -> None:
        """Change the server's trace settings; raise ServerError if it refuses."""
        if self.endpoint.protocol == "http":
            self._json("POST", "/v2/trace/setting", dict(settings))
            return
        request = pb.TraceSettingRequest()
        for name, value in settings.items():
            request.settings[name].value.extend([value] if isinstance(value, str) else value)
        self._unary("TraceSetting", request, pb.TraceSettingResponse())

    def register_system_shared_memory(
        self, name: str, key: str, byte_size: int, offset: int = 0
    ) -> None:
        """Register a region; `key` is shm_open()'s, in the form "/name". May raise ServerError."""
        if self.endpoint.protocol == "http":
            path = f"/v2/systemsharedmemory/region/{quote(name, safe='')}/register"
            self._json("POST", path, {"key": key, "offset": offset, "byte_size": byte_size})
            return
        request = pb.SystemSharedMemoryRegisterRequest(
            name=name, key=key, offset=offset, byte_size=byte_size
        )
        self._unary("SystemSharedMemoryRegister", request, pb.SystemSharedMemoryRegisterResponse())

    def unregister_system_shared_memory(self, name: str = "") -> None:
        """Unregister a region; "" means all, even other clients'. May raise ServerError."""
        if self.endpoint.protocol == "http":
            region = f"/region/{quote(name, safe='')}" if name else ""
            self._json("POST", f"/v2/systemsharedmemory{region}/unregister", {})
            return
        request = pb.SystemSharedMemoryUnregisterRequest(name=name)
        response = pb.SystemSharedMemoryUnregisterResponse()
        self._unary("SystemSharedMemoryUnregister", request, response)

    def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        document = self._document(path, *self._exchange(method, path, body))
        if not isinstance(document, dict):
            raise ServerError(f"{self.endpoint.address}{path} responds with JSON of another form")
        return document

    def _document(self, path: str, status: int, content: bytes) -> Any:
        if status != http.client.OK:
            kind = NotSupportedError if status in _NO_SUCH_CALL else ServerError
            raise kind(
                f"{self.endpoint.address}{path} responds with {status}: {error_text(content)}"
            )
        try:
            return parse_document(content or b"{}")
        except ValueError as error:
            raise ServerError(
                f"{self.endpoint.address}{path} responds with no JSON of a server: {error}"
            ) from error

    def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> tuple[int, bytes]:
        try:
            return call_within(
                PIECES * self._timeout_s, lambda: self._exchange_once(method, path, body)
            )
        except (OSError, http.client.HTTPException) as error:
            failure = ServerError(f"cannot ask {self.endpoint.address}: {reason(error)}")
            raise self._explained(failure) from error

    def _exchange_once(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[int, bytes]:
        endpoint = self.endpoint
        content = None if body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection(authority_of(endpoint.address))
        try:
            connection.sock = connect(endpoint.address, self._timeout_s, self._tls)
            connection.sock.settimeout(self._timeout_s)
            connection.request(method, path, content, dict(endpoint.headers))
            response = connection.getresponse()
            return response.status, response.read(MAX_BYTES + 1)
        finally:
            connection.close()

    def _unary(self, method: str, request: Message, response: _Message) -> _Message:
        try:
            content = asyncio.run(self._call(method, request.SerializeToString()))
        except RpcError as error:
            kind = NotSupportedError if error.status == Status.UNIMPLEMENTED else ServerError
            failure = kind(f"{self.endpoint.address}: {method}: {error}")
            if error.status != Status.UNAVAILABLE:
                raise failure from error
            raise self._explained(failure) from error
        response.ParseFromString(content)
        return response

    def _explained(self, error: ServerError) -> ServerError:
        """Return an error that names the port, if it is the wrong one; else the same error."""
        if self._tls is not None:
            return error
        wanted = HTTP if self.endpoint.protocol == "http" else GRPC
        text = wrong_port(self.endpoint.address, wanted)
        return ServerError(text) if text else error

    async def _call(self, method: str, message: bytes) -> bytes:
        endpoint = self.endpoint
        channel = SocketChannel(endpoint.address, ChannelOptions(tls=self._tls))
        metadata = [(name.lower(), value) for name, value in endpoint.headers]
        try:
            return await channel.unary(
                _SERVICE + method, message, timeout_s=self._timeout_s, metadata=metadata
            )
        finally:
            await channel.close()


def _model_path(model: str, version: str) -> str:
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path
